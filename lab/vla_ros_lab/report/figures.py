"""The figures of an evaluation's report, as SVG inside its page."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from vla_ros.data.episodes.records import Spread, Variant
from vla_ros.data.episodes.rows import DIMENSIONS, KINDS, RELAXED, Sweep, VariantRow, plain, sweeps
from vla_ros_lab.roofline.plots import COLORS, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


INK, SOFT, GRID = "#1f2933", "#52606d", "#e4e7eb"
#: the colors that a page has another of in the dark, by their names in its style
PAGE_COLORS = {INK: "ink", SOFT: "soft", GRID: "grid", "#000000": "ink"}
SIZE = 9.0  # of the letters, pt
_FAMILY = 'system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif'.replace('"', "'")


@dataclass(frozen=True, slots=True)
class Style:
    """Color and marker of a series."""

    color: str
    marker: str


def styles(names: Sequence[str]) -> dict[str, Style]:
    """A color and a marker for every different name, in order."""
    pairs = zip(COLORS, MARKERS, strict=True)
    cycle = [Style(color, marker) for color, marker in pairs]
    return {name: cycle[i % len(cycle)] for i, name in enumerate(dict.fromkeys(names))}


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
        one.grid(color=GRID, lw=0.6)
        one.set_axisbelow(True)
    return figure, axes


def drawn(name: str) -> str:
    """A name as a figure has it: a dollar sign begins no formula."""
    return plain(name).replace("$", r"\$")


def title(axes: Axes, text: str) -> None:
    """The panel's title, above its left end."""
    axes.set_title(text, loc="left", fontsize=SIZE + 0.5, fontweight="bold", color=INK)


def success_axis(axes: Axes) -> None:
    """The vertical axis as 0 to 100 %."""
    axes.set_ylim(-0.02, 1.03)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0], ["0", "20", "40", "60", "80", "100 %"])


def logarithmic(axes: Axes) -> None:
    """The horizontal axis in factors of ten, labelled 10, 100, 1000."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def svg(figure: Figure, says: str) -> Markup:
    """The figure as an ``<svg>`` element; ``says`` describes it to readers who cannot see it. Its
    lettering has the page's colors, light or dark."""
    import matplotlib

    buffer = io.StringIO()
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": "vla_ros"}
    with matplotlib.rc_context(options):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    picture = buffer.getvalue()
    picture = picture[picture.index("<svg") :]
    picture = re.sub(r"<metadata>.*?</metadata>", "", picture, flags=re.DOTALL)
    picture = re.sub(r"'DejaVu Sans'[^;\"]*", _FAMILY, picture)
    for color, name in PAGE_COLORS.items():
        picture = picture.replace(color, f"var(--{name},{color})")
    used = set(re.findall(r"#([\w.-]+)", picture))
    picture = re.sub(  # ids that nothing refers to would be there once a figure
        r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", picture
    )
    return Markup(picture.replace("<svg", f'<svg role="img" aria-label="{escape(says)}"', 1))


def key(axes: Axes) -> None:
    """The legend, right of the panel."""
    axes.legend(
        loc="upper left", bbox_to_anchor=(1.0, 1.03), frameon=False, fontsize=SIZE - 0.5,
        labelcolor=INK, handlelength=1.6, borderaxespad=0.3,
    )  # fmt: skip


# Success and rate against the observation age: one point a variant, sweeps as curves.


def age_figure(rows: Sequence[VariantRow]) -> Markup:
    """The figure as SVG; empty when fewer than two variants acted."""
    shown = [row for row in rows if row.age.count]
    if len(shown) < 2:
        return Markup()
    figure, (left, right) = panels(2, height=4.2)
    curves = [sweep for kind in KINDS for sweep in sweeps(shown, kind)]
    inner = {row.variant.label for curve in curves for row in curve.rows[1:]}
    look = styles([decoding_of(row) for row in shown])
    markers = styles([row.variant.label for row in shown if row.variant.label not in inner])
    rates, success = [row.rate_hz for row in shown], [row.all.rate for row in shown]
    for axes, heights in ((left, success), (right, rates)):
        at = {
            row.variant.label: (row.age.p50, height)
            for row, height in zip(shown, heights, strict=True)
        }
        _curves(axes, curves, at, look)
        for row in shown:
            label, color = row.variant.label, look[decoding_of(row)].color
            marker = markers[label].marker if label in markers else "."
            if axes is left:
                axes.plot([at[label][0]] * 2, row.all.interval, "-", color=color, lw=1.0, alpha=0.5)
            axes.plot(
                *at[label], marker, color=color, ms=6.5, mec="white", mew=0.6, zorder=4,
                clip_on=False, label=drawn(label) if label in markers else None,
            )  # fmt: skip
        axes.set_xlabel(
            "age of the observation behind an action, ms (median)", fontsize=SIZE, color=INK
        )
        axes.margins(x=0.08)
    success_axis(left)
    title(left, "Success against age")
    right.set_ylim(0, 1.25 * max(rates) or 1.0)
    title(right, "Rate against age: new actions a second")
    key(right)
    return svg(figure, "Success and rate against the age of the observation, a point a variant")


def decoding_of(row: VariantRow) -> str:
    """The decoding of a variant, which has its color."""
    return row.decoding or row.variant.label


