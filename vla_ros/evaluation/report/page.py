"""The report of an evaluation: one HTML file with everything in it, which loads nothing.

What is said is in ``report.html.j2``; here is what it is said of. The figures need matplotlib;
without it the report has its tables, and a line that says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from markupsafe import Markup

from vla_ros.evaluation import origin
from vla_ros.evaluation.records import Record, Setup, Variant
from vla_ros.evaluation.report.failures import failure_table, variant_failures
from vla_ros.evaluation.report.figures.canvas import available
from vla_ros.evaluation.report.strips import clips, strips
from vla_ros.evaluation.report.sweeps import KINDS, sweeps
from vla_ros.evaluation.report.tables import (
    acceptance_table,
    group_table,
    task_tables,
    variant_table,
)
from vla_ros.evaluation.rows import Row, plain, rows_of
from vla_ros.pages import render
from vla_ros.sim.episode.state import Mode

FILE = "report.html"
_MODES = {
    Mode.LOCKSTEP: "lock-step (the world waits for every action)",
    Mode.REALTIME: "real time (the world does not wait)",
}
_ROUTES = {"ros": "through the ROS graph", "direct": "straight on the policy, without ROS"}


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing under a heading; ``kind`` says which words explain it: late, age, sweep,
    times."""

    heading: str
    picture: Markup
    kind: str


def write_report(
    directory: Path,
    setup: Setup,
    variants: Sequence[Variant],
    records: Sequence[Record],
    command: str,
    total: int = 0,
) -> Path:
    """Write ``report.html`` into the evaluation's directory, in place of an earlier one.

    Pictures are read from there. ``command`` is what reproduces the evaluation. ``total``: the
    episodes that there will be, where it still runs. OSError: the file cannot be written.
    """
    path = directory / FILE
    unfinished = path.with_suffix(".part")
    content = html(directory, setup, variants, records, command, total)
    unfinished.write_text(content, encoding="utf-8", errors="replace")
    unfinished.replace(path)
    return path


def html(
    directory: Path,
    setup: Setup,
    variants: Sequence[Variant],
    records: Sequence[Record],
    command: str,
    total: int = 0,
) -> str:
    """The page."""
    other = setup.suite or setup.environment  # also the group of tasks without a family
    rows = rows_of(variants, records, other)
    compare = len(rows) > 1 and setup.mode is Mode.LOCKSTEP
    return render(
        Path(__file__).parent,
        "report.html.j2",
        title=f"Evaluation on {other}",
        policy=f"{setup.policy} ({setup.checkpoint})" if setup.checkpoint else setup.policy,
        mode=_MODES[setup.mode],
        route=_ROUTES[setup.route],
        setup=setup,
        rows=rows,
        played=_played(rows, records),
        uneven=_uneven(rows),
        name=plain,
        one_group=len(rows) == 1 and len(rows[0].groups) == 1,
        success=group_table(rows) if rows else None,
        figures_of=variant_table(rows, compare),
        compare=compare,
        drawable=available(),
        figures=_figures(rows) if rows and available() else [],
        acceptance=acceptance_table(rows),
        tasks=task_tables(rows, other, {r.job.task: r.sentence for r in records if r.sentence}),
        total=total,
        clips=clips(directory, records),
        failures=[
            table
            for table in (failure_table(records, rows, other), variant_failures(records, rows))
            if table is not None
        ],
        strips=strips(directory, records, other),
        command=command,
        facts=_facts(setup),
        variants=[_said(variant) for variant in variants],
    )


def _played(rows: Sequence[Row], records: Sequence[Record]) -> str:
    """ "168 episodes: 28 tasks, 6 variants"."""
    tasks = {record.job.task for record in records}
    played = f"{_count(len(records), 'episode')}: {_count(len(tasks), 'task')}"
    return played + (f", {_count(len(rows), 'variant')}" if len(rows) > 1 else "")


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def _uneven(rows: Sequence[Row]) -> str:
    """How many episodes each variant has; "" where all have the same number."""
    if len({row.all.episodes for row in rows}) < 2:
        return ""
    return ", ".join(f"{row.variant.label} {row.all.episodes}" for row in rows)


def _figures(rows: Sequence[Row]) -> list[Figure]:
    from vla_ros.evaluation.report.figures.age import age_figure
    from vla_ros.evaluation.report.figures.curves import sweep_figure
    from vla_ros.evaluation.report.figures.late import late_figure
    from vla_ros.evaluation.report.figures.times import times_figure

    drawn = [Figure("Chunks that come late", late_figure(rows), "late")]
    drawn.append(Figure("Age of the evidence", age_figure(rows), "age"))
    drawn += [
        Figure(f"{sweep.kind.title}: {plain(sweep.name)}", sweep_figure(sweep), "sweep")
        for kind in KINDS
        for sweep in sweeps(rows, kind)
    ]
    drawn.append(Figure("Time", times_figure(rows), "times"))
    return [figure for figure in drawn if figure.picture]


def _facts(setup: Setup) -> dict[str, str]:
    """Code, machine, and every field of the setup that says something."""
    facts = {
        "code": origin.code(),
        "machine": origin.machine(setup.device),
        "written": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        **{f.name.replace("_", " "): _plain(getattr(setup, f.name))
           for f in dataclasses.fields(setup)},
    }  # fmt: skip
    return {name: value for name, value in facts.items() if value}


def _plain(value: object) -> str:
    if isinstance(value, Mode):
        return value.value
    if isinstance(value, tuple):
        return " ".join(f"{one:g}" for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _said(variant: Variant) -> str:
    """ "label: field=value ..." of the fields that are not the defaults."""
    given = [
        f"{f.name}={_plain(getattr(variant, f.name))}"
        for f in dataclasses.fields(variant)
        if f.name != "label" and getattr(variant, f.name) != f.default
    ]
    return f"{variant.label}: {' '.join(given) or 'defaults'}"
