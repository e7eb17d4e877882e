"""Comparison of two runs of a policy on the same frames: runs, golden files, the report."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.core.action_space import END_EFFECTOR_DELTA
from vla_ros.core.clock import MS, Distribution, Window
from vla_ros.core.files import RECORDED, BadFile, read_json
from vla_ros.core.text import printable
from vla_ros.core.types import INFERENCE_STAGES, STAGES, CommandKind
from vla_ros.data.actions import executed, grouped
from vla_ros.data.bags import BagError

#: Which frame, and which action of the chunk that it gave.
Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RunCommand:
    """One command. ``action``: its numbers, ``names`` and ``units`` what they are, ``displaced``
    which of them are displacements; ``action_phase``: the part of the policy's action that commands
    before it have made. Stamps in ns, stages in ms.

    ``at_ns``: when it was recorded or received, on a steady clock.
    """

    kind: CommandKind
    observed_ns: int  # 0: rests on no observation
    latest_ns: int
    published_ns: int
    at_ns: int
    action: tuple[float, ...]
    epoch: int = 0
    chunk_index: int = 0
    decoding: str = ""
    stages_ms: Mapping[str, float] = field(default_factory=dict)
    names: tuple[str, ...] = END_EFFECTOR_DELTA.names
    units: tuple[str, ...] = END_EFFECTOR_DELTA.units
    action_phase: float = 0.0
    displaced: tuple[bool, ...] = ()

    @property
    def key(self) -> Key:
        return self.observed_ns, self.chunk_index

    @property
    def age_ms(self) -> float:
        """Observation age at publication, by the stamps."""
        return (self.published_ns - self.observed_ns) / MS

    @property
    def inference_ms(self) -> float:
        return sum(self.stages_ms.get(stage, 0.0) for stage in INFERENCE_STAGES)


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """The commands of a policy in one run, in their order.

    ``tokens``: of every frame that was answered with tokens, by its stamp. ``answer_ms``: from
    showing a frame to its answer, by the steady clock; empty for recorded runs.
    """

    commands: tuple[RunCommand, ...]
    tokens: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    frames: int = 0
    answer_ms: Distribution = Distribution()
    policy: str = ""
    decoding: str = ""
    checkpoint: str = ""
    checkpoint_sha256: str = ""
    device: str = ""
    dtype: str = ""
    pipeline_depth: int = 1

    @property
    def actions(self) -> dict[Key, RunCommand]:
        """The policy's own actions by frame, each with what was executed over its commands; neither
        holding still nor stopping is one."""
        return {key: _merged(parts) for key, parts in self.parts.items()}

    @property
    def parts(self) -> dict[Key, tuple[RunCommand, ...]]:
        """The commands of each of the policy's own actions, by frame. Of two answers the second
        counts."""
        return {parts[0].key: parts for parts in self._groups()}

    def _groups(self) -> Iterator[tuple[RunCommand, ...]]:
        own = [s for s in self.commands if s.kind is CommandKind.POLICY]
        for indices in grouped([((s.epoch, s.key), s.action_phase) for s in own]):
            yield tuple(own[i] for i in indices)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of an action's numbers; of a run without actions those of one end effector."""
        return self._first.names if self._first else END_EFFECTOR_DELTA.names

    @property
    def units(self) -> tuple[str, ...]:
        """Units of the numbers in :attr:`names`."""
        return self._first.units if self._first else END_EFFECTOR_DELTA.units

    @property
    def displaced(self) -> tuple[bool, ...]:
        """Which of the numbers in :attr:`names` are displacements."""
        return self._first.displaced if self._first else ()

    @property
    def _first(self) -> RunCommand | None:
        return next((s for s in self.commands if s.kind is CommandKind.POLICY), None)

    @property
    def rate_hz(self) -> float:
        """Actions of the policy a second, from the first to the last."""
        times = [parts[0].at_ns for parts in self._groups()]
        span = times[-1] - times[0] if len(times) > 1 else 0
        return (len(times) - 1) * 1e9 / span if span > 0 else 0.0


def _merged(parts: Sequence[RunCommand]) -> RunCommand:
    if len(parts) == 1:
        return parts[0]
    rows = np.array([one.action for one in parts])
    return replace(parts[0], action=tuple(executed(rows, parts[0].displaced).tolist()))


