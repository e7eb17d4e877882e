"""The figures of every variant, as the report shows them: computed once from the records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import median
from typing import Any

import numpy as np

from vla_ros.data.episodes.plan import FAMILIES, group_of
from vla_ros.data.episodes.records import QUANTILES, Record, Setup, Spread, Variant

# Success with its interval, and spreads put together. Pure functions.


Z95 = 1.959963984540054  # of the normal distribution, both sides together 5 %
_POINTS = 200  # that stand for one spread among others


def wilson(successes: int, episodes: int, z: float = Z95) -> tuple[float, float]:
    """Interval of a share (Wilson 1927): (0, 1) without episodes. ValueError: more successes
    than episodes.

    Unlike the usual one it is no point at 0 and 100 %, where few episodes prove little.
    """
    if not 0 <= successes <= episodes:
        raise ValueError(f"{successes} successes of {episodes} episodes")
    if episodes == 0:
        return 0.0, 1.0
    share, part = successes / episodes, z * z / episodes
    middle = (share + part / 2) / (1 + part)
    half = z / (1 + part) * math.sqrt(share * (1 - share) / episodes + part / (4 * episodes))
    low = 0.0 if successes == 0 else middle - half
    high = 1.0 if successes == episodes else middle + half
    return max(0.0, low), min(1.0, high)


def mcnemar(won: int, lost: int) -> float:
    """Two-sided p of a paired comparison (McNemar 1947, the exact binomial form).

    ``won``, ``lost``: episodes that ended differently from the same initial state, one way and the
    other; those that end alike say nothing. 1.0 where there is none; ValueError for less than 0.
    """
    if won < 0 or lost < 0:
        raise ValueError(f"{won} won, {lost} lost: give 0 or more")
    count = won + lost
    tail = sum(math.comb(count, k) for k in range(min(won, lost) + 1))
    return min(1.0, 2 * tail / 2**count)


def least_gain(won: int, lost: int, pairs: int, z: float = 1.645) -> float:
    """Lower bound, with 95 % confidence, of how much more often the first of two succeeds: Tango's
    score interval of a paired difference (Statistics in Medicine 17:891, 1998), one-sided.

    ``won``, ``lost``: see :func:`mcnemar`, of so many ``pairs``, at least 1. Where none ended
    differently it is -z^2 / (pairs + z^2), so four pairs show nothing, and 52 that it loses no more
    than one of 20.
    """

    def beyond(gain: float) -> bool:
        """The data lie farther above ``gain`` than chance."""
        b = -won - lost + (2 * pairs - won + lost) * gain
        root = math.sqrt(b * b + 8 * pairs * lost * gain * (1 - gain))
        spread = pairs * ((root - b) / (2 * pairs) + gain * (1 - gain))
        return won - lost - pairs * gain > z * math.sqrt(max(spread, 0.0))

    low, high = -1.0, (won - lost) / pairs
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) else (low, middle)
    return low


def pooled(spreads: Iterable[Spread]) -> Spread:
    """The spread of all samples together: count, mean, least and most are exact, the other
    quantiles as near as 21 quantiles of each allow."""
    some = [spread for spread in spreads if spread.count]
    if len(some) < 2:
        return some[0] if some else Spread()
    total = sum(spread.count for spread in some)
    mean = sum(spread.count * spread.mean for spread in some) / total
    places = (np.arange(_POINTS) + 0.5) * (100.0 / _POINTS)
    values = np.concatenate([np.interp(places, QUANTILES, s.quantiles) for s in some])
    weights = np.repeat([s.count / total / _POINTS for s in some], _POINTS)
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    shares = 100.0 * (np.cumsum(weights) - weights / 2)
    marks = np.interp(QUANTILES, shares, values)
    marks[0] = min(spread.quantiles[0] for spread in some)
    marks[-1] = max(spread.quantiles[-1] for spread in some)
    return Spread(total, mean, tuple(map(float, marks)))


AUTO = "auto"
DIMENSIONS = ("x", "y", "z", "rx", "ry", "rz", "gripper")


@dataclass(frozen=True, slots=True)
class Successes:
    """Successes among episodes; never without an episode."""

    successes: int
    episodes: int

    @property
    def rate(self) -> float:
        return self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval."""
        return wilson(self.successes, self.episodes)

    @staticmethod
    def of(records: Sequence[Record]) -> Successes:
        return Successes(sum(r.success for r in records), len(records))


