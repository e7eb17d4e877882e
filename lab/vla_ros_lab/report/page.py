"""The report of an evaluation: one HTML file with everything in it, which loads nothing.

The text is in ``report.html.j2``, the figures are :mod:`vla_ros_lab.report.figures`'.
"""

from __future__ import annotations

import base64
import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from markupsafe import Markup

from vla_ros.core import origin
from vla_ros.data.episodes.beside import ComparedEvaluation, lines, number_of, own
from vla_ros.data.episodes.plan import group_of
from vla_ros.data.episodes.records import Record, Setup, Spread, Variant
from vla_ros.data.episodes.rows import (
    DIMENSIONS,
    KINDS,
    Drafts,
    Successes,
    VariantRow,
    difficulty,
    plain,
    rows_of,
    sweeps,
)
from vla_ros.sim.episode import Mode
from vla_ros.viz.pages import Bar, Cell, Table, TableLine, cell, render
from vla_ros_lab.report.figures import age_figure, late_figure, sweep_figure, times_figure

# The tables of the report: success, the variants' figures, acceptance of drafts, every task.


NONE = "–"
_ABREAST = 4  # variants side by side in the table of tasks


def percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f}"


def success(outcome: Successes) -> Cell:
    """ "84.3 [79.1, 88.4]": success and its 95 % interval in per cent."""
    low, high = outcome.interval
    return Cell(f"{100 * outcome.rate:.1f}", aside=f"[{100 * low:.1f}, {100 * high:.1f}]")


def _bar(outcome: Successes | None, counts: bool = True, width: int = 76) -> Cell:
    if outcome is None:
        return Cell(NONE, "b")
    solved = f"{outcome.successes}/{outcome.episodes}" if counts else ""
    bar = Bar(outcome.rate, *outcome.interval, width)
    return Cell(f"{100 * outcome.rate:.0f} %", "b", solved, bar)


def group_table(rows: Sequence[VariantRow]) -> Table:
    """Success of every variant in every group, as bars."""
    columns: dict[str, list[Successes | None]] = {
        plain(group): [row.groups.get(group) for row in rows]
        for group in names(row.groups for row in rows)
    }
    if len(columns) > 1:
        columns["all"] = [row.all for row in rows]
    even = {name: len({o.episodes if o else 0 for o in found}) == 1
            for name, found in columns.items()}  # fmt: skip
    heads = [Cell("variant", "l")]
    for name, found in columns.items():
        episodes = found[0].episodes if found[0] and even[name] else 0
        heads.append(Cell(name, "b", _count(episodes, "episode") if episodes else ""))
    lines = (
        TableLine((
            _variant(row),
            *(_bar(found[i], not even[name]) for name, found in columns.items()),
        ))
        for i, row in enumerate(rows)
    )  # fmt: skip
    return Table(tuple(heads), tuple(lines))


def names(of: Iterable[Iterable[str]]) -> list[str]:
    """All names in order of their first appearance."""
    return list(dict.fromkeys(name for one in of for name in one))


def _variant(row: VariantRow, more: str = "") -> Cell:
    return Cell(plain(row.name) + more, "l")


# Variants


def _ms(spread: Spread) -> Cell:
    return Cell(f"{spread.p50:.1f} / {spread.p95:.1f}" if spread.count else NONE)


def _staleness(row: VariantRow) -> Cell:
    """Staleness; none of single actions that were made for the moment of their image: it is their
    age."""
    return _ms(row.staleness if row.begun.count or row.conditioning_delay.count else Spread())


def _thousandths(spread: Spread) -> Cell:
    """Thousandths of m and rad."""
    words = f"{1e3 * spread.p50:.1f} / {1e3 * spread.p95:.1f}"
    return Cell(words if spread.count else NONE)


def _same(row: VariantRow) -> Cell:
    same, both = row.same
    return Cell(f"{same} of {both}" if both else NONE)


_SAME = "same\nactions"
_COLUMNS: tuple[tuple[str, Callable[[VariantRow], Cell]], ...] = (
    ("success, % [95 %]", lambda r: success(r.all)),
    ("steps", lambda r: Cell(f"{r.steps:.0f}" if r.steps else NONE)),
    ("new actions\na second", lambda r: Cell(f"{r.rate_hz:.1f}" if r.rate_hz else NONE)),
    ("age, ms\np50 / p95", lambda r: _ms(r.age)),
    ("staleness, ms\np50 / p95", _staleness),
    ("conditioning delay,\nperiods p50 / p95", lambda r: _ms(r.conditioning_delay)),
    ("inference, ms\np50 / p95", lambda r: _ms(r.inference)),
    ("passes\nan action", lambda r: Cell(_passes(r.drafts))),
    ("drafts\naccepted, %", lambda r: Cell(percent(r.drafts.acceptance_all))),
    ("steps\nheld, %", lambda r: Cell(percent(r.held))),
    ("seam jump, 10⁻³\np50 / p95", lambda r: _thousandths(r.seam)),
    ("jerk, 10⁻³\np50 / p95", lambda r: _thousandths(r.jerk)),
    (_SAME, _same),
)  # fmt: skip


