"""A check's result for people: tables on the console, and one page with an image of every stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vla_ros.core.console import Table, show
from vla_ros.viz import pages
from vla_ros_lab.precision.compare import Flip, StageError
from vla_ros_lab.precision.run import Result

Lines = tuple[Sequence[str], Sequence[Sequence[str]]]  # heads, and rows that begin with a name
_FEW = 12  # stages at either end of a table; the page has all
_CELL, _GAP, _WIDE = 5, 6, 230  # px
_DECADES = 3.0  # white is so many decades below the limit, the darkest blue the limit itself
_OVER = "#d55e00"
_MOST_FLIPS = 200


@dataclass(frozen=True, slots=True)
class StageRow:
    """One row of a stage: a patch of the image, or a token."""

    x: float
    y: float
    width: float
    height: float
    color: str


@dataclass(frozen=True, slots=True)
class StageImage:
    """A stage: its patches as they lie in the image, below them its other rows in order."""

    name: str
    worst: float
    mean: float
    over: bool
    squares: tuple[StageRow, ...]
    wide: float
    high: float


def page(result: Result) -> str:
    """The whole page, HTML 5."""
    limit = result.thresholds.error
    found = result.comparison
    return pages.render(
        Path(__file__).parent,
        "verify.html.j2",
        title=f"Precision check of {result.checkpoint}",
        result=result,
        found=found,
        mood="good" if result.verdict.passed else "bad",
        pictures=[stage_image(stage, limit) for stage in found.stages],
        limit=limit,
        decades=int(_DECADES),
        scale=[(color(limit * 10 ** (-_DECADES * (1 - i / 6)), limit)) for i in range(7)],
        over=_OVER,
        numbers=_html(*figures(result)),
        judged=result.verdict.judged,
        choices=_html(*choices(result)),
        flips=_html(*flips(found.flips)) if found.flips else None,
        more=max(0, len(found.flips) - _MOST_FLIPS),
    )


def color(error: float, limit: float) -> str:
    """White to blue over the decades below the limit, orange beyond it."""
    if not error <= limit:
        return _OVER
    if error <= 0:
        return "rgb(255,255,255)"
    part = min(max(1 + math.log10(error / max(limit, 1e-30)) / _DECADES, 0.0), 1.0)
    red, green, blue = (round(255 - part * (255 - end)) for end in (11, 60, 97))
    return f"rgb({red},{green},{blue})"


def stage_image(stage: StageError, limit: float) -> StageImage:
    """The mean error of every row over the frames."""
    layout, squares = stage.layout, list[StageRow]()
    size = max(2.0, min(_CELL * 2.0, _WIDE / max(layout.images * layout.side, 1)))
    high = 0.0
    for number in range(layout.patches):
        image, patch = divmod(number, layout.side**2)
        row, column = divmod(patch, layout.side)
        x = image * (layout.side * size + _GAP) + column * size
        squares.append(StageRow(x, row * size, size, size, color(stage.profile[number], limit)))
        high = layout.side * size + _GAP
    rest = stage.profile[layout.patches :]
    step = _WIDE / max(len(rest), 1)
    for number, error in enumerate(rest):
        squares.append(StageRow(number * step, high, step, 14, color(error, limit)))
    high += 14 if rest else 0
    wide = max(_WIDE, layout.images * (layout.side * size + _GAP))
    over = not stage.worst <= limit
    return StageImage(stage.name, stage.worst, stage.mean, over, tuple(squares), wide, max(high, 1))


def show_result(result: Result) -> None:
    """Print stages, choices, figures, and the verdict last."""
    found = result.comparison
    print(f"{result.precision} against float32, {found.frames} frames of {result.frames_from}\n")
    few = (
        "judged on {} frames, those without a token that flipped in a close call"
        if result.verdict.judged < found.frames
        else ""
    )
    tables = [Table(*lines(result)) for lines in (stages, choices, figures)]
    show(tables[0], "", tables[1], "", tables[2], few.format(result.verdict.judged), "")
    for reason in result.verdict.reasons:
        print(f"- {reason}")
    print("passed" if result.verdict.passed else "FAILED")


def stages(result: Result) -> Lines:
    """The first and the last stages."""
    most = result.thresholds.error
    rows = [
        (one.name, f"{one.worst:.2g}", f"{one.mean:.2g}", "" if one.worst <= most else "over")
        for one in result.comparison.stages
    ]
    if len(rows) > 2 * _FEW:
        rows[_FEW:-_FEW] = [(f"... {len(rows) - 2 * _FEW} more", "", "", "")]
    return ("stage", "relative error\nworst", "mean", ""), rows


def choices(result: Result) -> Lines:
    """Discrete choices, and how many flipped."""
    rows = []
    for name, count in result.comparison.checked:
        margins = [flip.margin for flip in result.comparison.flips if flip.name == name]
        largest = f"{max(margins):.3f}" if margins else "–"
        rows.append((name, str(count), str(len(margins)), largest))
    return ("discrete choice", "compared", "flipped", "largest margin\nof a flip"), rows


def figures(result: Result) -> Lines:
    """The largest deviations, beside their thresholds."""
    found, most, moved = result.comparison, result.thresholds, result.comparison.displacement
    worst = max(found.stages, key=lambda stage: stage.worst)
    rows = [
        (name, f"{value:.3g}", f"at most {limit:g}")
        for name, value, limit in (
            (f"relative error of a stage ({worst.name})", worst.worst, most.error),
            ("displacement of an action, mm", moved.mm, most.mm),
            ("rotation of an action, degrees", moved.degrees, most.degrees),
            ("opening of the gripper, 0 to 1", moved.gripper, most.gripper),
        )
    ]
    if found.agreement is not None:
        least = f"at least {100 * most.agreement:g}" if most.agreement else "not judged"
        rows.insert(1, ("equal tokens, %", f"{100 * found.agreement:.1f}", least))
    return ("largest", "measured", "threshold"), rows


def flips(found: Sequence[Flip]) -> Lines:
    """The choices that flipped, those of indices first, then the clearest."""
    worst = sorted(found, key=lambda flip: (-flip.exact, -flip.margin))[:_MOST_FLIPS]
    return ("choice", "frame", "position", "reference", "measured", "margin", "logits"), [
        (
            *map(str, (flip.name, flip.frame, flip.place, flip.reference, flip.measured)),
            f"{flip.margin:.3f}",
            "–" if flip.gap is None else f"{flip.gap:.3f}",
        )
        for flip in worst
    ]


def _html(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> pages.Table:
    """The same lines on a page; the first column is text."""

    def cells(texts: Sequence[str]) -> tuple[pages.Cell, ...]:
        return tuple(pages.Cell(text, "" if i else "l") for i, text in enumerate(texts))

    return pages.Table(cells(heads), tuple(pages.TableLine(cells(row)) for row in rows))
