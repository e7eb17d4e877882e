"""What a sweep does: success along it, beside the acceptance of drafts or the age it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from vla_ros.analysis.plots import COLOURS
from vla_ros.evaluation.report.figures.canvas import (
    INK,
    SIZE,
    drawn,
    panels,
    success_axis,
    svg,
    title,
)
from vla_ros.evaluation.report.figures.labels import Label, end_labels
from vla_ros.evaluation.report.sweeps import RELAXED, Sweep
from vla_ros.evaluation.rows import DIMENSIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def sweep_figure(sweep: Sweep) -> Markup:
    """Success of all tasks with its interval and of every group; beside it what it comes from."""
    figure, axes = panels(2, height=3.4)
    _success(axes[0], sweep)
    if sweep.kind is RELAXED:
        _acceptance(axes[1], sweep)
    else:
        _ages(axes[1], sweep)
    first, last = sweep.places[0], sweep.places[-1]
    for one in axes:
        one.set_xticks(sweep.places, sweep.labels)
        one.set_xlim(first - 0.03 * (last - first), last + 0.03 * (last - first))
        one.set_xlabel(sweep.kind.axis, fontsize=SIZE, color=INK)
    return svg(figure, f"Success against {sweep.kind.axis}, {sweep.name}")


def _success(axes: Axes, sweep: Sweep) -> None:
    success_axis(axes)
    title(axes, "Success")
    rows, places = sweep.rows, sweep.places
    low, high = zip(*(row.all.interval for row in rows), strict=True)
    axes.fill_between(places, low, high, color=INK, alpha=0.1, lw=0)
    labels = []
    groups = list(dict.fromkeys(group for row in rows for group in row.groups))
    for group, colour in zip(groups if len(groups) > 1 else (), COLOURS, strict=False):
        rates = [row.groups[group].rate if group in row.groups else None for row in rows]
        if (end := _line(axes, places, rates, "-", colour)) is not None:
            labels.append(Label(places[-1], end[1], ((drawn(group), colour),)))
    axes.plot(places, [row.all.rate for row in rows], "-o", color=INK, lw=2.0, ms=5)
    labels.append(Label(places[-1], rows[-1].all.rate, (("all", INK),), bold=True))
    end_labels(axes, labels)


def _acceptance(axes: Axes, sweep: Sweep) -> None:
    """Of every dimension; named at the left, where exact acceptance tells them apart."""
    success_axis(axes)
    title(axes, "Drafted tokens that were accepted (same scale)")
    axes.tick_params(labelleft=False)
    labels = []
    for d, (name, colour) in enumerate(zip(DIMENSIONS, COLOURS, strict=True)):
        found = [row.drafts.acceptance for row in sweep.rows]
        shares = [own[d] if d < len(own) else None for own in found]
        dashes = "--" if name in ("rx", "ry", "rz") else "-"
        if (ends := _line(axes, sweep.places, shares, dashes, colour)) is not None:
            labels.append(Label(sweep.places[0], ends[0], ((name, colour),)))
    end_labels(axes, labels, left=True)


def _line(
    axes: Axes,
    places: Sequence[float],
    values: Sequence[float | None],
    dashes: str,
    colour: str,
) -> tuple[float, float] | None:
    """A curve through the values there are; the first and the last of them."""
    seen = [(x, y) for x, y in zip(places, values, strict=True) if y is not None]
    if not seen:
        return None
    axes.plot([x for x, _ in seen], [y for _, y in seen], dashes, marker="o", color=colour,
              lw=1.2, ms=3)  # fmt: skip
    return seen[0][1], seen[-1][1]


def _ages(axes: Axes, sweep: Sweep) -> None:
    """The ages that the sweep brought about: the median, and a band from 5 to 95 %."""
    acted = [(x, row.age) for x, row in zip(sweep.places, sweep.rows, strict=True) if row.age.count]
    places = [x for x, _ in acted]
    low = [age.quantile(5) for _, age in acted]
    high = [age.quantile(95) for _, age in acted]
    axes.fill_between(places, low, high, color=COLOURS[0], alpha=0.15, lw=0)
    axes.plot(places, [age.p50 for _, age in acted], "-o", color=COLOURS[0], lw=1.5, ms=4)
    axes.set_ylim(0, 1.1 * max(high, default=1.0) or 1.0)
    title(axes, "Age of the observation, ms (median, 5 to 95 %)")
