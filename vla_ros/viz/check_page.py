"""The report of a check as one page: no script, nothing loaded from anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vla_ros.core.types import Floats
from vla_ros.data.check.report import CheckReport
from vla_ros.viz.pages import Cell, Table, TableLine, render

_WIDE, _HIGH, _PAD = 300, 110, 5  # one plot, px


@dataclass(frozen=True, slots=True)
class Scatter:
    """One number of the actions: the recorded ones to the right, the predicted ones up; on the line
    they are the same. ``points``: px of each."""

    caption: str
    points: tuple[tuple[float, float], ...]
    wide: int = _WIDE
    high: int = _HIGH


def page(report: CheckReport) -> str:
    """The whole page, HTML 5."""
    return render(
        Path(__file__).parent,
        "check.html.j2",
        title=f"Check of {report.checkpoint}",
        report=report,
        mood=("good", "bad", "none")[report.status],
        verdict=report.lines(),
        tried=_tried(report),
        errors=_errors(report),
        plots=[_scatter(report, i) for i in range(len(report.recording.names))],
    )


def _tried(report: CheckReport) -> Table:
    lines = (TableLine((Cell(name, "l"), Cell(error))) for name, error in report.rows())
    return Table((Cell("tried", "l"), Cell("error")), tuple(lines))


def _errors(report: CheckReport) -> Table:
    """Root mean squared error of each number and step of the chunk."""
    names, rmse = report.recording.names, report.figures.rmse
    lines = (
        TableLine((Cell(str(step)), *(Cell(f"{x:.3g}") for x in row)))
        for step, row in enumerate(rmse)
    )
    return Table((Cell("step"), *map(Cell, names)), tuple(lines))


def _scatter(report: CheckReport, i: int) -> Scatter:
    recorded = report.figures.recorded[..., i].ravel()
    predicted = report.figures.predicted[..., i].ravel()
    there = np.isfinite(recorded)
    recorded, predicted = recorded[there], predicted[there]
    both = np.concatenate((recorded, predicted)) if len(recorded) else np.zeros(1)
    low, high = float(both.min()), float(both.max())
    points = zip(_px(recorded, low, high, _WIDE), _px(predicted, low, high, _HIGH), strict=True)
    caption = f"{report.recording.names[i]}: {low:.3g} to {high:.3g}"
    return Scatter(caption, tuple((x, _HIGH - y) for x, y in points))


def _px(values: Floats, low: float, high: float, size: int) -> list[float]:
    share = (values - low) / (high - low) if high > low else np.full_like(values, 0.5)
    return [round(float(x), 1) for x in _PAD + share * (size - 2 * _PAD)]