@dataclass(frozen=True, slots=True)
class ActionDifference:
    """One number of one action that is another one. ``frame`` counts from 0, ``dimension`` is the
    number's name."""

    frame: int
    stamp_ns: int
    chunk_index: int
    dimension: str
    recorded: float
    replayed: float

    def __str__(self) -> str:
        where = f"frame {self.frame} (stamp {self.stamp_ns / 1e9:.6f}), {self.dimension}"
        return f"{where}: {self.recorded:.9g} before, {self.replayed:.9g} now"


@dataclass(frozen=True, slots=True)
class Comparison:
    """``compared`` actions are in both runs; ``missing`` ones only in the first, although the
    frame was shown; ``extra`` ones only in the second. ``tail``: missing only because a pipeline
    was not yet that far when its episode ended. Differences in m, rad and gripper 0..1, of the
    numbers in ``names``.
    """

    compared: int
    missing: int
    extra: int
    tail: int
    names: tuple[str, ...]
    max_abs_diff: tuple[float, ...]  # a name
    first: ActionDifference | None
    tokens: int  # compared
    tokens_equal: int

    @property
    def largest(self) -> float:
        return max(self.max_abs_diff)

    @property
    def identical(self) -> bool:
        """Every action again, to the last bit."""
        same = self.largest == 0.0 and self.tokens == self.tokens_equal
        return self.compared > 0 and self.missing == 0 and same

    @property
    def token_match_rate(self) -> float | None:
        """Share of the tokens that are the same; None for policies without tokens."""
        return self.tokens_equal / self.tokens if self.tokens else None


def compare(
    before: PolicyRun,
    now: PolicyRun,
    shown: Collection[int],
    ends: Collection[int] = (),
) -> Comparison:
    """Compare by the frame an action rests on, so that pipelined decodings, which answer some
    frames later, can be compared with those that answer at once: command by command where both made
    the action in the same steps, else what was executed over it.

    ``shown``: stamps of the frames that were replayed, in order; ``ends``: those of them that
    were the last of an episode. Raises BagError where the actions are not of the same numbers.
    """
    names = _names(before, now)
    index = {stamp: i for i, stamp in enumerate(shown)}
    first, second = before.parts, now.parts
    expected = {key: parts for key, parts in first.items() if key[0] in index}
    both = sorted(expected.keys() & second.keys(), key=lambda key: (index[key[0]], key[1]))
    largest = [0.0] * len(names)
    difference: ActionDifference | None = None
    for key in both:
        for old, new, near in _pairs(expected[key], second[key]):
            for i, name in enumerate(names):
                # Both NaN: a gripper that stays as it is.
                both_nan = math.isnan(new[i]) and math.isnan(old[i])
                off = 0.0 if both_nan else abs(new[i] - old[i])
                off = 0.0 if off <= near else off
                largest[i] = max(largest[i], off)
                if off and difference is None:
                    frame, (stamp, at) = index[key[0]], key
                    difference = ActionDifference(frame, stamp, at, name, old[i], new[i])
    lost = expected.keys() - second.keys()
    tail = {key for key in lost if key[0] in _unanswered(index, ends, now.pipeline_depth)}
    tokens, equal = _tokens(before, now)
    return Comparison(
        compared=len(both),
        missing=len(lost) - len(tail),
        extra=len(second.keys() - first.keys()),
        tail=len(tail),
        names=names,
        max_abs_diff=tuple(largest),
        first=difference,
        tokens=tokens,
        tokens_equal=equal,
    )


_ROUNDING = 1e-12  # of a displacement that is the sum of others


def _pairs(
    old: Sequence[RunCommand], new: Sequence[RunCommand]
) -> Iterator[tuple[Sequence[float], Sequence[float], float]]:
    """The numbers of one action in both runs, and the difference that is none."""
    if [one.action_phase for one in old] == [one.action_phase for one in new]:
        yield from ((a.action, b.action, 0.0) for a, b in zip(old, new, strict=True))
    else:
        yield _merged(old).action, _merged(new).action, _ROUNDING


def _names(before: PolicyRun, now: PolicyRun) -> tuple[str, ...]:
    if before.actions and now.actions and before.names != now.names:
        first, second = " ".join(before.names), " ".join(now.names)
        raise BagError(
            f"the actions before were of {first}, those of now are of {second}: replay with the"
            " action_space and the names of the recording"
        )
    return before.names


