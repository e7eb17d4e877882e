"""The report of an evaluation: one HTML file with everything in it, which loads nothing.

The figures need matplotlib; without it the report has its tables, and a line that says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime, timezone
from html import escape
from pathlib import Path

from vla_ros.evaluation import origin
from vla_ros.evaluation.records import Record, Setup, Variant
from vla_ros.evaluation.report.canvas import available
from vla_ros.evaluation.report.html import figure, page
from vla_ros.evaluation.report.rows import Row, rows_of
from vla_ros.evaluation.report.strips import strips
from vla_ros.evaluation.report.sweeps import KINDS, sweeps
from vla_ros.evaluation.report.tables import (
    acceptance_table,
    failure_table,
    group_table,
    task_tables,
    variant_failures,
    variant_table,
    words,
)
from vla_ros.sim.episode.state import Mode

FILE = "report.html"
_MODES = {
    Mode.LOCKSTEP: "lock-step (the world waits for every action)",
    Mode.REALTIME: "real time (the world does not wait)",
}
_ROUTES = {"ros": "through the ROS graph", "direct": "straight on the policy, without ROS"}
_NO_PLOTS = "Figures are left out: matplotlib is missing (pip install '.[plots]' in the checkout)."


def write_report(
    directory: Path,
    setup: Setup,
    variants: Sequence[Variant],
    records: Sequence[Record],
    command: str,
) -> Path:
    """Write ``report.html`` into the evaluation's directory, in place of an earlier one.

    Strips are read from there. ``command`` is what reproduces the evaluation. OSError: the
    file cannot be written.
    """
    path = directory / FILE
    unfinished = path.with_suffix(".part")
    content = html(directory, setup, variants, records, command)
    unfinished.write_text(content, encoding="utf-8", errors="replace")
    unfinished.replace(path)
    return path


def html(
    directory: Path,
    setup: Setup,
    variants: Sequence[Variant],
    records: Sequence[Record],
    command: str,
) -> str:
    """The page."""
    other = _place(setup)
    rows = rows_of(variants, records, other)
    title = f"Evaluation on {other}"
    parts = [_head(title, setup, rows, records)]
    if rows:
        parts += _results(setup, rows, records, other)
        pictures = strips(directory, records, other)
        if pictures:
            parts.append(f"<h2>One episode of every task</h2>{_STRIPS}{pictures}")
    parts.append(_origin(setup, variants, command))
    return page(title, "\n".join(filter(None, parts)))


def _results(setup: Setup, rows: Sequence[Row], records: Sequence[Record], other: str) -> list[str]:
    """Success first; for one variant its tasks at once, for several after what tells them apart."""
    compare = len(rows) > 1 and setup.mode is Mode.LOCKSTEP
    single = len(rows) == 1
    few = single and len(rows[0].groups) == 1
    tasks = _tasks(rows, other, explained=not few)
    return [
        "" if few else _success(rows),
        tasks if single else "",
        _variants(rows, compare),
        *_figures(rows),
        _acceptance(rows),
        "" if single else tasks,
        _failures(records, rows, other),
    ]


def _place(setup: Setup) -> str:
    """Name of the benchmark, and of the group of tasks without a family."""
    return setup.suite or setup.environment


def _head(title: str, setup: Setup, rows: Sequence[Row], records: Sequence[Record]) -> str:
    policy = f"{setup.policy} ({setup.checkpoint})" if setup.checkpoint else setup.policy
    sub = f"Policy {policy}; {_MODES[setup.mode]}, {_ROUTES[setup.route]}; seed {setup.seed}."
    lines = [f"<h1>{escape(title)}</h1>", f'<p class="sub">{escape(sub)}</p>']
    if setup.note:
        lines.append(f'<p class="note">{escape(setup.note)}</p>')
    if not rows:
        return "\n".join([*lines, '<p class="lead">No episode has been played yet.</p>'])
    first = rows[0]
    tasks = {record.job.task for record in records}
    played = f"{_count(len(records), 'episode')}: {_count(len(tasks), 'task')}"
    played += f", {_count(len(rows), 'variant')}" if len(rows) > 1 else ""
    who = f"<b>{words(first.variant.label)}</b>" if len(rows) > 1 else "The policy"
    low, high = (f"{100 * end:.1f}" for end in first.all.interval)
    solved = (
        f"{who} solved {first.all.successes} of {first.all.episodes},"
        f" <b>{100 * first.all.rate:.1f} %</b> (95 % interval {low} to {high} %)."
    )
    short = [f"{row.variant.label} {row.all.episodes}" for row in rows]
    uneven = len({row.all.episodes for row in rows}) > 1
    if uneven:
        solved += f" The variants do not have the same episodes yet: {escape(', '.join(short))}."
    return "\n".join([*lines, f'<p class="lead">{played}. {solved}</p>'])


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def _success(rows: Sequence[Row]) -> str:
    order = " Groups from easy to hard." if len(rows[0].groups) > 1 else ""
    return f'<h2>Success</h2><p class="cap">{_BARS}{order}</p>{group_table(rows)}'


def _variants(rows: Sequence[Row], compare: bool) -> str:
    caption = (
        "<b>steps</b>: median of the solved episodes. <b>age</b>: of the observation behind an"
        " action when it is executed. <b>steps held</b>: control steps without an action of the"
        " policy. <b>passes</b>: of the model, from an action's image to the action; a pipeline"
        " shares each of them among several actions."
    )
    if compare:
        first = words(rows[0].variant.label)
        caption += f" <b>same actions</b>: episodes with exactly the actions of {first}."
    head = "The variants" if len(rows) > 1 else "Figures"
    return f'<h2>{head}</h2><p class="cap">{caption}</p>{variant_table(rows, compare)}'


def _figures(rows: Sequence[Row]) -> list[str]:
    if not available():
        return [f'<p class="note">{escape(_NO_PLOTS)}</p>']
    from vla_ros.evaluation.report.age import age_figure
    from vla_ros.evaluation.report.curves import sweep_figure
    from vla_ros.evaluation.report.times import times_figure

    parts = []
    if drawn := age_figure(rows):
        parts.append(f"<h2>Age of the evidence</h2>{figure(drawn, _AGE)}")
    for kind in KINDS:
        for sweep in sweeps(rows, kind):
            head = f"<h2>{escape(sweep.kind.title)}: {words(sweep.name)}</h2>"
            parts.append(head + figure(sweep_figure(sweep), _SWEEP))
    if drawn := times_figure(rows):
        parts.append(f"<h2>Time</h2>{figure(drawn, _TIMES)}")
    return parts


_BARS = (
    "Bars: share of solved episodes, on a scale from 0 to 100 %. Whiskers: 95 % Wilson interval."
    " An episode that broke off counts as failed."
)
_AGE = (
    "One point a variant, with its 95 % interval on the left. Curves join variants that differ in"
    " one number only (delay, relaxed distance r, replan interval S). Points of the same age"
    " stand side by side."
)
_SWEEP = (
    "Left: success of all tasks (black, with its 95 % interval) and of every group. Variants differ"
    " in nothing but the number below."
)
_TIMES = (
    "Thin line: all values. Pale bar: 5 to 95 %. Dark bar: 25 to 75 %. Tick: median. In grey:"
    " median / 95 %. Quantiles pooled over all episodes of a variant."
)
_STRIPS = (
    '<p class="cap">The first episode of each task under the first variant: frames evenly spaced'
    " from the first to the last.</p>"
)


def _acceptance(rows: Sequence[Row]) -> str:
    found = acceptance_table(rows)
    caption = (
        "Drafted action tokens that the target accepted, in per cent, per dimension. A policy that"
        " fails often repeats itself, which is easy to draft: the solved episodes stand apart."
    )
    return f'<h2>Acceptance of drafts</h2><p class="cap">{caption}</p>{found}' if found else ""


def _tasks(rows: Sequence[Row], other: str, explained: bool) -> str:
    first, *more = task_tables(rows, other)
    rest = f"<details><summary>More variants</summary>{''.join(more)}</details>" if more else ""
    caption = "" if explained else f'<p class="cap">{_BARS}</p>'
    return f"<h2>Every task</h2>{caption}{first}{rest}"


def _failures(records: Sequence[Record], rows: Sequence[Row], other: str) -> str:
    found = failure_table(records, rows, other)
    if not found:
        return "<h2>Failures</h2><p>None.</p>"
    return f"<h2>Failures</h2>{found}{variant_failures(records, rows)}"


def _origin(setup: Setup, variants: Sequence[Variant], command: str) -> str:
    """Command, code, machine, and every field of the setup and the variants."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    facts = {
        "code": origin.code(),
        "machine": origin.machine(setup.device),
        "written": now,
        **{f.name.replace("_", " "): _plain(getattr(setup, f.name))
           for f in dataclasses.fields(setup)},
    }  # fmt: skip
    items = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items() if v)
    lines = "\n".join(_said(variant) for variant in variants)
    return (
        f"<h2>How to get these figures again</h2><pre>{escape(command)}</pre><dl>{items}</dl>"
        f'<p class="cap">Variants: what differs from the defaults</p><pre>{escape(lines)}</pre>'
    )


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
