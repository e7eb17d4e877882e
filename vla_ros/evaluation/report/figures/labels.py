"""Words beside points, that do not lie on each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vla_ros.evaluation.report.figures.canvas import SIZE

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_LINE = 1.22 * (SIZE - 0.5)  # from one line of a label to the next, pt


@dataclass(frozen=True, slots=True)
class Label:
    """Words for the point (x, y) in the axes' data coordinates; each line has its colour."""

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
    for i, (words, colour) in enumerate(label.lines):
        axes.annotate(
            words, (label.x, label.y), (dx, top - (i + 0.5) * _LINE), color=colour,
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
        words, colour = label.lines[0]
        axes.annotate(
            words, (-0.015 if left else 1.015, height), xycoords=axes.get_yaxis_transform(),
            annotation_clip=False, va="center", ha="right" if left else "left",
            fontsize=SIZE - 0.5, color=colour,
            fontweight="bold" if label.bold else "normal",
        )  # fmt: skip


def spread_out(values: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """Ascending ``values`` moved as little as need be to be ``step`` apart and inside."""
    step = min(step, (high - low) / max(len(values) - 1, 1))
    blocks: list[tuple[float, int]] = []  # centre and count of values that touch
    for wanted in values:
        centre, count = wanted, 1
        while True:
            half = (count - 1) * step / 2
            centre = min(max(centre, low + half), high - half)
            if not blocks:
                break
            before, many = blocks[-1]
            if centre - half - (before + (many - 1) * step / 2) >= step * (1 - 1e-9):
                break
            blocks.pop()
            centre = (before * many + centre * count) / (many + count)
            count += many
        blocks.append((centre, count))
    return [centre + (i - (count - 1) / 2) * step for centre, count in blocks for i in range(count)]
