"""Figures of a roofline, as PNG.

Colors are Okabe and Ito's (2008), which color-blind readers can tell apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vla_ros_lab.roofline.decodings import DecodingTime
from vla_ros_lab.roofline.speculation import break_even, landscape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GAMMAS = (1, 2, 4, 6, 8)
LEVELS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)


@dataclass(frozen=True, slots=True)
class Point:
    """An operating point: acceptance and relative draft cost."""

    label: str
    alpha: float
    c: float


def _figure(title: str, subtitle: str) -> tuple[Figure, Axes]:
    """An empty figure that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 5.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    figure.suptitle(title, x=0.02, ha="left", fontsize=13, fontweight="bold")
    axes.set_title(subtitle, loc="left", fontsize=9.5, color="#444444")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def plot_landscape(path: Path, gamma: int, points: Sequence[Point], subtitle: str) -> Path:
    """Speedup over acceptance and draft cost, the break-even line, and where one stands."""
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.patheffects import withStroke

    figure, axes = _figure(f"When a draft of {gamma} tokens pays", subtitle)
    top = min(1.0, max([0.5, *(1.25 * p.c for p in points)]))
    alphas, costs = np.linspace(0, 1, 301), np.linspace(0, top, 241)
    gain = landscape(gamma, alphas.tolist(), costs.tolist())
    axes.imshow(
        np.log2(gain), origin="lower", extent=(0, 1, 0, top), aspect="auto", cmap="RdBu",
        norm=TwoSlopeNorm(0.0, -3.5, 4.5), interpolation="bilinear",
    )  # fmt: skip
    lines = axes.contour(
        alphas, costs, gain, [v for v in LEVELS if v < gamma + 1], colors="#333333", linewidths=0.6
    )
    even = axes.contour(alphas, costs, gain, [1.0], colors="black", linewidths=2.2)
    texts = axes.clabel(lines, fmt=lambda v: f"{v:g}×", fontsize=8.5)
    texts = [*texts, *axes.clabel(even, fmt=lambda _: "break-even", fontsize=9.5)]
    for text in texts:
        text.set_path_effects([withStroke(linewidth=2.5, foreground="#ffffffb0")])
    for point, marker in zip(points, MARKERS, strict=False):
        _operating_point(axes, point, marker, gamma, top)
    axes.set(xlim=(0, 1), ylim=(0, top))
    axes.set_xlabel("acceptance α: part of the drafted tokens that are the target's own")
    axes.set_ylabel("draft cost c: a draft step over a target pass")
    figure.text(0.985, 0.965, "speedup of decoding, E[tokens] / (1 + cγ)", ha="right", fontsize=9)
    return _save(figure, path)


def _operating_point(axes: Axes, point: Point, marker: str, gamma: int, top: float) -> None:
    gain = landscape(gamma, [point.alpha], [point.c])[0, 0]
    axes.plot(
        point.alpha, point.c, marker, ms=10, mfc="#FFD92F", mec="black", mew=1.2, clip_on=False,
        zorder=5,
    )  # fmt: skip
    right = point.alpha < 0.6
    axes.annotate(
        f"{point.label}: {gain:.2f}×",
        (point.alpha, point.c),
        xytext=(12 if right else -12, 9 if point.c < 0.9 * top else -16),
        textcoords="offset points",
        ha="left" if right else "right",
        fontsize=9,
        bbox={"boxstyle": "round,pad=0.25", "fc": "white", "ec": "none", "alpha": 0.9},
        zorder=6,
    )


def plot_break_even(path: Path, points: Sequence[Point], subtitle: str) -> Path:
    """The acceptance from which a draft pays, over its cost, for several draft lengths."""
    figure, axes = _figure("How good must the draft be?", subtitle)
    costs = np.linspace(0.0, 0.999, 250)
    for gamma, color in zip(GAMMAS, COLORS, strict=False):
        needed = np.array([break_even(gamma, c) for c in costs], dtype=np.float64)
        axes.plot(costs, needed, color=color, lw=1.8, label=f"draft of {gamma}")
    for point, marker in zip(points, MARKERS, strict=False):
        label = f"{point.label}: α {point.alpha:.2f}, c {point.c:.2f}"
        axes.plot(
            point.c, point.alpha, marker, ms=10, mfc="#FFD92F", mec="black", mew=1.2,
            clip_on=False, zorder=5, ls="none", label=label,
        )  # fmt: skip
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_xlabel("draft cost c: a draft step over a target pass")
    axes.set_ylabel("break-even acceptance α")
    axes.grid(alpha=0.25)
    axes.legend(title="a draft pays above its line", loc="lower right", fontsize=9)
    return _save(figure, path)


def plot_rate_age(
    path: Path, found: Sequence[DecodingTime], camera_hz: float, subtitle: str
) -> Path:
    """Answers a second against the observation age: free-running and behind a camera."""
    figure, axes = _figure("Rate is not freshness", subtitle)
    shown = [s for s in found if s.name != "speculative_miss"]  # it lies on autoregressive
    for i, decoding in enumerate(shown):
        color, marker = COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]
        clock = decoding.clocked(camera_hz)
        x = (decoding.latency_s * 1e3, clock.latency_s * 1e3)
        y = (decoding.rate_hz, clock.rate_hz)
        axes.plot(x, y, "-", color=color, lw=0.9, alpha=0.5)
        axes.plot(x[0], y[0], marker, color=color, ms=9, label=decoding.name, zorder=4)
        axes.plot(x[1], y[1], marker, mfc="white", mec=color, mew=1.8, ms=9, zorder=4)
    axes.set(xscale="log", yscale="log")
    axes.axhline(camera_hz, color="#666666", lw=1.0, ls="--", label=f"camera, {camera_hz:g} Hz")
    _plain_ticks(axes)
    axes.set_xlabel("observation age when the action is ready, ms")
    axes.set_ylabel("answers a second")
    axes.grid(alpha=0.25, which="both")
    hollow = "filled: free-running\nhollow: behind the camera"
    figure.legend(title=hollow, title_fontsize=9, fontsize=9, loc="outside right upper")
    axes.margins(0.12)
    return _save(figure, path)


def _plain_ticks(axes: Any) -> None:
    """20, 50, 100 on a logarithmic axis instead of powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())
