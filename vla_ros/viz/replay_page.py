"""The report of a replay as one page: no script, nothing loaded from anywhere.

Shows the verdict, where the time went in both runs, every dimension of the actions of both runs
over the frames, and the differences in numbers. The text is in ``replay.html.j2``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from vla_ros.core.action_space import GRIPPER_UNIT
from vla_ros.core.clock import Distribution
from vla_ros.core.types import STAGES
from vla_ros.data.replay_compare import Comparison, Report, RunFigures, comparison_lines
from vla_ros.viz.pages import Cell, Table, TableLine, render

_WORDS = {GRIPPER_UNIT: "(0 closed, 1 open)"}
_COLORS = ("#9aa5b1", "#c9b458", "#7fb8ad", "#4878a8", "#33658a", "#86bbd8", "#b8c4bb")
_RUNS = (("#e0a458", 4.0), ("#1d4e89", 1.2))  # before: wide and pale; now: on top of it
_WIDE, _HIGH, _PAD = 300, 90, 4  # one plot, px
_LONGEST = 640.0  # px of the longest bar of stages
_MOST_POINTS = 1500  # of one line


@dataclass(frozen=True, slots=True)
class Piece:
    """A stage in a bar: from ``x``, ``width`` wide, px; ``ms`` is its median."""

    stage: str
    color: str
    x: float
    width: float
    ms: float


@dataclass(frozen=True, slots=True)
class Stages:
    """One bar a run, cut into the stages; all on one scale."""

    name: str
    pieces: tuple[Piece, ...]
    total_ms: float

    @property
    def end(self) -> float:
        """Its right end, px."""
        last = self.pieces[-1]
        return last.x + last.width


@dataclass(frozen=True, slots=True)
class Curve:
    """One run in a plot: its points as SVG wants them."""

    points: str
    color: str
    width: float


@dataclass(frozen=True, slots=True)
class Plot:
    """One dimension of the actions over time."""

    caption: str
    curves: tuple[Curve, ...]
    wide: int = _WIDE
    high: int = _HIGH


def page(report: Report) -> str:
    """The whole page, HTML 5."""
    sides = [side for side in (report.before, report.now) if side is not None]
    found = report.comparison
    return render(
        Path(__file__).parent,
        "replay.html.j2",
        title=f"Replay of {report.bag}",
        report=report,
        mood="none" if found is None else "good" if report.within else "bad",
        found=found,
        comparison=comparison_lines(found) if found is not None else [],
        differences=_differences(found) if found is not None and found.largest else None,
        runs=_runs(sides),
        stages=_stages(sides),
        stage_key=list(zip(STAGES, _COLORS, strict=True)),
        plots=_plots(sides),
        run_key=[(s.name, color) for s, (color, _) in zip(sides, _of(sides), strict=True)],
    )


def _differences(found: Comparison) -> Table:
    heads = (Cell(""), *map(Cell, found.names))
    cells = (Cell(f"{off:.3g}") for off in found.max_abs_diff)
    return Table(heads, (TableLine((Cell("largest difference"), *cells)),))


def _runs(sides: Sequence[RunFigures]) -> Table:
    """Policy and times of each run."""
    lines: list[TableLine] = []

    def add(label: str, values: Sequence[str], kind: str = "") -> None:
        lines.append(TableLine((Cell(label), *(Cell(value, "l") for value in values)), kind))

    for name in ("policy", "decoding", "checkpoint", "checkpoint_sha256", "device", "dtype"):
        values = [str(getattr(side.run, name)) for side in sides]
        if name == "checkpoint_sha256":
            values = [value[:16] for value in values]
        if any(values):
            add(name.replace("_", " "), values)
    add("actions", [str(len(side.run.actions)) for side in sides])
    add("rate", [f"{side.rate_hz:.1f} Hz" if side.rate_hz else "–" for side in sides])
    add("times, ms", ["p50 / p95 / p99 / max" for _ in sides], "g")
    add("observation age", [_ms(side.age) for side in sides])
    for stage in STAGES:
        add(stage, [_ms(side.stages[stage]) for side in sides])
    add("inference", [_ms(side.inference) for side in sides])
    if sides[-1].run.answer_ms.count:
        add("frame to answer", ["–"] * (len(sides) - 1) + [_ms(sides[-1].run.answer_ms)])
    return Table((Cell(""), *(Cell(side.name, "l") for side in sides)), tuple(lines))


def _ms(spread: Distribution) -> str:
    if not spread.count:
        return "–"
    return " / ".join(f"{getattr(spread, name):.1f}" for name in ("p50", "p95", "p99", "max"))


def _stages(sides: Sequence[RunFigures]) -> list[Stages]:
    sums = [sum(spread.p50 for spread in side.stages.values()) for side in sides]
    scale = _LONGEST / max([*sums, 1e-9])
    bars = []
    for side, total in zip(sides, sums, strict=True):
        medians = [side.stages[stage].p50 for stage in STAGES]
        begins = accumulate(medians, initial=0.0)
        pieces = (
            Piece(stage, color, 90.0 + scale * begin, scale * ms, ms)
            for stage, color, begin, ms in zip(STAGES, _COLORS, begins, medians, strict=False)
        )
        bars.append(Stages(side.name, tuple(pieces), total))
    return bars


def _of(sides: Sequence[RunFigures]) -> Sequence[tuple[str, float]]:
    """Color and width of each run's line; a run alone is drawn as the one of now."""
    return _RUNS[-len(sides) :]


def _plots(sides: Sequence[RunFigures]) -> list[Plot]:
    """Every number of an action over time; none when nobody acted."""
    run = next((side.run for side in sides if side.run.actions), sides[0].run)
    stamps = [key[0] for side in sides for key in side.run.actions]
    if not stamps:
        return []
    span = (min(stamps), max(stamps))
    plots = []
    for i, (name, unit) in enumerate(zip(run.names, run.units, strict=True)):
        series = [_series(side, i) for side in sides]
        values = np.concatenate([s[1] for s in series])
        low, high = float(values.min()), float(values.max())
        curves = (
            Curve(_points(s, span, (low, high)), *style)
            for s, style in zip(series, _of(sides), strict=True)
        )
        plots.append(
            Plot(f"{name}: {low:.3g} to {high:.3g} {_WORDS.get(unit, unit)}", tuple(curves))
        )
    return plots


def _series(side: RunFigures, dimension: int) -> tuple[list[int], list[float]]:
    """(stamps, values), thinned to what a plot can show."""
    all_of = sorted(side.run.actions.items())
    found = [item for item in all_of if not math.isnan(item[1].action[dimension])]
    found = found[:: max(1, len(found) // _MOST_POINTS)]
    return [key[0] for key, _ in found], [command.action[dimension] for _, command in found]


def _points(
    series: tuple[list[int], list[float]], span: tuple[int, int], limits: tuple[float, float]
) -> str:
    begin, end = span
    low, high = limits
    across = (_WIDE - 2 * _PAD) / max(end - begin, 1)
    up = (_HIGH - 2 * _PAD) / (high - low) if high > low else 0.0
    middle = 0.0 if high > low else _HIGH / 2 - _PAD
    return " ".join(
        f"{_PAD + (stamp - begin) * across:.1f},{_HIGH - _PAD - middle - (value - low) * up:.1f}"
        for stamp, value in zip(*series, strict=True)
    )