def _unanswered(index: dict[int, int], ends: Collection[int], depth: int) -> set[int]:
    """The frames still in a pipeline of this depth when their episode ends."""
    last = {index[stamp] for stamp in ends if stamp in index} | {len(index) - 1}
    return {stamp for stamp, i in index.items() if any(0 <= end - i < depth - 1 for end in last)}


def _tokens(before: PolicyRun, now: PolicyRun) -> tuple[int, int]:
    """(tokens of frames that both runs answered, those that are the same)."""
    count = equal = 0
    for stamp in before.tokens.keys() & now.tokens.keys():
        old, new = before.tokens[stamp], now.tokens[stamp]
        count += max(len(old), len(new))
        equal += sum(a == b for a, b in zip(old, new, strict=False))
    return count, equal


# Golden files: a policy's actions for the frames of a bag, kept to compare with later.
#
# JSON, readable and comparable by eye; numbers are written so that they are read back exactly.


_ROW = ("stamp_ns", "chunk_index", "phase", "action")
FORMAT = "vla_ros golden actions 2"


def save_golden(path: Path, run: PolicyRun, bag: str) -> None:
    """Write the policy's actions and tokens. BagError: the file cannot be written."""
    actions = [
        dict(zip(_ROW, (*key, one.action_phase, list(one.action)), strict=True))
        for key, parts in run.parts.items()
        for one in parts
    ]
    content = {
        "format": FORMAT,
        "bag": bag,
        "policy": run.policy,
        "decoding": run.decoding,
        "checkpoint": run.checkpoint,
        "checkpoint_sha256": run.checkpoint_sha256,
        "frames": run.frames,
        "names": list(run.names),
        "units": list(run.units),
        "displaced": list(run.displaced),
        "actions": actions,
        "tokens": {str(stamp): list(tokens) for stamp, tokens in run.tokens.items()},
    }
    try:
        path.write_text(_lines(content), encoding="utf-8")
    except OSError as error:
        raise BagError(f"cannot write {path}: {error.strerror}") from None


def _lines(content: dict[str, object]) -> str:
    """JSON with one line an action."""
    rows = content.pop("actions")
    assert isinstance(rows, list)
    head = json.dumps(content)[:-1]
    body = ",\n".join(json.dumps(row) for row in rows)
    return f'{head}, "actions": [\n{body}\n]}}\n'


def load_golden(path: Path) -> PolicyRun:
    """The inverse of :func:`save_golden`. BagError: no such file, or something else in it."""
    try:
        content = read_json(path, RECORDED)
    except OSError as error:
        raise BagError(f"cannot read {path}: {error.strerror}") from None
    except BadFile as error:
        raise BagError(f"{error}; a golden file is wanted") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BagError(f"{path} is no golden file: make one with `vla-ros replay BAG --save FILE`")
    try:
        names = tuple(map(str, content["names"]))
        units = tuple(map(str, content["units"]))
        sums = tuple(map(bool, content["displaced"]))
        commands = tuple(_golden_command(row, names, units, sums) for row in content["actions"])
        tokens = {int(stamp): tuple(row) for stamp, row in content["tokens"].items()}
        return PolicyRun(
            commands,
            tokens,
            int(content["frames"]),
            policy=content["policy"],
            decoding=content["decoding"],
            checkpoint=content["checkpoint"],
            checkpoint_sha256=content["checkpoint_sha256"],
        )
    except KeyError as error:
        raise BagError(
            f"{path} has no {error}: damaged, or of another version; make it again with"
            " `vla-ros replay BAG --save FILE`"
        ) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise BagError(f"{path} is damaged: {type(error).__name__}: {error}") from None


def _golden_command(
    row: dict[str, Any],
    names: tuple[str, ...],
    units: tuple[str, ...],
    displaced: tuple[bool, ...],
) -> RunCommand:
    stamp, index, action = row["stamp_ns"], row["chunk_index"], row["action"]
    phase = row["phase"]
    whole = isinstance(stamp, int) and isinstance(index, int) and isinstance(phase, float)
    if not (whole and isinstance(action, list)):
        raise TypeError("an action is not as it was written")
    if len(action) != len(names):
        raise ValueError(f"an action has {len(action)} numbers, not {len(names)}")
    numbers = tuple(float(number) for number in action)
    return RunCommand(
        CommandKind.POLICY,
        *(stamp,) * 4,
        numbers,
        chunk_index=index,
        names=names,
        units=units,
        action_phase=phase,
        displaced=displaced,
    )


