"""Chunks that come late: success and the jump at their seams against the delay, a line an
execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from markupsafe import Markup

from vla_ros.evaluation.records import Variant
from vla_ros.evaluation.report.figures.canvas import (
    INK,
    SIZE,
    panels,
    styles,
    success_axis,
    svg,
    title,
)
from vla_ros.evaluation.report.figures.labels import Label, end_labels
from vla_ros.evaluation.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Lines = Mapping[str, Sequence[Row]]


def late_lines(rows: Sequence[Row]) -> Lines:
    """Executions by name, each with its rows in the order of their delay; {} without two executions
    and two delays. S may go along with the delay; of rows that differ in S alone the first counts.
    """
    found: dict[str, dict[int, Row]] = {}
    shared: Variant | None = None
    for row in rows:
        variant = row.variant
        own = _shared(variant)
        shared = shared or own
        if own == shared:
            exact = variant.execution == "rtc" and variant.rtc_jacobian == "true"
            name = variant.execution + (", true Jacobian" if exact else "")
            found.setdefault(name, {}).setdefault(variant.delay_frames, row)
    delays = {delay for own_rows in found.values() for delay in own_rows}
    if len(found) < 2 or len(delays) < 2:
        return {}
    return {name: [own_rows[d] for d in sorted(own_rows)] for name, own_rows in found.items()}


def _shared(variant: Variant) -> Variant:
    """Without what may differ."""
    return replace(
        variant, label="-", execution="sync", rtc_jacobian="identity", replan_interval=0,
        delay_frames=0,
    )  # fmt: skip


def late_figure(rows: Sequence[Row]) -> Markup:
    """As SVG; empty where there is nothing to compare."""
    lines = late_lines(rows)
    if not lines:
        return Markup()
    figure, (left, right) = panels(2, height=3.6)
    _success(left, lines)
    _seams(right, lines)
    delays = sorted({row.variant.delay_frames for own in lines.values() for row in own})
    for axes in (left, right):
        axes.set_xticks(delays)
        axes.set_xlim(delays[0] - 0.3, delays[-1] + 0.3)
        axes.set_xlabel("delay of a chunk, control steps", fontsize=SIZE, color=INK)
    return svg(figure, "Success and seam jump against the delay of chunks, a line an execution")


def _success(axes: Axes, lines: Lines) -> None:
    """Of all tasks, with 95 % intervals."""
    success_axis(axes)
    title(axes, "Success, all tasks (95 % interval)")
    look, labels = styles(list(lines)), []
    for name, rows in lines.items():
        at = [row.variant.delay_frames for row in rows]
        rates = [row.all.rate for row in rows]
        low = [row.all.rate - row.all.interval[0] for row in rows]
        high = [row.all.interval[1] - row.all.rate for row in rows]
        style = look[name]
        axes.errorbar(at, rates, (low, high), fmt=f"-{style.marker}", color=style.colour, lw=1.5,
                      ms=4.5, elinewidth=0.8, capsize=2)  # fmt: skip
        labels.append(Label(at[-1], rates[-1], ((name, style.colour),)))
    end_labels(axes, labels)


def _seams(axes: Axes, lines: Lines) -> None:
    """The median jump, and a band from 5 to 95 %; who stands still between chunks has none."""
    title(axes, "Jump at the seam of two chunks, mm and mrad (median, 5 to 95 %)")
    look, labels, top = styles(list(lines)), [], 0.0
    for name, rows in lines.items():
        seen = [row for row in rows if row.seam.count]
        if not seen:
            continue
        at, style = [row.variant.delay_frames for row in seen], look[name]
        low, middle, high = (
            [1e3 * row.seam.quantile(percent) for row in seen] for percent in (5, 50, 95)
        )
        axes.fill_between(at, low, high, color=style.colour, alpha=0.1, lw=0)
        axes.plot(at, middle, f"-{style.marker}", color=style.colour, lw=1.5, ms=4.5)
        labels.append(Label(at[-1], middle[-1], ((name, style.colour),)))
        top = max(top, *high)
    axes.set_ylim(0, 1.08 * top or 1.0)
    if labels:
        end_labels(axes, labels)
