"""The tables of the report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from html import escape

from vla_ros.evaluation.plan import group_of
from vla_ros.evaluation.records import Record, Spread
from vla_ros.evaluation.report.html import Cell, Line, shade, success_bar, table, text
from vla_ros.evaluation.report.rows import DIMENSIONS, Drafts, Outcome, Row, plain

NONE = "–"
_ABREAST = 4  # variants side by side in the table of tasks
_REASONS = 7  # columns of reasons; the rest is summed up


def words(name: str) -> str:
    """:func:`plain` as HTML."""
    return escape(plain(name))


def percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f}"


def interval(outcome: Outcome) -> str:
    """ "84.3 [79.1, 88.4]": success and its 95 % interval in per cent."""
    low, high = outcome.interval
    return f'{100 * outcome.rate:.1f} <span class="ci">[{100 * low:.1f}, {100 * high:.1f}]</span>'


def _bar(outcome: Outcome | None, counts: bool = True, width: int = 76) -> Cell:
    if outcome is None:
        return Cell(NONE, "b")
    drawn = success_bar(outcome.rate, *outcome.interval, width)
    share = f'<span class="n">{100 * outcome.rate:.0f} %</span>'
    solved = f" <small>{outcome.successes}/{outcome.episodes}</small>" if counts else ""
    return Cell(f"{drawn}{share}{solved}", "b")


def group_table(rows: Sequence[Row]) -> str:
    """Success of every variant in every group, as bars."""
    columns: dict[str, list[Outcome | None]] = {
        words(group): [row.groups.get(group) for row in rows]
        for group in names(row.groups for row in rows)
    }
    if len(columns) > 1:
        columns["all"] = [row.all for row in rows]
    even = {name: len({o.episodes if o else 0 for o in found}) == 1
            for name, found in columns.items()}  # fmt: skip
    heads = [Cell("variant", "l")]
    for name, found in columns.items():
        episodes = found[0].episodes if found[0] and even[name] else 0
        said = f"<br><small>{episodes} episodes</small>" if episodes else ""
        heads.append(Cell(name + said, "b"))
    lines = [
        Line([
            Cell(words(row.variant.label), "l"),
            *(_bar(found[i], not even[name]) for name, found in columns.items()),
        ])
        for i, row in enumerate(rows)
    ]  # fmt: skip
    return table(heads, lines)


def names(of: Iterable[Iterable[str]]) -> list[str]:
    """All names in order of their first appearance."""
    return list(dict.fromkeys(name for one in of for name in one))


# ----------------------------------------------------------------------------- variants


def _ms(spread: Spread) -> str:
    return f"{spread.p50:.1f} / {spread.p95:.1f}" if spread.count else NONE


def _same(row: Row) -> str:
    same, both = row.same
    return f"{same} of {both}" if both else NONE


_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("success, % [95 %]", lambda r: interval(r.all)),
    ("steps", lambda r: f"{r.steps:.0f}" if r.steps else NONE),
    ("new actions<br>a second", lambda r: f"{r.rate_hz:.1f}" if r.rate_hz else NONE),
    ("age, ms<br>p50 / p95", lambda r: _ms(r.age)),
    ("inference, ms<br>p50 / p95", lambda r: _ms(r.inference)),
    ("passes<br>an action", lambda r: _passes(r.drafts)),
    ("drafts<br>accepted, %", lambda r: percent(r.drafts.acceptance_all)),
    ("steps<br>held, %", lambda r: percent(r.held)),
    ("same<br>actions", _same),
)  # fmt: skip


def variant_table(rows: Sequence[Row], compare: bool) -> str:
    """One line a variant with every figure; columns in which nobody has one are left out.

    ``compare``: with the episodes that are the same as the first variant's.
    """
    cells = [(head, [of(row) for row in rows]) for head, of in _COLUMNS]
    if not compare:
        cells = [(head, column) for head, column in cells if head != "same<br>actions"]
    kept = [(head, column) for head, column in cells if any(c != NONE for c in column)]
    heads = [Cell("variant", "l"), *(Cell(head) for head, _ in kept)]
    lines = [
        Line([Cell(words(row.variant.label), "l"), *(Cell(column[i]) for _, column in kept)])
        for i, row in enumerate(rows)
    ]
    return table(heads, lines)


def acceptance_table(rows: Sequence[Row]) -> str:
    """Share of accepted draft tokens per dimension; "" when nothing was drafted."""
    lines = []
    for row in rows:
        name = words(row.variant.label)
        shown = [(name, row.drafts)]
        if row.solved != row.drafts:
            shown.append((f"{name}, solved episodes", row.solved))
        lines += [_drafts_line(*pair) for pair in shown if pair[1].acceptance_all is not None]
    heads = [Cell("variant", "l"), *(Cell(name) for name in DIMENSIONS), Cell("all")]
    heads += [Cell("drafted"), Cell("passes<br>an action")]
    return table(heads, lines) if lines else ""


def _drafts_line(label: str, drafts: Drafts) -> Line:
    shares = [*drafts.acceptance, *[None] * len(DIMENSIONS)][: len(DIMENSIONS)]
    cells = [
        Cell(percent(s), style=shade(s) if s is not None else "")
        for s in (*shares, drafts.acceptance_all)
    ]
    return Line([Cell(label, "l"), *cells, text(f"{sum(drafts.drafted):,}"), text(_passes(drafts))])


def _passes(drafts: Drafts) -> str:
    return NONE if drafts.passes is None else f"{drafts.passes:.2f}"


# -------------------------------------------------------------------------------- tasks


def task_tables(rows: Sequence[Row], other: str) -> list[str]:
    """Success of every task, grouped, a few variants side by side in each table."""
    tasks = names(row.tasks for row in rows)
    parts = [rows[i : i + _ABREAST] for i in range(0, len(rows), _ABREAST)]
    return [_task_table(part, tasks, other) for part in parts]


def _task_table(rows: Sequence[Row], tasks: Sequence[str], other: str) -> str:
    heads = [Cell("task", "w"), *(Cell(words(row.variant.label), "b") for row in rows)]
    width = 76 if len(rows) > 2 else 180  # px of a bar
    groups: dict[str, list[str]] = {}
    for task in tasks:
        groups.setdefault(group_of(task, other), []).append(task)
    lines = []
    for group, members in groups.items():
        if len(groups) > 1 and len(members) > 1:
            bars = [_bar(row.groups.get(group), width=width) for row in rows]
            lines.append(Line([Cell(words(group), "w"), *bars], "g"))
        for task in members:
            bars = [_bar(row.tasks.get(task), width=width) for row in rows]
            lines.append(Line([Cell(words(task), "w"), *bars]))
    if len(tasks) > 1:
        lines.append(Line([Cell("all", "w"), *(_bar(row.all, width=width) for row in rows)], "t"))
    return table(heads, lines)


# ----------------------------------------------------------------------------- failures


def kind_of(reason: str) -> str:
    """What failures are counted by: the reason up to its details, numbers left out."""
    head = reason.split(":")[0]
    return re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)?", "…", head)).strip() or "no reason"


def failure_table(records: Sequence[Record], rows: Sequence[Row], other: str) -> str:
    """Failures by reason: in every group, and an example; "" without failures."""
    failed = [record for record in records if not record.success]
    if not failed:
        return ""
    kinds = Counter(kind_of(record.reason) for record in failed)
    groups = names(row.groups for row in rows)
    groups = groups if len(groups) > 1 else []
    heads = [Cell("ended by", "w"), Cell("episodes"), *(Cell(words(g)) for g in groups)]
    heads.append(Cell("for example", "w"))
    lines = []
    for kind, count in kinds.most_common():
        own = [record for record in failed if kind_of(record.reason) == kind]
        each = Counter(group_of(record.job.task, other) for record in own)
        said = own[0].error or own[0].reason
        example = "" if said == kind else said[:160]
        cells = [text(kind, "w"), text(count), *(text(each[g] or NONE) for g in groups)]
        lines.append(Line([*cells, text(example, "w")]))
    if len(kinds) > 1:
        each = Counter(group_of(record.job.task, other) for record in failed)
        cells = [text("all", "w"), text(len(failed)), *(text(each[g] or NONE) for g in groups)]
        lines.append(Line([*cells, text("")], "t"))
    return table(heads, lines)


def variant_failures(records: Sequence[Record], rows: Sequence[Row]) -> str:
    """Failures by reason of every variant; "" without failures or with one variant."""
    failed = [record for record in records if not record.success]
    if not failed or len(rows) < 2:
        return ""
    kinds = [kind for kind, _ in Counter(kind_of(r.reason) for r in failed).most_common()]
    shown, rest = kinds[:_REASONS], kinds[_REASONS:]
    counts = Counter((r.job.variant, kind_of(r.reason)) for r in failed)
    heads = [Cell("variant", "l"), Cell("failed"), *(text(kind, "k") for kind in shown)]
    heads += [Cell("other")] if rest else []
    lines = []
    for row in rows:
        label = row.variant.label
        cells = [text(counts[label, kind] or NONE) for kind in shown]
        cells += [text(sum(counts[label, kind] for kind in rest) or NONE)] if rest else []
        total = row.all.episodes - row.all.successes
        lines.append(Line([Cell(words(label), "l"), text(total or NONE), *cells]))
    return table(heads, lines)
