"""Both engines over the same frames: the reference first, freed before the other one is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionSpace
from vla_ros.core.console import Report
from vla_ros.core.errors import UserError
from vla_ros.engine import InvalidAction, load_engine
from vla_ros.engine.engine import Engine
from vla_ros.engine.options import FLOW, TOKENS
from vla_ros.engine.verdicts import Precision, StoredVerdict
from vla_ros.policies.base import PolicySpec
from vla_ros.policies.conventions import Conventions, settle
from vla_ros.policies.vla import engine_options
from vla_ros.viz.pages import Cell, Table, TableLine, render
from vla_ros_lab.precision.compare import (
    Comparison,
    Flip,
    PrecisionVerdict,
    StageError,
    Thresholds,
    compare_frame,
    summed,
)
from vla_ros_lab.precision.watch import EngineTrace, FlowWatch, ProbeFrame, TokenWatch

REFERENCE = "float32"
#: Makes the engine of a spec. Tests put a faulty one in its place.
Load = Callable[[PolicySpec, Conventions], Engine]


@dataclass(frozen=True, slots=True)
class PrecisionMeasurement:
    """What came of it. ``sha256``: of the checkpoint that was measured."""

    comparison: Comparison
    sha256: str
    space: ActionSpace


class Broken(Exception):
    """What is measured says no action at all, as where float16 overflows: it did not pass."""

    def __init__(self, sha256: str, reason: str) -> None:
        super().__init__(reason)
        self.sha256 = sha256


def load(spec: PolicySpec, used: Conventions) -> Engine:
    """The engine that the policy ``vla`` would run, with all that it would run it with."""
    return load_engine(engine_options(spec, used))


def measure(
    spec: PolicySpec,
    frames: Sequence[ProbeFrame],
    report: Report,
    reference: PolicySpec | None = None,
    make: Load = load,
) -> PrecisionMeasurement:
    """``spec`` against ``reference``: by default the same checkpoint in float32, as it is stored.

    PolicyRefused, CheckpointError or ValueError where it cannot be loaded; InvalidAction where the
    reference says no action, Broken where what is measured does not.
    """
    reference = reference or replace(spec, engine=replace(spec.engine, dtype=REFERENCE, weights=""))
    # What is measured runs as it serves (graphs, tuned products, padding), the reference plainly.
    plain = replace(reference.engine, cuda_graphs=False, gemm="torch")
    reference = replace(reference, engine=plain)
    used, _ = settle(spec)
    rights = _told(reference, used, frames, report, make)
    name = _named(spec)
    report(f"load {name}", 0, len(frames))
    engine = make(spec, used)
    watch, space, sha256 = (
        _watch(engine, used),
        engine.info.action_space,
        engine.info.checkpoint_sha256,
    )
    found = []
    for number, shown in enumerate(frames):
        right, rights[number] = rights[number], None  # each goes when it was compared
        assert right is not None
        try:
            told = watch.told(shown, right)
        except InvalidAction as error:
            raise Broken(sha256, f"frame {number}: {error}") from error
        found.append(compare_frame(number, right, told, space))
        report(name, number + 1, len(frames))
    return PrecisionMeasurement(summed(found), sha256, space)


def _told(
    spec: PolicySpec, used: Conventions, frames: Sequence[ProbeFrame], report: Report, make: Load
) -> list[EngineTrace | None]:
    """The reference on all frames; its engine is gone afterwards."""
    report("load reference", 0, len(frames))
    watch = _watch(make(spec, used), used)
    out: list[EngineTrace | None] = []
    for number, shown in enumerate(frames, 1):
        out.append(watch.told(shown))
        report("reference", number, len(frames))
    return out


def _watch(engine: Engine, used: Conventions) -> TokenWatch | FlowWatch:
    space = engine.info.action_space
    scale = np.ones(space.width)
    if space == END_EFFECTOR_DELTA:
        scale[:6] = used.action_scale
    if engine.policy.group == FLOW:
        return FlowWatch(engine, scale)
    if engine.policy.group != TOKENS:
        raise UserError(f"{engine.options.checkpoint}: precision is not checked of pi0_fast")
    return TokenWatch(engine, scale)


def _named(spec: PolicySpec) -> str:
    return (
        f"{spec.engine.weights} {spec.engine.dtype}" if spec.engine.weights else spec.engine.dtype
    )


# A check's whole result: what was asked, measured and decided. Frozen; the page and the store
# read it.


@dataclass(frozen=True, slots=True)
class Result:
    """``frames_from``: one line about the frames; ``reference``: the checkpoint that it is held
    to, in float32."""

    checkpoint: str
    reference: str
    sha256: str
    precision: Precision
    frames_from: str
    comparison: Comparison
    thresholds: Thresholds
    verdict: PrecisionVerdict

    def figures(self) -> dict[str, Any]:
        """All figures but the profiles of the stages, which are the page's images."""
        found = asdict(self.comparison)
        for stage in found["stages"]:
            del stage["profile"], stage["layout"]
        found["checked"] = dict(self.comparison.checked)
        return {
            "checkpoint": self.checkpoint,
            "reference": self.reference,
            "frames_from": self.frames_from,
            "thresholds": asdict(self.thresholds),
            **found,
        }

    def stored(self) -> StoredVerdict:
        """What is kept of it."""
        return StoredVerdict(
            self.sha256, self.precision, self.verdict.passed, self.verdict.reasons, self.figures()
        )

    def as_json(self) -> dict[str, Any]:
        """For a program: the verdict beside the figures."""
        return {
            "passed": self.verdict.passed,
            "reasons": list(self.verdict.reasons),
            "checkpoint_sha256": self.sha256,
            **asdict(self.precision),
            **self.figures(),
        }