@dataclass(frozen=True, slots=True)
class Drafts:
    """Draft tokens of some episodes: as in a record, summed. ``passes`` an action, shared by all
    that they serve, None unknown."""

    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    passes: float | None

    @property
    def acceptance(self) -> tuple[float | None, ...]:
        """Share of the drafted tokens that were accepted, per dimension; () without drafts."""
        pairs = zip(self.accepted, self.drafted, strict=False)
        return tuple(a / d if d else None for a, d in pairs)

    @property
    def acceptance_all(self) -> float | None:
        """Share of accepted tokens over all dimensions."""
        return sum(self.accepted) / sum(self.drafted) if sum(self.drafted) else None

    @staticmethod
    def of(records: Sequence[Record]) -> Drafts:
        served, passes = sum(r.served for r in records), sum(r.passes for r in records)
        return Drafts(
            _sums(r.drafted for r in records),
            _sums(r.accepted for r in records),
            passes / served if served and passes else None,
        )


@dataclass(frozen=True, slots=True)
class VariantRow:
    """One variant. Rates in Hz, spreads in ms over all frames or actions of all its episodes; those
    of ``begun``, ``seam`` and ``jerk`` as in a record.

    ``steps``: median of the solved episodes, in actions, None without one. ``same``: episodes with
    the same executed commands as the first variant's, and episodes that both have. ``solved``: the
    drafts of the solved episodes; a policy that fails often repeats itself, which is easy to draft.
    ``conditioning_delay``: that the policy was conditioned on, in action periods.
    ``decoding``: how its frames were decoded, which "auto" leaves open.
    """

    variant: Variant
    decoding: str
    all: Successes
    groups: Mapping[str, Successes]
    tasks: Mapping[str, Successes]
    age: Spread
    staleness: Spread
    inference: Spread
    rate_hz: float
    steps: float | None
    held: float  # share of the steps
    drafts: Drafts
    solved: Drafts
    same: tuple[int, int]
    conditioning_delay: Spread = Spread()
    begun: Spread = Spread()
    seam: Spread = Spread()
    jerk: Spread = Spread()

    @property
    def name(self) -> str:
        """The variant's label, and the decoding that was picked where it says "auto"."""
        picked = self.variant.decoding == AUTO and self.decoding != AUTO
        return f"{self.variant.label} ({self.decoding})" if picked else self.variant.label


_Key = tuple[str, int, int, str]


def _key(record: Record) -> _Key:
    """Which episode it is, whatever the variant."""
    job = record.job
    return job.task, job.initial_state, job.seed, job.instruction


def rows_of(
    variants: Iterable[Variant], records: Sequence[Record], other: str = "all tasks"
) -> tuple[VariantRow, ...]:
    """One row for every variant with a record, in the order of ``variants``.

    ``other`` is the group of tasks that belong to no family.
    """
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda r: r.job.number):
        found.setdefault(record.job.variant, []).append(record)
    shown = [(variant, found[variant.label]) for variant in variants if variant.label in found]
    first = {_key(r): r.action_digest for r in shown[0][1]} if shown else {}
    return tuple(_row(variant, own, first, other) for variant, own in shown)


