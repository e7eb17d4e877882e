"""Sweeps: variants that differ in one number only, in the order of that number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vla_ros.evaluation.records import Variant
from vla_ros.evaluation.rows import Row


@dataclass(frozen=True, slots=True)
class Kind:
    """A number that can be swept: its field, and how a title, an axis and a point call it."""

    field: str
    title: str
    axis: str
    point: str


DELAY = Kind("delay_frames", "Delay sweep", "delay of the observation, control steps", "delay {}")
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
    rows: tuple[Row, ...]

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(value(self.kind, row.variant) for row in self.rows)

    @property
    def places(self) -> tuple[float, ...]:
        """Where the points stand on an axis: the values, or evenly where they double."""
        if self.kind is REPLAN:
            return tuple(float(i) for i in range(len(self.rows)))
        return self.values

    @property
    def labels(self) -> tuple[str, ...]:
        """How the axis calls the values."""
        shown = [f"{v:g}" for v in self.values]
        return tuple("all" if v == "inf" else v for v in shown)

    def label(self, row: Row) -> str:
        """How a point of the curve is called."""
        return self.kind.point.format(self.labels[self.rows.index(row)])

    @property
    def name(self) -> str:
        """What the variants share."""
        first = self.rows[0].variant
        return first.schedule or first.label


def value(kind: Kind, variant: Variant) -> float:
    """The swept number. Replan interval 0 executes all of a chunk: more than any number."""
    number = float(getattr(variant, kind.field))
    return float("inf") if kind is REPLAN and number == 0 else number


def _shared(variant: Variant, kind: Kind) -> Variant:
    """The variant without its name and without the swept number."""
    zero: dict[str, Any] = {kind.field: 0}
    return replace(variant, label="-", **zero)


def sweeps(rows: Sequence[Row], kind: Kind) -> list[Sweep]:
    """Every set of two or more variants that differ in ``kind`` only; exact acceptance is r = 0.

    Of variants that are the same but for their label, the first counts.
    """
    found: dict[Variant, dict[float, Row]] = {}
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