# A check's result as one page: the verdict, an image of every stage, every choice that flipped.
#
# No script, nothing loaded from anywhere. The words are in ``verify.html.j2``.


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
    return render(
        Path(__file__).parent,
        "verify.html.j2",
        title=f"Precision check of {result.checkpoint}",
        result=result,
        found=found,
        mood="good" if result.verdict.passed else "bad",
        pictures=[picture(stage, limit) for stage in found.stages],
        limit=limit,
        decades=int(_DECADES),
        scale=[(color(limit * 10 ** (-_DECADES * (1 - i / 6)), limit)) for i in range(7)],
        over=_OVER,
        numbers=_numbers(result),
        judged=result.verdict.judged,
        choices=_choices(result),
        flips=_flips(found.flips),
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


def picture(stage: StageError, limit: float) -> StageImage:
    """The mean error of every row over the frames."""
    layout, squares = stage.layout, list[StageRow]()
    size = max(2.0, min(_CELL * 2.0, _WIDE / max(layout.images * layout.side, 1)))
    high = 0.0
    for number in range(layout.patches):
        image, place = divmod(number, layout.side**2)
        row, column = divmod(place, layout.side)
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


def _numbers(result: Result) -> Table:
    most, moved = result.thresholds, result.comparison.displacement
    worst = max(result.comparison.stages, key=lambda stage: stage.worst)
    rows = [(f"relative error of a stage, the largest ({worst.name})", worst.worst, most.error)]
    lines = [
        TableLine((Cell(n, "l"), Cell(f"{v:.3g}"), Cell(f"at most {m:g}"))) for n, v, m in rows
    ]
    agreement = result.comparison.agreement
    if agreement is not None:
        share = f"{100 * agreement:.1f} %"
        least = f"at least {100 * most.agreement:g} %" if most.agreement else "not judged"
        lines.append(
            TableLine((Cell("tokens that are the reference's", "l"), Cell(share), Cell(least)))
        )
    for name, value, limit in (
        ("displacement of an action, mm", moved.mm, most.mm),
        ("rotation of an action, degrees", moved.degrees, most.degrees),
        ("opening of the gripper, 0 to 1", moved.gripper, most.gripper),
    ):
        lines.append(TableLine((Cell(name, "l"), Cell(f"{value:.3g}"), Cell(f"at most {limit:g}"))))
    return Table((Cell("", "l"), Cell("measured"), Cell("threshold")), tuple(lines))


def _choices(result: Result) -> Table:
    heads = (Cell("discrete choice", "l"), Cell("looked at"), Cell("flipped"),
             Cell("largest margin\nof a flip"))  # fmt: skip
    lines = []
    for name, count in result.comparison.checked:
        flips = [flip for flip in result.comparison.flips if flip.name == name]
        margin = f"{max(f.margin for f in flips):.3f}" if flips else "–"
        lines.append(
            TableLine((Cell(name, "l"), Cell(str(count)), Cell(str(len(flips))), Cell(margin)))
        )
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
        lines.append(TableLine((Cell(flip.name, "l"), *(Cell(str(c)) for c in cells),
                           Cell(f"{flip.margin:.3f}"), Cell(gap))))  # fmt: skip
    return Table(heads, tuple(lines))
