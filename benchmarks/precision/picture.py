"""The picture of study.py: success against two figures of the gate, with its limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vla_ros_lab.report.figures import (
    INK,
    SIZE,
    SOFT,
    Style,
    logarithmic,
    panels,
    styles,
    success_axis,
    title,
)

_ASIDE = 2.5  # pt between neighbors, so that intervals at one place are seen


def draw(found: Mapping[str, Any], path: Path) -> None:
    """``found``: what study.py summarizes, by precision. Shown are those of shipped:tabletop that
    the gate looked at."""
    shown = {n: one for n, one in found.items() if one["gate"] and not n.startswith("late")}
    look = styles(list(shown))
    figure, (left, right) = panels(2, width=12.4, height=4.2, same_rows=True)
    title(left, "Success and the largest error of a stage")
    title(right, "Success and the clearest token that flipped")
    panel(left, shown, look, lambda gate: max(worst for worst, _ in gate["stages"].values()))
    panel(right, shown, look, lambda gate: gate["gap"])
    reference = found["float32"]["success"]
    for axes in (left, right):
        axes.axhspan(*reference["wilson95"], color="#e4e7eb", zorder=0, label="float32")
    for error in sorted({one["gate"]["thresholds"]["error"] for one in shown.values()}):
        limit(left, error, f"limit {error:g}")
    margin = next(iter(shown.values()))["gate"]["thresholds"]["margin"]
    limit(right, 2 * math.atanh(margin), f"limit {margin:g}")
    left.set_xlabel("relative error of the worst stage", fontsize=SIZE, color=INK)
    right.set_xlabel(
        "logits between the reference's token and the one that won", fontsize=SIZE, color=INK
    )
    handles, names = right.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", frameon=False, fontsize=SIZE)
    figure.savefig(path, dpi=110)


def panel(
    axes: Any,
    found: Mapping[str, Any],
    look: Mapping[str, Style],
    figure_of: Callable[[Mapping[str, Any]], float],
) -> None:
    """A point for each precision, hollow where the gate said no, with the interval of success."""
    from matplotlib.transforms import ScaledTranslation

    success_axis(axes)
    logarithmic(axes)
    dots = axes.figure.dpi_scale_trans
    figures = [figure_of(one["gate"]) for one in found.values()]
    axes.set_xlim(min(figures) / 1.6, 1.6 * max(figures))
    for place, (name, one) in enumerate(found.items()):
        gate, success = one["gate"], one["success"]
        rate, (low, high) = success["rate"], success["wilson95"]
        aside = ScaledTranslation(_ASIDE * (place % 3 - 1) / 72, 0, dots)
        axes.errorbar(
            [figure_of(gate)], [rate], ([rate - low], [high - rate]), fmt=look[name].marker,
            color=look[name].color, mfc=look[name].color if gate["passed"] else "white",
            ms=6, elinewidth=1, capsize=3, transform=axes.transData + aside,
            label=f"{name}, {'passed' if gate['passed'] else 'failed'}",
        )  # fmt: skip


def limit(axes: Any, at: float, words: str) -> None:
    """A line where a threshold is."""
    axes.axvline(at, color=SOFT, lw=0.8, ls="--")
    axes.annotate(words, (at, 0.02), (-2, 0), textcoords="offset points", fontsize=SIZE - 2,
                  color=SOFT, rotation=90, ha="right", va="bottom",
                  xycoords=("data", "axes fraction"))  # fmt: skip