def _curves(
    axes: Axes,
    curves: Sequence[Sweep],
    at: Mapping[str, tuple[float, float]],
    look: Mapping[str, Style],
) -> None:
    """A line through the variants of each sweep, and the number of the last one beside it."""
    ends: Counter[float] = Counter()  # labels of about the same age
    for curve in curves:
        color = look[decoding_of(curve.rows[0])].color
        points = [at[row.variant.label] for row in curve.rows]
        axes.plot(*zip(*points, strict=True), "-", color=color, lw=1.1, alpha=0.6)
        end = round(points[-1][0], -1)
        axes.annotate(
            curve.label(curve.rows[-1]), points[-1], (6, 5 + 11 * ends[end]), color=color,
            textcoords="offset points", fontsize=SIZE - 0.5,
        )  # fmt: skip
        ends[end] += 1


# What a sweep does: success along it, beside the acceptance of drafts or the age it costs.


def sweep_figure(sweep: Sweep) -> Markup:
    """Success of all tasks with its interval and of every group; beside it what it comes from."""
    figure, axes = panels(2, height=3.4)
    _success(axes[0], sweep)
    if sweep.kind is RELAXED:
        _acceptance(axes[1], sweep)
    else:
        _ages(axes[1], sweep)
    first, last = sweep.positions[0], sweep.positions[-1]
    for one in axes:
        one.set_xticks(sweep.positions, sweep.labels)
        one.set_xlim(first - 0.03 * (last - first), last + 0.03 * (last - first))
        one.set_xlabel(sweep.kind.axis, fontsize=SIZE, color=INK)
    return svg(figure, f"Success against {sweep.kind.axis}, {sweep.name}")


def _success(axes: Axes, sweep: Sweep) -> None:
    success_axis(axes)
    title(axes, "Success")
    rows, at = sweep.rows, sweep.positions
    low, high = zip(*(row.all.interval for row in rows), strict=True)
    axes.fill_between(at, low, high, color=INK, alpha=0.1, lw=0)
    axes.plot(at, [row.all.rate for row in rows], "-o", color=INK, lw=2.0, ms=5, label="all")
    groups = list(dict.fromkeys(group for row in rows for group in row.groups))
    for group, color in zip(groups if len(groups) > 1 else (), COLORS, strict=False):
        rates = [row.groups[group].rate if group in row.groups else None for row in rows]
        _line(axes, at, rates, "-", color, drawn(group))
    key(axes)


def _acceptance(axes: Axes, sweep: Sweep) -> None:
    """Acceptance of every dimension."""
    success_axis(axes)
    title(axes, "Drafted tokens that were accepted (same scale)")
    axes.tick_params(labelleft=False)
    for d, (name, color) in enumerate(zip(DIMENSIONS, COLORS, strict=True)):
        found = [row.drafts.acceptance for row in sweep.rows]
        shares = [own[d] if d < len(own) else None for own in found]
        _line(
            axes, sweep.positions, shares, "--" if name in ("rx", "ry", "rz") else "-", color, name
        )
    key(axes)


def _line(
    axes: Axes, at: Sequence[float], values: Sequence[float | None], dashes: str, color: str,
    label: str,
) -> None:  # fmt: skip
    """A curve through the values there are; none without any."""
    known = [(x, y) for x, y in zip(at, values, strict=True) if y is not None]
    if known:
        axes.plot(
            *zip(*known, strict=True), dashes, marker="o", color=color, lw=1.2, ms=3, label=label
        )


def _ages(axes: Axes, sweep: Sweep) -> None:
    """The ages that the sweep brought about: the median, and a band from 5 to 95 %."""
    pairs = zip(sweep.positions, sweep.rows, strict=True)
    acted = [(x, row.age) for x, row in pairs if row.age.count]
    at = [x for x, _ in acted]
    low = [age.quantile(5) for _, age in acted]
    high = [age.quantile(95) for _, age in acted]
    axes.fill_between(at, low, high, color=COLORS[0], alpha=0.15, lw=0)
    axes.plot(at, [age.p50 for _, age in acted], "-o", color=COLORS[0], lw=1.5, ms=4)
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
    """The figure as SVG; empty where there is nothing to compare."""
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
        axes.set_xlabel("delay of a chunk, actions", fontsize=SIZE, color=INK)
    return svg(figure, "Success and seam jump against the delay of chunks, a line an execution")


def _late_success(axes: Axes, lines: Lines) -> None:
    """Success in all tasks, with 95 % intervals."""
    success_axis(axes)
    title(axes, "Success, all tasks (95 % interval)")
    look = styles(list(lines))
    for name, rows in lines.items():
        at = [row.variant.delay_frames for row in rows]
        rates = [row.all.rate for row in rows]
        low = [row.all.rate - row.all.interval[0] for row in rows]
        high = [row.all.interval[1] - row.all.rate for row in rows]
        style = look[name]
        axes.errorbar(at, rates, (low, high), fmt=f"-{style.marker}", color=style.color, lw=1.5,
                      ms=4.5, elinewidth=0.8, capsize=2, label=name)  # fmt: skip
    key(axes)


def _seams(axes: Axes, lines: Lines) -> None:
    """The median jump, and a band from 5 to 95 %; an execution that stops between chunks has
    none."""
    title(axes, "Seam jump, mm and mrad (median, 5 to 95 %)")
    look, top = styles(list(lines)), 0.0
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
        top = max(top, *high)
    axes.set_ylim(0, 1.08 * top or 1.0)


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
