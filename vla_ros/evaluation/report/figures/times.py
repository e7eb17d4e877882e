"""How long inference took and how old the evidence was: quantiles of every variant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from vla_ros.analysis.plots import COLOURS
from vla_ros.evaluation.records import Spread
from vla_ros.evaluation.report.figures.canvas import (
    INK,
    SIZE,
    SOFT,
    drawn,
    logarithmic,
    panels,
    svg,
    title,
)
from vla_ros.evaluation.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEAST = 1e-3  # ms: nobody measures less, and an axis has to begin somewhere


def times_figure(rows: Sequence[Row]) -> Markup:
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
            axes.plot(ends, [y, y], "-", color=COLOURS[0], lw=width, alpha=alpha,
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