def variant_table(rows: Sequence[VariantRow], compare: bool) -> Table:
    """One line a variant with every figure; columns in which nobody has one are left out.

    ``compare``: with the episodes that are the same as the first variant's.
    """
    columns = [
        (head, [of(row) for row in rows]) for head, of in _COLUMNS if compare or head != _SAME
    ]
    kept = [(head, own) for head, own in columns if any(one.text != NONE for one in own)]
    heads = (Cell("variant", "l"), *(Cell(head) for head, _ in kept))
    lines = (TableLine((_variant(row), *(own[i] for _, own in kept))) for i, row in enumerate(rows))
    return Table(heads, tuple(lines))


def acceptance_table(rows: Sequence[VariantRow]) -> Table | None:
    """Share of accepted draft tokens per dimension; None when nothing was drafted."""
    lines = []
    for row in rows:
        shown = [(_variant(row), row.drafts)]
        if row.solved != row.drafts:
            shown.append((_variant(row, ", solved episodes"), row.solved))
        lines += [_drafts_line(*pair) for pair in shown if pair[1].acceptance_all is not None]
    heads = [Cell("variant", "l"), *map(Cell, DIMENSIONS), Cell("all")]
    heads += [Cell("drafted"), Cell("passes\nan action")]
    return Table(tuple(heads), tuple(lines)) if lines else None


def _drafts_line(label: Cell, drafts: Drafts) -> TableLine:
    shares = [*drafts.acceptance, *[None] * len(DIMENSIONS)][: len(DIMENSIONS)]
    cells = [Cell(percent(s), shade=s) for s in (*shares, drafts.acceptance_all)]
    return TableLine((label, *cells, cell(f"{sum(drafts.drafted):,}"), cell(_passes(drafts))))


def _passes(drafts: Drafts) -> str:
    return NONE if drafts.passes is None else f"{drafts.passes:.2f}"


# Tasks


def task_tables(
    rows: Sequence[VariantRow], other: str, instructions: Mapping[str, str] | None = None
) -> list[Table]:
    """Success of every task, grouped, a few variants side by side in each table. A task is named by
    the policy's instruction (``instructions``, by the task), its name behind it."""
    tasks = names(row.tasks for row in rows)
    parts = [rows[i : i + _ABREAST] for i in range(0, len(rows), _ABREAST)]
    return [_task_table(part, tasks, other, instructions or {}) for part in parts]


def _task_table(
    rows: Sequence[VariantRow], tasks: Sequence[str], other: str, instructions: Mapping[str, str]
) -> Table:
    heads = (Cell("task", "w"), *(Cell(plain(row.variant.label), "b") for row in rows))
    width = 76 if len(rows) > 2 else 180  # px of a bar
    groups: dict[str, list[str]] = {}
    for task in tasks:
        groups.setdefault(group_of(task, other), []).append(task)
    lines = []
    for group, members in groups.items():
        if len(groups) > 1 and len(members) > 1:
            bars = (_bar(row.groups.get(group), width=width) for row in rows)
            lines.append(TableLine((Cell(plain(group), "w"), *bars), "g"))
        for task in members:
            bars = (_bar(row.tasks.get(task), width=width) for row in rows)
            own = instructions.get(task, "")
            name = Cell(own, "w", plain(task)) if own else Cell(plain(task), "w")
            lines.append(TableLine((name, *bars)))
    if len(tasks) > 1:
        lines.append(
            TableLine((Cell("all", "w"), *(_bar(row.all, width=width) for row in rows)), "t")
        )
    return Table(heads, tuple(lines))


def beside_table(row: VariantRow, suite: str, others: Sequence[ComparedEvaluation]) -> Table:
    """Success of every task in other evaluations and in this one, the last column."""
    found = [*others, own(row, suite)]
    heads = (Cell("task", "w"), *(Cell(plain(one.name), "b") for one in found))
    names_of = {number_of(task): plain(task) for task in row.tasks}
    found_lines = []
    for task, outcomes in lines(found):
        cells = (Cell(names_of.get(task, task), "w"), *map(_bar, outcomes))
        found_lines.append(TableLine(cells, "t" if task == "all" else ""))
    return Table(heads, tuple(found_lines))


# The tables of what failed, and by what failures are counted.


