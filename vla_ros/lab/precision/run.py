"""A gate's result as one page: the verdict, a picture of every stage, every choice that flipped.

No script, nothing loaded from anywhere. The words are in ``gate.html.j2``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from vla_ros.pages import render
from vla_ros.pages.table import Cell, Line, Table
from vla_ros.precision.compare import Flip, StageError
from vla_ros.precision.result import Result

_CELL, _GAP, _WIDE = 5, 6, 230  # px
_DECADES = 3.0  # white is so many decades below the limit, the darkest blue the limit itself
_OVER = "#d55e00"
_MOST_FLIPS = 200


@dataclass(frozen=True, slots=True)
class Square:
    """One row of a stage: a patch of the image, or a token."""

    x: float
    y: float
    width: float
    height: float
    colour: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A stage: its patches as they lie in the image, below them its other rows in order."""

    name: str
    worst: float
    mean: float
    over: bool
    squares: tuple[Square, ...]
    wide: float
    high: float


def page(result: Result) -> str:
    """The whole page, HTML 5."""
    limit = result.thresholds.error
    found = result.comparison
    return render(
        Path(__file__).parent,
        "gate.html.j2",
        title=f"Precision gate of {result.checkpoint}",
        result=result,
        found=found,
        mood="good" if result.verdict.passed else "bad",
        pictures=[picture(stage, limit) for stage in found.stages],
        limit=limit,
        decades=int(_DECADES),
        scale=[(colour(limit * 10 ** (-_DECADES * (1 - i / 6)), limit)) for i in range(7)],
        over=_OVER,
        numbers=_numbers(result),
        judged=result.verdict.judged,
        choices=_choices(result),
        flips=_flips(found.flips),
        more=max(0, len(found.flips) - _MOST_FLIPS),
    )


def colour(error: float, limit: float) -> str:
    """White to blue over the decades below the limit, orange beyond it."""
    if not error <= limit:
        return _OVER
    if error <= 0:
        return "rgb(255,255,255)"
    part = min(max(1 + math.log10(error / max(limit, 1e-30)) / _DECADES, 0.0), 1.0)
    red, green, blue = (round(255 - part * (255 - end)) for end in (11, 60, 97))
    return f"rgb({red},{green},{blue})"


def picture(stage: StageError, limit: float) -> Picture:
    """The mean error of every row over the frames."""
    layout, squares = stage.layout, list[Square]()
    size = max(2.0, min(_CELL * 2.0, _WIDE / max(layout.images * layout.side, 1)))
    high = 0.0
    for number in range(layout.patches):
        image, place = divmod(number, layout.side**2)
        row, column = divmod(place, layout.side)
        x = image * (layout.side * size + _GAP) + column * size
        squares.append(Square(x, row * size, size, size, colour(stage.profile[number], limit)))
        high = layout.side * size + _GAP
    rest = stage.profile[layout.patches :]
    step = _WIDE / max(len(rest), 1)
    for number, error in enumerate(rest):
        squares.append(Square(number * step, high, step, 14, colour(error, limit)))
    high += 14 if rest else 0
    wide = max(_WIDE, layout.images * (layout.side * size + _GAP))
    over = not stage.worst <= limit
    return Picture(stage.name, stage.worst, stage.mean, over, tuple(squares), wide, max(high, 1))


def _numbers(result: Result) -> Table:
    most, moved = result.thresholds, result.comparison.displacement
    worst = max(result.comparison.stages, key=lambda stage: stage.worst)
    rows = [(f"relative error of a stage, the largest ({worst.name})", worst.worst, most.error)]
    lines = [Line((Cell(n, "l"), Cell(f"{v:.3g}"), Cell(f"at most {m:g}"))) for n, v, m in rows]
    agreement = result.comparison.agreement
    if agreement is not None:
        share = f"{100 * agreement:.1f} %"
        least = f"at least {100 * most.agreement:g} %" if most.agreement else "not judged"
        lines.append(Line((Cell("tokens that are the reference's", "l"), Cell(share), Cell(least))))
    for name, value, limit in (
        ("displacement of an action, mm", moved.mm, most.mm),
        ("rotation of an action, degrees", moved.degrees, most.degrees),
        ("opening of the gripper, 0 to 1", moved.gripper, most.gripper),
    ):
        lines.append(Line((Cell(name, "l"), Cell(f"{value:.3g}"), Cell(f"at most {limit:g}"))))
    return Table((Cell("", "l"), Cell("measured"), Cell("threshold")), tuple(lines))


def _choices(result: Result) -> Table:
    heads = (Cell("discrete choice", "l"), Cell("looked at"), Cell("flipped"),
             Cell("largest margin\nof a flip"))  # fmt: skip
    lines = []
    for name, count in result.comparison.checked:
        flips = [flip for flip in result.comparison.flips if flip.name == name]
        margin = f"{max(f.margin for f in flips):.3f}" if flips else "–"
        lines.append(Line((Cell(name, "l"), Cell(str(count)), Cell(str(len(flips))), Cell(margin))))
    return Table(heads, tuple(lines))


def _flips(flips: tuple[Flip, ...]) -> Table | None:
    if not flips:
        return None
    names = ("frame", "place", "reference", "measured", "margin", "logits")
    heads = (Cell("choice", "l"), *map(Cell, names))
    lines = []
    for flip in sorted(flips, key=lambda f: (-f.exact, -f.margin))[:_MOST_FLIPS]:
        gap = "–" if flip.gap is None else f"{flip.gap:.3f}"
        cells = (flip.frame, flip.place, flip.reference, flip.measured)
        lines.append(Line((Cell(flip.name, "l"), *(Cell(str(c)) for c in cells),
                           Cell(f"{flip.margin:.3f}"), Cell(gap))))  # fmt: skip
    return Table(heads, tuple(lines))