def _row(
    variant: Variant, records: Sequence[Record], first: Mapping[_Key, str], other: str
) -> VariantRow:
    steps = sum(r.steps for r in records)
    seconds = sum(r.wall_s for r in records if r.rate_hz)
    both = [r for r in records if first.get(_key(r)) and r.action_digest]
    return VariantRow(
        variant=variant,
        decoding=next((r.decoding for r in records if r.decoding), variant.decoding),
        all=Successes.of(records),
        groups=_outcomes(records, lambda r: group_of(r.job.task, other)),
        tasks=_outcomes(records, lambda r: r.job.task),
        age=pooled(r.age_ms for r in records),
        staleness=pooled(r.staleness_ms for r in records),
        inference=pooled(r.inference_ms for r in records),
        rate_hz=sum(r.rate_hz * r.wall_s for r in records) / seconds if seconds else 0.0,
        steps=median([r.steps for r in records if r.success] or [0]) or None,
        held=sum(r.held for r in records) / steps if steps else 0.0,
        drafts=Drafts.of(records),
        solved=Drafts.of([r for r in records if r.success]),
        same=(sum(first[_key(r)] == r.action_digest for r in both), len(both)),
        conditioning_delay=pooled(r.conditioning_delay for r in records),
        begun=pooled(r.begun for r in records),
        seam=pooled(r.seam for r in records),
        jerk=pooled(r.jerk for r in records),
    )


def _outcomes(records: Iterable[Record], of: Callable[[Record], str]) -> dict[str, Successes]:
    """Outcome of every group or task: families from easy to hard, else as they were played."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(of(record), []).append(record)
    return {name: Successes.of(found[name]) for name in sorted(found, key=difficulty)}


def plain(name: str) -> str:
    """A task's or variant's name as a reader wants it."""
    return name.replace("_", " ").replace(",", ", ")


def difficulty(name: str) -> int:
    """Rank of a family or a task: easier ones have a smaller number, those without a family the
    largest."""
    group = group_of(name) or name
    return FAMILIES.index(group) if group in FAMILIES else len(FAMILIES)


def _sums(counts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Element by element; shorter ones count as having zeros."""
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))


# Sweeps: variants that differ in one number only, in the order of that number.


@dataclass(frozen=True, slots=True)
class Kind:
    """A number that can be swept: its field, and its label in a title, on an axis, at a point."""

    field: str
    title: str
    axis: str
    point: str


DELAY = Kind("delay_frames", "Delay sweep", "delay of the observation, actions", "delay {}")
IMAGE_DELAY = Kind("image_delay_ms", "Delay sweep", "delay of every image, ms", "+{} ms")
RELAXED = Kind(
    "relaxed_distance", "Relaxed acceptance", "relaxed distance r, bins (0: exact)", "r {}"
)
REPLAN = Kind(
    "replan_interval", "Replan interval", "replan interval S, actions executed of a chunk", "S {}"
)
KINDS = (DELAY, IMAGE_DELAY, RELAXED, REPLAN)


