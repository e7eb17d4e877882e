"""A soak as one HTML page: the verdict, what was done, ages, memory, every broken rule."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
from markupsafe import Markup

from endurance.judge import RULES
from endurance.record import Record
from endurance.verdict import GROWTH_MB, Process, SoakVerdict
from vla_ros.core.clock import SECOND
from vla_ros.core.types import CommandKind, PolicyState
from vla_ros.viz.pages import Cell, Table, TableLine, cell, render
from vla_ros_lab.report.figures import SIZE, panels, styles, svg, title

PAGE = "soak.html"
_MOST = 200  # of broken rules that are listed


def write_page(record: Record, found: SoakVerdict, folder: Path) -> Path:
    """Write it; returns where."""
    path = folder / PAGE
    path.write_text(page(record, found))
    return path


def page(record: Record, found: SoakVerdict) -> str:
    """The whole page, HTML 5."""
    return render(
        Path(__file__).parent,
        "soak.html.j2",
        title=f"Soak of {record.ran_s / 60:.0f} minutes",
        record=record,
        found=found,
        mood="bad" if found.broken else "good",
        rules=_rules(found),
        troubles=_troubles(record),
        states=_states(record),
        processes=_processes(found.processes),
        growth_limit=GROWTH_MB,
        memory=_memory(record),
        ages=_ages(record),
        unprovoked=[hold for hold in record.holds if not hold.provoked],
        violations=record.violations[:_MOST],
        more=max(0, len(record.violations) - _MOST),
        minute=lambda at: f"{at / SECOND:.3f}",
    )


def _rules(found: SoakVerdict) -> Table:
    heads = (Cell("what must hold", "l"), cell("broken"))
    return Table(
        heads, tuple(TableLine((Cell(RULES[r], "l"), cell(n))) for r, n in found.rules.items())
    )


def _troubles(record: Record) -> Table:
    by: dict[str, list[float | None]] = defaultdict(list)
    for done in record.troubles:
        by[done.kind].append(done.back_s)
    heads = tuple(
        cell(word) for word in ("trouble", "times", "back, p50 s", "p95", "longest", "never")
    )
    lines = []
    for kind, backs in sorted(by.items()):
        known = [one for one in backs if one is not None]
        figures = (
            [f"{x:.2f}" for x in np.percentile(known, [50, 95, 100])] if known else ["", "", ""]
        )
        lines.append(
            TableLine(tuple(map(cell, (kind, len(backs), *figures, len(backs) - len(known)))))
        )
    return Table(heads, tuple(lines))


def _states(record: Record) -> Table:
    total = sum(record.states.values()) or 1
    heads = (Cell("state", "l"), cell("share of the time"))
    return Table(
        heads,
        tuple(
            TableLine((Cell(state.name, "l"), cell(f"{100 * record.states[state] / total:.1f} %")))
            for state in PolicyState
            if record.states[state]
        ),
    )


def _processes(processes: tuple[Process, ...]) -> Table:
    words = ("process", "lives", "first, MB", "last, MB", "MB/h", "95 %", "", "open files")
    lines = []
    for one in processes:
        interval = f"{one.slope.low:.1f} to {one.slope.high:.1f}"
        files = f"{one.files[0]} to {one.files[1]}"
        figures = (one.name, one.lives, f"{one.first_mb:.0f}", f"{one.last_mb:.0f}")
        slope = f"{one.slope.per_hour:+.2f}"
        told = (*figures, slope, interval, one.verdict, files)
        lines.append(TableLine(tuple(map(cell, told))))
    return Table(tuple(map(cell, words)), tuple(lines))


def _memory(record: Record) -> Markup:
    if not record.samples:
        return Markup()
    figure, (left, right) = panels(2, height=3.4)
    look = styles(sorted(record.samples))
    for name, series in sorted(record.samples.items()):
        lives: dict[int, list[tuple[float, float, int]]] = defaultdict(list)
        for sample in series:
            lives[sample.life].append((sample.at_s / 60, sample.memory_mb, sample.files))
        for number, points in enumerate(lives.values()):
            x, memory, files = zip(*points, strict=True)
            words = name if not number else None
            left.plot(x, memory, color=look[name].color, lw=1.2, label=words)
            right.plot(x, files, color=look[name].color, lw=1.2)
    title(left, "Resident memory, MB")
    title(right, "Open files")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.set_xlabel("minutes", fontsize=SIZE)
    left.legend(fontsize=SIZE - 1, frameon=False, ncols=3)
    return svg(figure, "Resident memory and open files of every process over the soak")


def _ages(record: Record) -> Markup:
    if not record.ages:
        return Markup()
    figure, (axes, right) = panels(2, height=2.8)
    values, counts = zip(*sorted(record.ages.items()), strict=True)
    axes.bar(values, counts, width=1.0, color="#0072b2")
    axes.set_yscale("log")
    axes.set_xlabel("age of a command's observation at publication, ms", fontsize=SIZE)
    title(axes, "Commands by age (POLICY and HELD)")
    kinds = [kind for kind in CommandKind if record.kinds[kind]]
    right.barh(
        [kind.name for kind in kinds], [record.kinds[kind] for kind in kinds], color="#56b4e9"
    )
    title(right, "Commands by kind")
    return svg(figure, "Ages and kinds of all commands")
