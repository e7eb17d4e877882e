"""Matplotlib figures as SVG inside a page, and labels that do not lie on each other."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from vla_ros.data.episodes.records import Spread, Variant
from vla_ros.data.episodes.rows import DIMENSIONS, KINDS, RELAXED, Sweep, VariantRow, plain, sweeps
from vla_ros_lab.roofline.plots import COLORS, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


INK, SOFT, RULE = "#1f2933", "#52606d", "#cbd2d9"
SIZE = 9.0  # of the letters, pt
_FAMILY = 'system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif'.replace('"', "'")


@dataclass(frozen=True, slots=True)
class Style:
    """How one series is drawn."""

    color: str
    marker: str


def styles(names: Sequence[str]) -> dict[str, Style]:
    """A color and a marker for every different name, in order."""
    pairs = zip(COLORS, MARKERS, strict=True)
    cycle = [Style(color, marker) for color, marker in pairs]
    return {name: cycle[i % len(cycle)] for i, name in enumerate(dict.fromkeys(names))}


def available() -> bool:
    """Whether matplotlib can be imported."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def panels(
    count: int, width: float = 11.2, height: float = 3.5, same_rows: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` panels in a row (inches); it needs no display.

    ``same_rows``: the panels have the same vertical axis, named once.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(1, count, squeeze=False, sharey=same_rows)
    axes = list(grid[0])
    for one in axes:
        one.xaxis.label.set_color(INK)
        for side in ("top", "right"):
            one.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            one.spines[side].set_color(SOFT)
        one.tick_params(colors=SOFT, labelcolor=INK, labelsize=SIZE, length=3)
        one.grid(color="#e4e7eb", lw=0.6)
        one.set_axisbelow(True)
    return figure, axes


def drawn(name: str) -> str:
    """A name as a figure shows it: a dollar sign begins no formula."""
    return plain(name).replace("$", r"\$")


def title(axes: Axes, words: str) -> None:
    """The panel's name, above its left end."""
    axes.set_title(words, loc="left", fontsize=SIZE + 0.5, fontweight="bold", color=INK)


def success_axis(axes: Axes) -> None:
    """The vertical axis as 0 to 100 %."""
    axes.set_ylim(-0.02, 1.03)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0], ["0", "20", "40", "60", "80", "100 %"])


def logarithmic(axes: Axes) -> None:
    """The horizontal axis in factors of ten, said as 10, 100, 1000."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def svg(figure: Figure, says: str) -> Markup:
    """The figure as an ``<svg>`` element; ``says`` describes it to who cannot see it."""
    import matplotlib

    buffer = io.StringIO()
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": "vla_ros"}
    with matplotlib.rc_context(options):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    picture = buffer.getvalue()
    picture = picture[picture.index("<svg") :]
    picture = re.sub(r"<metadata>.*?</metadata>", "", picture, flags=re.DOTALL)
    picture = re.sub(r"'DejaVu Sans'[^;\"]*", _FAMILY, picture)
    used = set(re.findall(r"#([\w.-]+)", picture))
    picture = re.sub(  # ids that nothing refers to would be there once a figure
        r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", picture
    )
    return Markup(picture.replace("<svg", f'<svg role="img" aria-label="{escape(says)}"', 1))


# Words beside points, that do not lie on each other.


_LINE = 1.22 * (SIZE - 0.5)  # from one line of a label to the next, pt


@dataclass(frozen=True, slots=True)
class Label:
    """Words for the point (x, y) in the axes' data coordinates; each line has its color."""

    x: float
    y: float
    lines: tuple[tuple[str, str], ...]
    bold: bool = False
    optional: bool = False  # left out where there is no room


_CLOSE = 12  # of the sides are so close that the point is plain
_CROWDED = 250.0  # cost of a place, from which an optional label is left out
_Box = tuple[float, float, float, float]  # x0, y0, x1, y1 in pixels
_SIDES = (  # offset in pt, and which part of the label stands there
    (7, 0, "left", "center"), (-7, 0, "right", "center"), (6, 6, "left", "bottom"),
    (6, -6, "left", "top"), (-6, 6, "right", "bottom"), (-6, -6, "right", "top"),
    (0, 9, "center", "bottom"), (0, -9, "center", "top"), (14, 14, "left", "bottom"),
    (14, -14, "left", "top"), (-14, 14, "right", "bottom"), (-14, -14, "right", "top"),
    (20, 30, "left", "bottom"), (20, -30, "left", "top"), (-20, 30, "right", "bottom"),
    (-20, -30, "right", "top"), (28, 55, "left", "bottom"), (28, -55, "left", "top"),
)  # fmt: skip


def place(axes: Axes, labels: Sequence[Label], marks: Sequence[tuple[float, float]]) -> None:
    """Write each label beside its point, where it covers the least of what is there already.

    Call it last: it measures the finished layout. ``marks`` are points to keep clear.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.canvas.draw()
    dot = figure.dpi / 72
    inside = axes.get_window_extent()
    room = (inside.x0, inside.y0, inside.x1 + 6, inside.y1 + 10)
    points = [tuple(axes.transData.transform(mark)) for mark in marks]
    taken: list[_Box] = []
    for label in labels:
        anchor = tuple(axes.transData.transform((label.x, label.y)))
        width = max(_width(axes, words) for words, _ in label.lines)
        height = _LINE * len(label.lines) * dot
        sides = _SIDES[:_CLOSE] if label.optional else _SIDES
        boxes = [_box(anchor, side, width, height, dot) for side in sides]
        costs = [
            _cost(box, taken, points) + 300 * _outside(box, room) + 2 * rank
            for rank, box in enumerate(boxes)
        ]
        best = costs.index(min(costs))
        if label.optional and min(costs) > _CROWDED:
            continue
        taken.append(boxes[best])
        _write(axes, label, _SIDES[best])


def _width(axes: Axes, words: str) -> float:
    """Pixels that ``words`` take."""
    probe = axes.text(0, 0, words, fontsize=SIZE - 0.5)
    width = probe.get_window_extent().width
    probe.remove()
    return float(width)


def _box(
    anchor: Sequence[float],
    side: tuple[int, int, str, str],
    width: float,
    height: float,
    dot: float,
) -> _Box:
    dx, dy, across, up = side
    x0 = anchor[0] + dx * dot - {"left": 0.0, "center": 0.5, "right": 1.0}[across] * width
    y0 = anchor[1] + dy * dot - {"bottom": 0.0, "center": 0.5, "top": 1.0}[up] * height
    return x0, y0, x0 + width, y0 + height


def _write(axes: Axes, label: Label, side: tuple[int, int, str, str]) -> None:
    dx, dy, across, up = side
    lines = len(label.lines)
    top = dy + {"bottom": 1.0, "center": 0.5, "top": 0.0}[up] * lines * _LINE
    for i, (words, color) in enumerate(label.lines):
        axes.annotate(
            words, (label.x, label.y), (dx, top - (i + 0.5) * _LINE), color=color,
            textcoords="offset points", ha=across, va="center", fontsize=SIZE - 0.5,
            fontweight="bold" if label.bold else "normal", zorder=6, annotation_clip=False,
        )  # fmt: skip


def _outside(box: _Box, room: _Box) -> float:
    """Pixels that stick out."""
    across = max(room[0] - box[0], 0.0) + max(box[2] - room[2], 0.0)
    return across + max(room[1] - box[1], 0.0) + max(box[3] - room[3], 0.0)


def _cost(box: _Box, taken: Sequence[_Box], points: Sequence[Sequence[float]]) -> float:
    """Square pixels of other labels, and points, under the box."""
    x0, y0, x1, y1 = box
    covered = 0.0
    for a0, b0, a1, b1 in taken:
        covered += 3 * max(min(x1, a1) - max(x0, a0), 0) * max(min(y1, b1) - max(y0, b0), 0)
    near = sum(x0 - 3 <= px <= x1 + 3 and y0 - 3 <= py <= y1 + 3 for px, py in points)
    return covered + 90.0 * near


def end_labels(axes: Axes, labels: Sequence[Label], left: bool = False) -> None:
    """Write one-line labels beside the panel, pushed apart, each at the height of its point."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    low, high = axes.get_ylim()
    points = figure.get_size_inches()[1] * 72 * 0.78  # about what a panel is high
    step = (SIZE + 1.5) / points * (high - low)
    ordered = sorted(labels, key=lambda label: label.y)
    heights = spread_out([label.y for label in ordered], step, low, high)
    for label, height in zip(ordered, heights, strict=True):
        words, color = label.lines[0]
        axes.annotate(
            words, (-0.015 if left else 1.015, height), xycoords=axes.get_yaxis_transform(),
            annotation_clip=False, va="center", ha="right" if left else "left",
            fontsize=SIZE - 0.5, color=color,
            fontweight="bold" if label.bold else "normal",
        )  # fmt: skip


def spread_out(values: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """Ascending ``values`` moved as little as need be to be ``step`` apart and inside."""
    step = min(step, (high - low) / max(len(values) - 1, 1))
    blocks: list[tuple[float, int]] = []  # center and count of values that touch
    for wanted in values:
        center, count = wanted, 1
        while True:
            half = (count - 1) * step / 2
            center = min(max(center, low + half), high - half)
            if not blocks:
                break
            before, many = blocks[-1]
            if center - half - (before + (many - 1) * step / 2) >= step * (1 - 1e-9):
                break
            blocks.pop()
            center = (before * many + center * count) / (many + count)
            count += many
        blocks.append((center, count))
    return [center + (i - (count - 1) / 2) * step for center, count in blocks for i in range(count)]


# Success and rate against the observation age: one point a variant, sweeps as curves.


_NAMED = 6  # points of a curve that are named at most, about
_NARROW = 0.04  # of the axis: a curve that spans less
_LINES = 6  # of a label
_NEAR = 0.012  # of the axis: points closer than this share a label


@dataclass(frozen=True, slots=True)
class _Point:
    """A variant in a panel, drawn where it was measured: ``x`` is its age."""

    row: VariantRow
    x: float
    y: float
    words: str
    of_curve: bool


def age_figure(rows: Sequence[VariantRow]) -> Markup:
    """The figure as SVG; empty when fewer than two variants acted."""
    shown = [row for row in rows if row.age.count]
    if len(shown) < 2:
        return Markup()
    figure, (left, right) = panels(2, height=4.2)
    look = styles([decoding_of(row) for row in shown])
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


def decoding_of(row: VariantRow) -> str:
    """What decides the color of a variant."""
    return row.decoding or row.variant.label


def _narrow(curve: Sweep, width: float) -> bool:
    """Whether a curve goes straight up or down."""
    ages = [row.age.p50 for row in curve.rows]
    return max(ages) - min(ages) < _NARROW * width


def _words(row: VariantRow, curves: Sequence[Sweep], width: float) -> tuple[str, bool]:
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
        color = look[decoding_of(curve.rows[0])].color
        axes.plot([p.x for p in chain], [p.y for p in chain], "-", color=color, lw=1.1, alpha=0.6)
    for point in points:
        style = look[decoding_of(point.row)]
        if whiskers:
            axes.plot([point.x] * 2, point.row.all.interval, "-", color=style.color, lw=1.0,
                      alpha=0.5)  # fmt: skip
        axes.plot(point.x, point.y, style.marker, color=style.color, ms=6.5, mec="white",
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
        lines = [(p.words, look[decoding_of(p.row)].color) for p in group]
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


# What a sweep does: success along it, beside the acceptance of drafts or the age it costs.


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
    for group, color in zip(groups if len(groups) > 1 else (), COLORS, strict=False):
        rates = [row.groups[group].rate if group in row.groups else None for row in rows]
        if (end := _line(axes, places, rates, "-", color)) is not None:
            labels.append(Label(places[-1], end[1], ((drawn(group), color),)))
    axes.plot(places, [row.all.rate for row in rows], "-o", color=INK, lw=2.0, ms=5)
    labels.append(Label(places[-1], rows[-1].all.rate, (("all", INK),), bold=True))
    end_labels(axes, labels)


def _acceptance(axes: Axes, sweep: Sweep) -> None:
    """Of every dimension; named at the left, where exact acceptance tells them apart."""
    success_axis(axes)
    title(axes, "Drafted tokens that were accepted (same scale)")
    axes.tick_params(labelleft=False)
    labels = []
    for d, (name, color) in enumerate(zip(DIMENSIONS, COLORS, strict=True)):
        found = [row.drafts.acceptance for row in sweep.rows]
        shares = [own[d] if d < len(own) else None for own in found]
        dashes = "--" if name in ("rx", "ry", "rz") else "-"
        if (ends := _line(axes, sweep.places, shares, dashes, color)) is not None:
            labels.append(Label(sweep.places[0], ends[0], ((name, color),)))
    end_labels(axes, labels, left=True)


def _line(
    axes: Axes,
    places: Sequence[float],
    values: Sequence[float | None],
    dashes: str,
    color: str,
) -> tuple[float, float] | None:
    """A curve through the values there are; the first and the last of them."""
    seen = [(x, y) for x, y in zip(places, values, strict=True) if y is not None]
    if not seen:
        return None
    axes.plot([x for x, _ in seen], [y for _, y in seen], dashes, marker="o", color=color,
              lw=1.2, ms=3)  # fmt: skip
    return seen[0][1], seen[-1][1]


def _ages(axes: Axes, sweep: Sweep) -> None:
    """The ages that the sweep brought about: the median, and a band from 5 to 95 %."""
    acted = [(x, row.age) for x, row in zip(sweep.places, sweep.rows, strict=True) if row.age.count]
    places = [x for x, _ in acted]
    low = [age.quantile(5) for _, age in acted]
    high = [age.quantile(95) for _, age in acted]
    axes.fill_between(places, low, high, color=COLORS[0], alpha=0.15, lw=0)
    axes.plot(places, [age.p50 for _, age in acted], "-o", color=COLORS[0], lw=1.5, ms=4)
    axes.set_ylim(0, 1.1 * max(high, default=1.0) or 1.0)
    title(axes, "Age of the observation, ms (median, 5 to 95 %)")


# Chunks that come late: success and the jump at their seams against the delay, a line an
# execution.


Lines = Mapping[str, Sequence[VariantRow]]


def late_lines(rows: Sequence[VariantRow]) -> Lines:
    """Executions by name, each with its rows in the order of their delay; {} without two executions
    and two delays. S may go along with the delay; of rows that differ in S alone the first counts.
    """
    found: dict[str, dict[int, VariantRow]] = {}
    shared: Variant | None = None
    for row in rows:
        variant = row.variant
        own = _shared(variant)
        shared = shared or own
        if own == shared:
            exact = variant.execution == "rtc" and variant.rtc_mode == "guided_vjp"
            name = variant.execution + (", true Jacobian" if exact else "")
            found.setdefault(name, {}).setdefault(variant.delay_frames, row)
    delays = {delay for own_rows in found.values() for delay in own_rows}
    if len(found) < 2 or len(delays) < 2:
        return {}
    return {name: [own_rows[d] for d in sorted(own_rows)] for name, own_rows in found.items()}


def _shared(variant: Variant) -> Variant:
    """Without what may differ."""
    return replace(
        variant, label="-", execution="sync", rtc_mode="guided", replan_interval=0,
        delay_frames=0,
    )  # fmt: skip


def late_figure(rows: Sequence[VariantRow]) -> Markup:
    """As SVG; empty where there is nothing to compare."""
    lines = late_lines(rows)
    if not lines:
        return Markup()
    figure, (left, right) = panels(2, height=3.6)
    _late_success(left, lines)
    _seams(right, lines)
    delays = sorted({row.variant.delay_frames for own in lines.values() for row in own})
    for axes in (left, right):
        axes.set_xticks(delays)
        axes.set_xlim(delays[0] - 0.3, delays[-1] + 0.3)
        axes.set_xlabel("delay of a chunk, control steps", fontsize=SIZE, color=INK)
    return svg(figure, "Success and seam jump against the delay of chunks, a line an execution")


def _late_success(axes: Axes, lines: Lines) -> None:
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
        axes.errorbar(at, rates, (low, high), fmt=f"-{style.marker}", color=style.color, lw=1.5,
                      ms=4.5, elinewidth=0.8, capsize=2)  # fmt: skip
        labels.append(Label(at[-1], rates[-1], ((name, style.color),)))
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
        axes.fill_between(at, low, high, color=style.color, alpha=0.1, lw=0)
        axes.plot(at, middle, f"-{style.marker}", color=style.color, lw=1.5, ms=4.5)
        labels.append(Label(at[-1], middle[-1], ((name, style.color),)))
        top = max(top, *high)
    axes.set_ylim(0, 1.08 * top or 1.0)
    if labels:
        end_labels(axes, labels)


# How long inference took and how old the observation was: quantiles of every variant.


_LEAST = 1e-3  # ms: nobody measures less, and an axis has to begin somewhere


def times_figure(rows: Sequence[VariantRow]) -> Markup:
    """Inference time and age of every variant as bands of quantiles; empty without any."""
    shown = [row for row in rows if row.inference.count or row.age.count]
    if not shown:
        return Markup()
    figure, axes = panels(2, height=0.75 + 0.27 * len(shown), same_rows=True)
    names = [drawn(row.variant.label) for row in shown]
    _bands(axes[0], [row.inference for row in shown])
    title(axes[0], "Inference, ms a frame")
    _bands(axes[1], [row.age for row in shown])
    title(axes[1], "Age of the observation behind an action, ms")
    axes[0].set_yticks(range(len(shown)), names)
    axes[0].set_ylim(len(shown) - 0.45, -0.55)
    for one in axes:
        one.grid(axis="y", visible=False)
        one.tick_params(axis="y", length=0)
        one.spines["left"].set_visible(False)
    return svg(figure, "Inference time and age of the observation, quantiles of every variant")


def _bands(axes: Axes, spreads: Sequence[Spread]) -> None:
    """A line from 0 to 100 %, a bar from 5 to 95 %, a darker one from 25 to 75 %, the median."""
    top = max((s.quantile(100) for s in spreads if s.count), default=0.0) or 50.0
    for y, spread in enumerate(spreads):
        if not spread.count:
            axes.annotate("–", (0, y), va="center", fontsize=SIZE, color=SOFT)
            continue
        for low, high, width, alpha in ((0, 100, 0.8, 0.8), (5, 95, 7, 0.25), (25, 75, 7, 0.7)):
            ends = [spread.quantile(low), spread.quantile(high)]
            axes.plot(ends, [y, y], "-", color=COLORS[0], lw=width, alpha=alpha,
                      solid_capstyle="butt")  # fmt: skip
        axes.plot(spread.p50, y, "|", color=INK, ms=9, mew=1.8)
        axes.annotate(
            f"{_short(spread.p50)} / {_short(spread.p95)}", (1.0, y), va="center", ha="right",
            xycoords=axes.get_yaxis_transform(), fontsize=SIZE - 1, color=SOFT,
        )  # fmt: skip
    usual = sorted(s.p50 for s in spreads if s.count and s.p50 > 0)
    if usual and top > 30 * usual[0]:  # a linear axis would squeeze the usual into a corner
        least = max(min(s.quantile(0) for s in spreads if s.count), usual[0] / 30, _LEAST)
        logarithmic(axes)
        axes.set_xlim(0.8 * least, (top / least) ** 0.25 * top)
    else:
        axes.set_xlim(0, 1.3 * top)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
