"""Success against delay, as a picture: python benchmarks/late/figure.py OUT.png

Left: policies of single actions that know their age and that do not; right: the executions of
chunks. Reads the summaries beside this file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vla_ros_lab.report.figures import INK, SIZE, panels, styles, success_axis, title

HERE = Path(__file__).parent
SINGLE = {
    "told nothing": ("told-nothing",),
    "told its delay": ("../tabletop/success", "tabletop"),
    "told its delay, ActionFlow": ("actionflow",),
}  # what the line is called -> summaries that it is of
PERIOD_MS = 50


class Point(NamedTuple):
    steps: int  # control periods from an action's image to its execution
    rate: float
    low: float  # of the interval
    high: float


def variants(folder: str) -> Mapping[str, Any]:
    """Name of a variant as `vla-ros eval` gives it -> its figures."""
    return json.loads((HERE / folder / "summary.json").read_text())["variants"]


def point(figures: Mapping[str, Any], steps: int) -> Point:
    return Point(steps, figures["success_rate"], *figures["wilson95"])


def single(folders: Sequence[str]) -> list[Point]:
    """A point for every age; where drafts differ alone, the first."""
    found: dict[int, Point] = {}
    for folder in folders:
        for figures in variants(folder).values():
            steps = round(figures["observation_age_ms"]["p50"] / PERIOD_MS)
            found.setdefault(steps, point(figures, steps))
    return list(found.values())


def chunks(folder: str) -> Mapping[str, list[Point]]:
    """Execution -> a point for every delay, of names such as "auto,rtc,true,S=4,d=2"."""
    lines: dict[str, list[Point]] = {}
    for name, figures in variants(folder).items():
        words = [word for word in name.split(",")[1:] if "=" not in word] or ["async"]
        late = [int(word[2:]) for word in name.split(",") if word.startswith("d=")]
        line = words[0] + (", true Jacobian" if words[1:] == ["true"] else "")
        lines.setdefault(line, []).append(point(figures, *late or [0]))
    return lines


def draw(path: Path) -> None:
    figure, (left, right) = panels(2, width=10.4, height=3.8, same_rows=True)
    title(left, "Single actions: shipped:tabletop, and one told nothing")
    title(right, "Chunks of the flow policy before, by execution")
    panel(left, {name: single(folders) for name, folders in SINGLE.items()})
    panel(right, chunks("tabletop-flow"))
    figure.savefig(path, dpi=110)


def panel(axes: Any, lines: Mapping[str, Sequence[Point]]) -> None:
    success_axis(axes)
    look = styles(list(lines))
    for place, (name, points) in enumerate(lines.items()):
        aside = 0.06 * place  # later than measured, never below 0
        ordered = sorted(points)
        rates = [one.rate for one in ordered]
        around = [one.rate - one.low for one in ordered], [one.high - one.rate for one in ordered]
        at = [PERIOD_MS * (one.steps + aside) for one in ordered]
        axes.errorbar(
            at, rates, around, fmt=f"-{look[name].marker}", color=look[name].color, lw=1.5,
            ms=4.5, elinewidth=0.8, capsize=2, label=name,
        )  # fmt: skip
    axes.set_xlabel(
        "an action is executed so much later than its image, ms", fontsize=SIZE, color=INK
    )
    axes.legend(frameon=False, fontsize=SIZE, loc="lower left")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