_REASONS = 7  # columns of reasons; the rest is summed up


def kind_of(reason: str) -> str:
    """Kind of a failure: the reason up to its details, numbers left out."""
    head = reason.split(":")[0]
    return re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)?", "…", head)).strip() or "no reason"


def failure_table(
    records: Sequence[Record], rows: Sequence[VariantRow], other: str
) -> Table | None:
    """Failures by reason: in every group, and an example; None without failures."""
    failed = [record for record in records if not record.success]
    if not failed:
        return None
    kinds = Counter(kind_of(record.reason) for record in failed)
    groups = names(row.groups for row in rows)
    groups = groups if len(groups) > 1 else []
    heads = [Cell("ended by", "w"), Cell("episodes"), *(Cell(plain(g)) for g in groups)]
    heads.append(Cell("for example", "w"))
    lines = []
    for kind, count in kinds.most_common():
        own = [record for record in failed if kind_of(record.reason) == kind]
        each = Counter(group_of(record.job.task, other) for record in own)
        why = own[0].error or own[0].reason
        example = "" if why == kind else why[:160]
        cells = [cell(kind, "w"), cell(count), *(cell(each[g] or NONE) for g in groups)]
        lines.append(TableLine((*cells, cell(example, "w"))))
    if len(kinds) > 1:
        each = Counter(group_of(record.job.task, other) for record in failed)
        cells = [cell("all", "w"), cell(len(failed)), *(cell(each[g] or NONE) for g in groups)]
        lines.append(TableLine((*cells, cell("")), "t"))
    return Table(tuple(heads), tuple(lines))


def variant_failures(records: Sequence[Record], rows: Sequence[VariantRow]) -> Table | None:
    """Failures by reason of every variant; None without failures or with one variant."""
    failed = [record for record in records if not record.success]
    if not failed or len(rows) < 2:
        return None
    kinds = [kind for kind, _ in Counter(kind_of(r.reason) for r in failed).most_common()]
    shown, rest = kinds[:_REASONS], kinds[_REASONS:]
    counts = Counter((r.job.variant, kind_of(r.reason)) for r in failed)
    heads = [Cell("variant", "l"), Cell("failed"), *(cell(kind, "k") for kind in shown)]
    heads += [Cell("other")] if rest else []
    lines = []
    for row in rows:
        label = row.variant.label
        cells = [cell(counts[label, kind] or NONE) for kind in shown]
        cells += [cell(sum(counts[label, kind] for kind in rest) or NONE)] if rest else []
        total = row.all.episodes - row.all.successes
        lines.append(TableLine((Cell(plain(label), "l"), cell(total or NONE), *cells)))
    return Table(tuple(heads), tuple(lines))


# The strips of frames of a report, embedded.