@dataclass(frozen=True, slots=True)
class Sweep:
    """``rows`` in the order of the swept number; ``rows[0]`` has the smallest one."""

    kind: Kind
    rows: tuple[VariantRow, ...]

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(value(self.kind, row.variant) for row in self.rows)

    @property
    def positions(self) -> tuple[float, ...]:
        """Positions of the points on an axis: the values, or evenly where they double."""
        if self.kind is REPLAN:
            return tuple(float(i) for i in range(len(self.rows)))
        return self.values

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the values on the axis."""
        shown = [f"{v:g}" for v in self.values]
        return tuple("all" if v == "inf" else v for v in shown)

    def label(self, row: VariantRow) -> str:
        """Label of a point of the curve."""
        return self.kind.point.format(self.labels[self.rows.index(row)])

    @property
    def name(self) -> str:
        """The decoding that the variants share."""
        first = self.rows[0].variant
        return first.decoding or first.label


def value(kind: Kind, variant: Variant) -> float:
    """The swept number. Replan interval 0 executes all of a chunk: more than any number."""
    number = float(getattr(variant, kind.field))
    return float("inf") if kind is REPLAN and number == 0 else number


def _shared(variant: Variant, kind: Kind) -> Variant:
    """The variant without its name and without the swept number."""
    zero: dict[str, Any] = {kind.field: 0}
    return replace(variant, label="-", **zero)


def sweeps(rows: Sequence[VariantRow], kind: Kind) -> list[Sweep]:
    """Every set of two or more variants that differ in ``kind`` only; exact acceptance is r = 0.

    Of variants that are the same but for their label, the first counts.
    """
    found: dict[Variant, dict[float, VariantRow]] = {}
    for row in rows:
        shared = _shared(row.variant, kind)
        if kind is RELAXED:
            if row.variant.acceptance not in ("exact", "relaxed"):
                continue
            shared = replace(shared, acceptance="exact")
        found.setdefault(shared, {}).setdefault(value(kind, row.variant), row)
    return [
        Sweep(kind, tuple(row for _, row in sorted(points.items(), key=lambda p: p[0])))
        for points in found.values()
        if len(points) > 1
    ]


# The figures of an evaluation as JSON: summary.json and the last line of `--json`. Pure.


def summary(
    setup: Setup, variants: Sequence[Variant], records: Sequence[Record], command: str = ""
) -> dict[str, Any]:
    """Everything, with the first variant's figures on top and each variant's in ``variants``.

    ``success_rate`` and ``wilson95`` are shares of 1, null without an episode; spreads in ms, those
    of ``seam`` and ``jerk`` in m and rad; null where there were none.
    """
    rows = rows_of(variants, records, setup.suite)
    own = {row.variant.label: _figures(row, records) for row in rows}
    first = next(iter(own.values()), {"success_rate": None, "wilson95": None, "episodes": 0})
    return {
        **first,
        "mode": setup.mode.value,
        "route": setup.route,
        "environment": setup.environment,
        "suite": setup.suite,
        "policy": setup.policy,
        "checkpoint": setup.checkpoint,
        "checkpoint_sha256": setup.checkpoint_sha256,
        "device": setup.device,
        "dtype": setup.dtype,
        "weights": setup.weights,
        "embodiment": setup.embodiment,
        "engine_options": list(setup.engine_options),
        "adaptation": list(setup.adaptation),
        "seed": setup.seed,
        "world": setup.world,
        "note": setup.note,
        "command": command,
        "variants": own,
    }


def _figures(row: VariantRow, records: Sequence[Record]) -> dict[str, Any]:
    own = [record for record in records if record.job.variant == row.variant.label]
    failed = Counter(record.reason for record in own if not record.success)
    return {
        **_outcome(row.all),
        "by_group": _outcome_counts(row.groups),
        "by_task": _outcome_counts(row.tasks),
        "decoding": row.decoding,
        "decoding_asked": row.variant.decoding,
        "variant": row.variant.label,
        "observation_age_ms": _spread(row.age),
        "staleness_ms": _spread(row.staleness) if row.staleness.count else None,
        "conditioning_delay": _spread(row.conditioning_delay)
        if row.conditioning_delay.count
        else None,
        "begun": _spread(row.begun) if row.begun.count else None,
        "seam": _spread(row.seam, 6) if row.seam.count else None,
        "jerk": _spread(row.jerk, 6) if row.jerk.count else None,
        "inference_ms": _spread(row.inference),
        "rate_hz": round(row.rate_hz, 3),
        "steps": row.steps,
        "held": round(row.held, 4),
        **_drafts(row.drafts),
        "solved_only": _drafts(row.solved),
        "same_actions": list(row.same),
        "failures": dict(failed.most_common()),
    }


def _drafts(drafts: Drafts) -> dict[str, Any]:
    return {
        "passes": None if drafts.passes is None else round(drafts.passes, 3),
        "drafted": list(drafts.drafted),
        "accepted": list(drafts.accepted),
        "acceptance": [None if a is None else round(a, 4) for a in drafts.acceptance],
    }


def _outcome_counts(outcomes: Mapping[str, Successes]) -> dict[str, Any]:
    return {name: _outcome(outcome) for name, outcome in outcomes.items()}


def _outcome(outcome: Successes) -> dict[str, Any]:
    return {
        "success_rate": round(outcome.rate, 4),
        "wilson95": [round(end, 4) for end in outcome.interval],
        "episodes": outcome.episodes,
        "successes": outcome.successes,
    }


def _spread(spread: Spread, digits: int = 3) -> dict[str, float]:
    marks = {"mean": spread.mean, "p50": spread.p50, "p95": spread.p95, "max": spread.quantile(100)}
    return {name: round(value, digits) for name, value in marks.items()}
