"""The report of a replay: both runs side by side, as text and as one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vla_ros.core import STAGES, CommandKind
from vla_ros.replay.compare import Comparison
from vla_ros.replay.run import Run
from vla_ros.timing import Distribution, Window

#: below the table of times
ABOUT_TIMES = "the stages abut and add up to the age; inference is preprocess to decode"
LOCKSTEP = "; in lock-step\nthe age is simulated time, the stages are not"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs. Rates in Hz, distributions in ms."""

    name: str  # "recorded", "golden", "replayed"
    run: Run
    rate_hz: float
    age: Distribution
    inference: Distribution
    stages: Mapping[str, Distribution]

    @staticmethod
    def of(name: str, run: Run) -> Side:
        """The figures of a run, over the actions of the policy."""
        own = [said for said in run.said if said.kind is CommandKind.POLICY]
        pairs = zip([None, *own], own, strict=False)
        first = [s for before, s in pairs if before is None or before.observed_ns != s.observed_ns]
        timed = [said for said in first if said.stages_ms]
        return Side(
            name=name,
            run=run,
            rate_hz=run.rate_hz,
            age=_spread(said.age_ms for said in own if said.stages_ms),
            inference=_spread(said.inference_ms for said in timed),
            stages={stage: _spread(said.stages_ms[stage] for said in timed) for stage in STAGES},
        )


@dataclass(frozen=True, slots=True)
class Report:
    """``before`` and ``comparison`` are None when there was nothing to compare with. ``notes``
    are what the reader should know, one line each."""

    bag: str
    mode: str
    frames: int  # shown to the policy
    camera_rate_hz: float
    now: Side
    before: Side | None
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
        """In a few words."""
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


# ------------------------------------------------------------------------------ text


def text(report: Report) -> str:
    """The whole report, for a terminal of 80 columns."""
    sides = [side for side in (report.before, report.now) if side is not None]
    lines = [
        f"{report.bag}: {report.frames} frames at {report.camera_rate_hz:.1f} Hz, {report.mode},"
        f" replayed in {report.wall_s:.1f} s",
        "",
        _row("", [side.name for side in sides]),
    ]
    for name in ("policy", "schedule", "checkpoint", "device"):
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
    lines += _comparison(report)
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join(lines)


def _comparison(report: Report) -> list[str]:
    found = report.comparison
    if found is None:
        return [f"{report.verdict}: the bag has no actions; --save keeps these for later"]
    lines = [f"{report.verdict}   ({found.compared} actions compared)"]
    if found.missing or found.extra:
        lines.append(f"only in one run: {found.missing} before, {found.extra} now")
    if found.tail:
        lines.append(f"{found.tail} still in the pipeline when their episode ended")
    if found.token_match_rate is not None:
        rate = f"{found.tokens_equal} of {found.tokens} ({100 * found.token_match_rate:.2f} %)"
        lines.append(f"tokens that match: {rate}")
    if found.first is not None:
        lines.append(f"first difference: {found.first}")
        pairs = zip(found.names, found.max_abs_diff, strict=True)
        lines.append("largest: " + "  ".join(f"{name} {off:.3g}" for name, off in pairs))
    return lines


def _row(label: str, values: list[str]) -> str:
    return (f"{label:<22}" + "".join(f"{value:<26}" for value in values)).rstrip()


def _short(value: str) -> str:
    return value if len(value) <= 24 else "..." + value[-21:]


def _ms(spread: Distribution) -> str:
    if not spread.count:
        return "-"
    return f"{spread.p50:.1f} / {spread.p95:.1f} / {spread.p99:.1f}"


# ------------------------------------------------------------------------------ JSON


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


def _side(side: Side) -> dict[str, Any]:
    run = side.run
    return {
        "policy": run.policy,
        "schedule": run.schedule,
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
