"""Success and rate against the age of the evidence: one point a variant, sweeps as curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from markupsafe import Markup

from vla_ros.evaluation.report.figures.canvas import (
    SIZE,
    SOFT,
    Style,
    drawn,
    panels,
    styles,
    success_axis,
    svg,
    title,
)
from vla_ros.evaluation.report.figures.labels import Label, place
from vla_ros.evaluation.report.sweeps import KINDS, Sweep, sweeps
from vla_ros.evaluation.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMED = 6  # points of a curve that are named at most, about
_NARROW = 0.04  # of the axis: a curve that spans less
_LINES = 6  # of a label
_NEAR = 0.012  # of the axis: points closer than this share a label


@dataclass(frozen=True, slots=True)
class _Point:
    """A variant in a panel, drawn where it was measured: ``x`` is its age."""

    row: Row
    x: float
    y: float
    words: str
    of_curve: bool


def age_figure(rows: Sequence[Row]) -> Markup:
    """The figure as SVG; empty when fewer than two variants acted."""
    shown = [row for row in rows if row.age.count]
    if len(shown) < 2:
        return Markup()
    figure, (left, right) = panels(2, height=4.2)
    look = styles([schedule_of(row) for row in shown])
    curves = [sweep for kind in KINDS for sweep in sweeps(shown, kind)]
    ages = [row.age.p50 for row in shown]
    span = max(max(ages) - min(ages), 0.2 * max(ages), 50.0)
    # No age is below 0; room for half a point there.
    low, high = max(min(ages) - 0.1 * span, -0.02 * span), max(ages) + 0.22 * span
    names = [_words(row, curves, high - low) for row in shown]
    for axes, heights in (
        (left, [row.all.rate for row in shown]),
        (right, [row.rate_hz for row in shown]),
    ):
        axes.set_xlim(low, high)
        axes.set_xlabel("age of the observation behind an action, ms (median)", fontsize=SIZE)
        points = [
            _Point(row, x, y, *name)
            for row, x, y, name in zip(shown, ages, heights, names, strict=True)
        ]
        if axes is left:
            success_axis(left)
            title(left, "Success against age")
        else:
            right.set_ylim(0, 1.25 * max(heights) or 1.0)
            title(right, "Rate against age: new actions a second")
        axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= high])
        _draw(axes, points, curves, look, whiskers=axes is left)
        _name(axes, points, curves, look)
    return svg(figure, "Success and rate against the age of the observation, a point a variant")


def schedule_of(row: Row) -> str:
    """What decides the colour of a variant."""
    return row.schedule or row.variant.label


def _narrow(curve: Sweep, width: float) -> bool:
    """Whether a curve goes straight up or down."""
    ages = [row.age.p50 for row in curve.rows]
    return max(ages) - min(ages) < _NARROW * width


def _words(row: Row, curves: Sequence[Sweep], width: float) -> tuple[str, bool]:
    """How a point is called, "" not at all; and whether it goes on with a curve.

    Of a narrow curve only the end is named.
    """
    for curve in curves:
        if row in curve.rows[1:]:
            place_, last = curve.rows.index(row), len(curve.rows) - 1
            every = last if _narrow(curve, width) else -(-last // _NAMED)
            return (curve.label(row) if (last - place_) % every == 0 else ""), True
    return drawn(row.variant.label), False


def _draw(
    axes: Axes,
    points: Sequence[_Point],
    curves: Sequence[Sweep],
    look: dict[str, Style],
    whiskers: bool,
) -> None:
    at = {point.row.variant.label: point for point in points}
    for curve in curves:
        chain = [at[row.variant.label] for row in curve.rows]
        colour = look[schedule_of(curve.rows[0])].colour
        axes.plot([p.x for p in chain], [p.y for p in chain], "-", color=colour, lw=1.1, alpha=0.6)
    for point in points:
        style = look[schedule_of(point.row)]
        if whiskers:
            axes.plot([point.x] * 2, point.row.all.interval, "-", color=style.colour, lw=1.0,
                      alpha=0.5)  # fmt: skip
        axes.plot(point.x, point.y, style.marker, color=style.colour, ms=6.5, mec="white",
                  mew=0.6, zorder=4, clip_on=False)  # fmt: skip


def _name(
    axes: Axes, points: Sequence[_Point], curves: Sequence[Sweep], look: dict[str, Style]
) -> None:
    """Labels, the full names first; points that lie together share one."""
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    groups: list[list[_Point]] = []
    for point in sorted(points, key=lambda p: p.of_curve):
        if not point.words:
            continue
        for group in groups:
            away = max(
                abs(group[-1].x - point.x) / (x1 - x0),
                abs(group[-1].y - point.y) / (y1 - y0),
            )
            if away < _NEAR and point.of_curve == group[0].of_curve:
                group.append(point)
                break
        else:
            groups.append([point])
    labels = []
    for group in groups:
        lines = [(p.words, look[schedule_of(p.row)].colour) for p in group]
        more = [(f"and {len(lines) - _LINES} more", SOFT)] if len(lines) > _LINES else []
        shown = (*lines[:_LINES], *more)
        labels.append(Label(group[-1].x, group[-1].y, shown, optional=group[0].of_curve))
    place(axes, labels, [(p.x, p.y) for p in points] + _along(points, curves))


def _along(points: Sequence[_Point], curves: Sequence[Sweep]) -> list[tuple[float, float]]:
    """Places along the curves, for labels to keep clear of."""
    at = {point.row.variant.label: point for point in points}
    found = []
    for curve in curves:
        chain = [at[row.variant.label] for row in curve.rows]
        for a, b in pairwise(chain):
            found += [(a.x + (b.x - a.x) * t, a.y + (b.y - a.y) * t) for t in (0.2, 0.4, 0.6, 0.8)]
    return found
