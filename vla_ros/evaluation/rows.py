"""The figures of every variant, as the report shows them: computed once from the records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median

from vla_ros.evaluation.plan import FAMILIES, group_of
from vla_ros.evaluation.records import Record, Spread, Variant
from vla_ros.evaluation.statistics import pooled, wilson

AUTO = "auto"
DIMENSIONS = ("x", "y", "z", "rx", "ry", "rz", "gripper")


@dataclass(frozen=True, slots=True)
class Outcome:
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
    def of(records: Sequence[Record]) -> Outcome:
        return Outcome(sum(r.success for r in records), len(records))


@dataclass(frozen=True, slots=True)
class Drafts:
    """What some episodes drafted: as in a record, summed. ``passes`` an action, shared by all that
    they serve, None unknown."""

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
        """The same over all dimensions."""
        return sum(self.accepted) / sum(self.drafted) if sum(self.drafted) else None

    @staticmethod
    def of(records: Sequence[Record]) -> Drafts:
        served, passes = sum(r.served or r.frames for r in records), sum(r.passes for r in records)
        return Drafts(
            _sums(r.drafted for r in records),
            _sums(r.accepted for r in records),
            passes / served if served and passes else None,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One variant. Rates in Hz, spreads in ms over all frames or actions of all its episodes; those
    of ``begun``, ``seam`` and ``jerk`` as in a record.

    ``steps``: median of the solved episodes, None without one. ``same``: episodes with the same
    executed actions as the first variant's, and episodes that both have. ``solved``: the drafts
    of the solved episodes; a policy that fails often repeats itself, which is easy to draft.
    ``told``: delays that the policy was told, in control periods.
    ``schedule``: how its frames were decoded, which "auto" leaves open.
    """

    variant: Variant
    schedule: str
    all: Outcome
    groups: Mapping[str, Outcome]
    tasks: Mapping[str, Outcome]
    age: Spread
    staleness: Spread
    inference: Spread
    rate_hz: float
    steps: float | None
    held: float  # share of the steps
    drafts: Drafts
    solved: Drafts
    same: tuple[int, int]
    told: Spread = Spread()
    begun: Spread = Spread()
    seam: Spread = Spread()
    jerk: Spread = Spread()

    @property
    def name(self) -> str:
        """The variant's label, and the schedule that was picked where it says "auto"."""
        picked = self.variant.schedule == AUTO and self.schedule != AUTO
        return f"{self.variant.label} ({self.schedule})" if picked else self.variant.label


_Key = tuple[str, int, int, str]


def _key(record: Record) -> _Key:
    """Which episode it is, whatever the variant."""
    job = record.job
    return job.task, job.initial_state, job.seed, job.instruction


def rows_of(
    variants: Iterable[Variant], records: Sequence[Record], other: str = "all tasks"
) -> tuple[Row, ...]:
    """One row for every variant with a record, in the order of ``variants``.

    ``other`` is the group of tasks that belong to no family.
    """
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda r: r.job.number):
        found.setdefault(record.job.variant, []).append(record)
    shown = [(variant, found[variant.label]) for variant in variants if variant.label in found]
    first = {_key(r): r.action_digest for r in shown[0][1]} if shown else {}
    return tuple(_row(variant, own, first, other) for variant, own in shown)


def _row(variant: Variant, records: Sequence[Record], first: Mapping[_Key, str], other: str) -> Row:
    steps = sum(r.steps for r in records)
    seconds = sum(r.wall_s for r in records if r.rate_hz)
    both = [r for r in records if first.get(_key(r)) and r.action_digest]
    return Row(
        variant=variant,
        schedule=next((r.schedule for r in records if r.schedule), variant.schedule),
        all=Outcome.of(records),
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
        told=pooled(r.told_delay for r in records),
        begun=pooled(r.begun for r in records),
        seam=pooled(r.seam for r in records),
        jerk=pooled(r.jerk for r in records),
    )


def _outcomes(records: Iterable[Record], of: Callable[[Record], str]) -> dict[str, Outcome]:
    """Outcome of every group or task: families from easy to hard, else as they were played."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(of(record), []).append(record)
    return {name: Outcome.of(found[name]) for name in sorted(found, key=difficulty)}


def plain(name: str) -> str:
    """A task's or variant's name as a reader wants it."""
    return name.replace("_", " ").replace(",", ", ")


def difficulty(name: str) -> int:
    """Of a family or a task: easier ones have a smaller number; what has no family the same."""
    group = group_of(name) or name
    return FAMILIES.index(group) if group in FAMILIES else len(FAMILIES)


def _sums(counts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Element by element; shorter ones count as having zeros."""
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))