CLIPS = 24  # at most in one page
_TYPES = {".webp": "image/webp", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png"}
_LARGEST = 1_000_000  # bytes of an image


@dataclass(frozen=True, slots=True)
class ReportImage:
    """One strip or clip, as a data URL, and its ``caption``. ``name``: the episode's, whole.
    ``heading``: of a group that it begins."""

    name: str
    source: str
    task: str
    instruction: str
    caption: str
    heading: str = ""


def strips(directory: Path, records: Sequence[Record], other: str) -> list[ReportImage]:
    """One image a task, by difficulty.

    Images are read from inside ``directory`` only. One that is missing is left out.
    """
    with_strip = [record for record in records if record.strip]
    with_strip.sort(key=lambda r: (difficulty(r.job.task), r.job.number))
    several = len({group_of(r.job.task, other) for r in with_strip}) > 1
    found: list[ReportImage] = []
    seen: set[str] = set()
    group = ""
    for record in with_strip:
        source = _embedded(directory, record.strip)
        if not source or record.job.task in seen:
            continue
        seen.add(record.job.task)
        own = group_of(record.job.task, other) if several else ""
        found.append(_image(record, source, plain(own) if own != group else ""))
        group = own
    return found


def clips(directory: Path, records: Sequence[Record]) -> list[ReportImage]:
    """Failed episodes: the first of every variant and task before the second of any."""
    failed = sorted((r for r in records if r.clip and not r.success), key=lambda r: r.job.number)
    turns: Counter[tuple[str, str]] = Counter()
    ordered: list[tuple[int, Record]] = []
    for record in failed:
        kind = (record.job.variant, record.job.task)
        ordered.append((turns[kind], record))
        turns[kind] += 1
    ordered.sort(key=lambda pair: pair[0])
    found: list[ReportImage] = []
    for _, record in ordered:
        if len(found) < CLIPS and (source := _embedded(directory, record.clip)):
            image = _image(record, source, "")
            found.append(replace(image, caption=f"{plain(record.job.variant)}, {image.caption}"))
    return found


def _image(record: Record, source: str, heading: str) -> ReportImage:
    end = "solved" if record.success else f"not solved: {plain(kind_of(record.reason))}"
    caption = f"initial state {record.job.initial_state}: {end}, {record.steps} steps"
    job = record.job
    instruction = plain(record.instruction or job.instruction)
    return ReportImage(job.key(), source, plain(job.task), instruction, caption, heading)


def _embedded(directory: Path, name: str) -> str:
    """The image as a data URL; "" when it is missing, too large, outside, or no image."""
    path = (directory / name).resolve()
    kind = _TYPES.get(path.suffix.lower())
    if kind is None or not path.is_relative_to(directory.resolve()):
        return ""
    try:
        if path.stat().st_size > _LARGEST:
            return ""
        content = path.read_bytes()
    except OSError:
        return ""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


FILE = "report.html"
_MODES = {
    Mode.LOCKSTEP: "lock-step (the world waits for every action)",
    Mode.REALTIME: "real time (the world does not wait)",
}
_ROUTES = {"ros": "through the ROS graph", "direct": "straight on the policy, without ROS"}


@dataclass(frozen=True, slots=True)
class ReportFigure:
    """A figure under a heading; ``kind`` names the text that explains it: late, age, sweep,
    times."""

    heading: str
    svg: Markup
    kind: str


def write_report(
    directory: Path,
    setup: Setup,
    variants: Sequence[Variant],
    records: Sequence[Record],
    command: str,
    total: int = 0,
    beside: Sequence[ComparedEvaluation] = (),
) -> Path:
    """Write ``report.html`` into the evaluation's directory, in place of an earlier one.

    Images are read from there. ``command`` is what reproduces the evaluation. ``total``: the
    episodes that there will be, where it still runs. ``beside``: other evaluations.
    OSError: the file cannot be written.
    """
    path = directory / FILE
    unfinished = path.with_suffix(".part")
    content = html(directory, setup, variants, records, command, total, beside)
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
    beside: Sequence[ComparedEvaluation] = (),
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
        figures=_figures(rows) if rows else [],
        acceptance=acceptance_table(rows),
        tasks=task_tables(
            rows, other, {r.job.task: r.instruction for r in records if r.instruction}
        ),
        beside=beside_table(rows[0], other, beside) if rows and beside else None,
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
        variants=[_fields(variant) for variant in variants],
    )


def _played(rows: Sequence[VariantRow], records: Sequence[Record]) -> str:
    """ "168 episodes: 28 tasks, 6 variants"."""
    tasks = {record.job.task for record in records}
    played = f"{_count(len(records), 'episode')}: {_count(len(tasks), 'task')}"
    return played + (f", {_count(len(rows), 'variant')}" if len(rows) > 1 else "")


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def _uneven(rows: Sequence[VariantRow]) -> str:
    """Numbers of episodes by variant; "" where all have the same number."""
    if len({row.all.episodes for row in rows}) < 2:
        return ""
    return ", ".join(f"{row.variant.label} {row.all.episodes}" for row in rows)


def _figures(rows: Sequence[VariantRow]) -> list[ReportFigure]:
    drawn = [ReportFigure("Chunks that come late", late_figure(rows), "late")]
    drawn.append(ReportFigure("Age of the observation", age_figure(rows), "age"))
    drawn += [
        ReportFigure(f"{sweep.kind.title}: {plain(sweep.name)}", sweep_figure(sweep), "sweep")
        for kind in KINDS
        for sweep in sweeps(rows, kind)
    ]
    drawn.append(ReportFigure("Time", times_figure(rows), "times"))
    return [figure for figure in drawn if figure.svg]


def _facts(setup: Setup) -> dict[str, str]:
    """Code, machine, and every field of the setup that is not empty."""
    facts = {
        "code": origin.code(),
        "machine": origin.machine(setup.device),
        "written": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        **{f.name.replace("_", " "): _plain(getattr(setup, f.name))
           for f in dataclasses.fields(setup)},
    }  # fmt: skip
    return {name: value for name, value in facts.items() if value}


def _plain(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, Mode):
        return value.value
    if isinstance(value, tuple):
        if any(isinstance(one, str) for one in value):
            return "; ".join(map(str, value))
        return " ".join(f"{one:g}" for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _fields(variant: Variant) -> str:
    """ "label: field=value ..." of the fields that are not the defaults."""
    given = [
        f"{f.name}={_plain(getattr(variant, f.name))}"
        for f in dataclasses.fields(variant)
        if f.name != "label" and getattr(variant, f.name) != f.default
    ]
    return f"{variant.label}: {' '.join(given) or 'defaults'}"