# The report of a replay: both runs side by side, as text and as one line of JSON.


#: below the table of times
ABOUT_TIMES = "the stages abut and add up to the age; inference is preprocess to decode"
LOCKSTEP = "; in lock-step\nthe age is simulated time, the stages are not"


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Figures of one of the two runs. Rates in Hz, distributions in ms."""

    name: str  # "recorded", "golden", "replayed"
    run: PolicyRun
    rate_hz: float
    age: Distribution
    inference: Distribution
    stages: Mapping[str, Distribution]

    @staticmethod
    def of(name: str, run: PolicyRun) -> RunFigures:
        """The figures of a run, over the actions of the policy."""
        own = [s for s in run.commands if s.kind is CommandKind.POLICY]
        pairs = zip([None, *own], own, strict=False)
        first = [s for before, s in pairs if before is None or before.observed_ns != s.observed_ns]
        timed = [s for s in first if s.stages_ms]
        return RunFigures(
            name=name,
            run=run,
            rate_hz=run.rate_hz,
            age=_spread(s.age_ms for s in own if s.stages_ms),
            inference=_spread(s.inference_ms for s in timed),
            stages={stage: _spread(s.stages_ms[stage] for s in timed) for stage in STAGES},
        )


@dataclass(frozen=True, slots=True)
class Report:
    """``before`` and ``comparison`` are None when there was nothing to compare with. ``notes``
    are what the reader should know, one line each."""

    bag: str
    mode: str
    frames: int  # shown to the policy
    camera_rate_hz: float
    now: RunFigures
    before: RunFigures | None
    comparison: Comparison | None
    tolerance: float
    strict: bool  # every recorded action must be there again
    wall_s: float
    notes: tuple[str, ...] = ()

    @property
    def within(self) -> bool:
        """Nothing differs by more than the tolerance."""
        found = self.comparison
        if found is None:
            return True
        return found.compared > 0 and found.largest <= self.tolerance and self.complete

    @property
    def complete(self) -> bool:
        return not (self.strict and self.comparison and self.comparison.missing)

    @property
    def verdict(self) -> str:
        """The outcome in a few words."""
        found = self.comparison
        if found is None:
            return "nothing to compare with"
        if found.compared == 0:
            return "DIFFERENT: no action of the one run is in the other"
        if found.identical:
            return "IDENTICAL"
        if not self.complete:
            return f"DIFFERENT: {found.missing} actions are missing"
        if not self.within:
            return f"DIFFERENT by up to {found.largest:.3g}"
        if found.largest == 0.0:
            return "the same wherever both acted"
        return f"within the tolerance: {found.largest:.3g}"


def _spread(values: Iterable[float]) -> Distribution:
    window = Window(1e9, limit=10_000_000)
    for value in values:
        window.add(0, value)
    return window.distribution(0)


# Text


def text(report: Report) -> str:
    """The whole report, for a terminal of 80 columns."""
    sides = [side for side in (report.before, report.now) if side is not None]
    lines = [
        f"{printable(report.bag)}: {report.frames} frames at {report.camera_rate_hz:.1f} Hz,"
        f" {report.mode}, replayed in {report.wall_s:.1f} s",
        "",
        _row("", [side.name for side in sides]),
    ]
    for name in ("policy", "decoding", "checkpoint", "device"):
        values = [getattr(side.run, name) for side in sides]
        if any(values):
            lines.append(_row(name, [_short(value) for value in values]))
    lines.append(_row("actions", [str(len(side.run.actions)) for side in sides]))
    lines.append(_row("rate", [f"{s.rate_hz:.1f} Hz" if s.rate_hz else "-" for s in sides]))
    lines.append(_row("ms: p50 / p95 / p99", ["" for _ in sides]))
    lines.append(_row("observation age", [_ms(side.age) for side in sides]))
    lines += [_row(f"  {stage}", [_ms(s.stages[stage]) for s in sides]) for stage in STAGES]
    lines.append(_row("inference", [_ms(side.inference) for side in sides]))
    if report.now.run.answer_ms.count:
        answers = ["-"] * (len(sides) - 1) + [_ms(report.now.run.answer_ms)]
        lines.append(_row("frame to answer", answers))
    lines.append(f"({ABOUT_TIMES}{LOCKSTEP if report.mode == 'lockstep' else ''})")
    lines.append("")
    found = report.comparison
    if found is None:
        lines.append(f"{report.verdict}: the bag has no actions; --save keeps these for later")
    else:
        first, *more = comparison_lines(found)
        lines += [f"{report.verdict}   ({first})", *more]
        if found.first is not None:
            pairs = zip(found.names, found.max_abs_diff, strict=True)
            lines.append("largest: " + "  ".join(f"{name} {off:.3g}" for name, off in pairs))
    lines += [f"note: {printable(note)}" for note in report.notes]
    return "\n".join(lines)


def comparison_lines(found: Comparison) -> list[str]:
    """The comparison in numbers, for text and page: the actions compared, and what differs."""
    lines = [f"{found.compared} actions compared"]
    if found.missing or found.extra:
        lines.append(f"only in one run: {found.missing} before, {found.extra} now")
    if found.tail:
        lines.append(f"{found.tail} still in the pipeline when their episode ended")
    if found.token_match_rate is not None:
        rate = f"{found.tokens_equal} of {found.tokens} ({100 * found.token_match_rate:.2f} %)"
        lines.append(f"tokens that match: {rate}")
    if found.first is not None:
        lines.append(f"first difference: {printable(found.first)}")
    return lines


def _row(label: str, values: list[str]) -> str:
    return (f"{label:<22}" + "".join(f"{printable(value):<26}" for value in values)).rstrip()


def _short(value: str) -> str:
    return value if len(value) <= 24 else "..." + value[-21:]


def _ms(spread: Distribution) -> str:
    if not spread.count:
        return "-"
    return f"{spread.p50:.1f} / {spread.p95:.1f} / {spread.p99:.1f}"


# JSON


def json_line(report: Report) -> str:
    """Everything as one line; the figures are those of the replay, ``before`` has the others."""
    found = report.comparison
    content: dict[str, Any] = {
        "bag": report.bag,
        "mode": report.mode,
        "identical": found.identical if found else None,
        "within_tolerance": report.within,
        "tolerance": report.tolerance,
        "frames": report.frames,
        "max_abs_diff": found.largest if found else None,
        "max_abs_diff_per_dimension": list(found.max_abs_diff) if found else None,
        "first_difference": _first(found),
        "token_match_rate": found.token_match_rate if found else None,
        "compared": found.compared if found else 0,
        "missing": found.missing if found else 0,
        "extra": found.extra if found else 0,
        "pipeline_tail": found.tail if found else 0,
        "camera_rate_hz": report.camera_rate_hz,
        "wall_s": report.wall_s,
        **_side(report.now),
        "before": {"name": report.before.name, **_side(report.before)} if report.before else None,
        "notes": list(report.notes),
    }
    return json.dumps(content)


def _first(found: Comparison | None) -> dict[str, Any] | None:
    if found is None or found.first is None:
        return None
    first = found.first
    return {
        "frame": first.frame,
        "stamp_ns": first.stamp_ns,
        "chunk_index": first.chunk_index,
        "dimension": first.dimension,
        "before": first.recorded,
        "now": first.replayed,
    }


def _side(side: RunFigures) -> dict[str, Any]:
    run = side.run
    return {
        "policy": run.policy,
        "decoding": run.decoding,
        "checkpoint": run.checkpoint,
        "checkpoint_sha256": run.checkpoint_sha256,
        "device": run.device,
        "dtype": run.dtype,
        "actions": len(run.actions),
        "rate_hz": side.rate_hz,
        "observation_age_ms": _spread_json(side.age),
        "inference_ms": _spread_json(side.inference),
        "stages_ms": {stage: _spread_json(spread) for stage, spread in side.stages.items()},
        "answer_ms": _spread_json(run.answer_ms),
    }


def _spread_json(spread: Distribution) -> dict[str, float] | None:
    if not spread.count:
        return None
    return {name: getattr(spread, name) for name in ("p50", "p95", "p99", "max", "count")}
