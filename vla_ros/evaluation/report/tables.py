"""The tables of the report: success, the variants' figures, acceptance of drafts, every task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from vla_ros.evaluation.plan import group_of
from vla_ros.evaluation.records import Spread
from vla_ros.evaluation.rows import DIMENSIONS, Drafts, Outcome, Row, plain
from vla_ros.pages.table import Bar, Cell, Line, Table, cell

NONE = "–"
_ABREAST = 4  # variants side by side in the table of tasks


def percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f}"


def success(outcome: Outcome) -> Cell:
    """ "84.3 [79.1, 88.4]": success and its 95 % interval in per cent."""
    low, high = outcome.interval
    return Cell(f"{100 * outcome.rate:.1f}", aside=f"[{100 * low:.1f}, {100 * high:.1f}]")


def _bar(outcome: Outcome | None, counts: bool = True, width: int = 76) -> Cell:
    if outcome is None:
        return Cell(NONE, "b")
    solved = f"{outcome.successes}/{outcome.episodes}" if counts else ""
    bar = Bar(outcome.rate, *outcome.interval, width)
    return Cell(f"{100 * outcome.rate:.0f} %", "b", solved, bar)


def group_table(rows: Sequence[Row]) -> Table:
    """Success of every variant in every group, as bars."""
    columns: dict[str, list[Outcome | None]] = {
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
        heads.append(Cell(name, "b", f"{episodes} episodes" if episodes else ""))
    lines = (
        Line((
            _variant(row),
            *(_bar(found[i], not even[name]) for name, found in columns.items()),
        ))
        for i, row in enumerate(rows)
    )  # fmt: skip
    return Table(tuple(heads), tuple(lines))


def names(of: Iterable[Iterable[str]]) -> list[str]:
    """All names in order of their first appearance."""
    return list(dict.fromkeys(name for one in of for name in one))


def _variant(row: Row, more: str = "") -> Cell:
    return Cell(plain(row.name) + more, "l")


# ----------------------------------------------------------------------------- variants


def _ms(spread: Spread) -> Cell:
    return Cell(f"{spread.p50:.1f} / {spread.p95:.1f}" if spread.count else NONE)


def _staleness(row: Row) -> Cell:
    """Of single actions that were made for the moment of their image it is the age."""
    return _ms(row.staleness if row.begun.count or row.told.count else Spread())


def _thousandths(spread: Spread) -> Cell:
    """Of m and rad."""
    words = f"{1e3 * spread.p50:.1f} / {1e3 * spread.p95:.1f}"
    return Cell(words if spread.count else NONE)


def _same(row: Row) -> Cell:
    same, both = row.same
    return Cell(f"{same} of {both}" if both else NONE)


_SAME = "same\nactions"
_COLUMNS: tuple[tuple[str, Callable[[Row], Cell]], ...] = (
    ("success, % [95 %]", lambda r: success(r.all)),
    ("steps", lambda r: Cell(f"{r.steps:.0f}" if r.steps else NONE)),
    ("new actions\na second", lambda r: Cell(f"{r.rate_hz:.1f}" if r.rate_hz else NONE)),
    ("age, ms\np50 / p95", lambda r: _ms(r.age)),
    ("staleness, ms\np50 / p95", _staleness),
    ("delay told,\nperiods p50 / p95", lambda r: _ms(r.told)),
    ("inference, ms\np50 / p95", lambda r: _ms(r.inference)),
    ("passes\nan action", lambda r: Cell(_passes(r.drafts))),
    ("drafts\naccepted, %", lambda r: Cell(percent(r.drafts.acceptance_all))),
    ("steps\nheld, %", lambda r: Cell(percent(r.held))),
    ("seam jump, 10⁻³\np50 / p95", lambda r: _thousandths(r.seam)),
    ("jerk, 10⁻³\np50 / p95", lambda r: _thousandths(r.jerk)),
    (_SAME, _same),
)  # fmt: skip


def variant_table(rows: Sequence[Row], compare: bool) -> Table:
    """One line a variant with every figure; columns in which nobody has one are left out.

    ``compare``: with the episodes that are the same as the first variant's.
    """
    columns = [
        (head, [of(row) for row in rows]) for head, of in _COLUMNS if compare or head != _SAME
    ]
    kept = [(head, own) for head, own in columns if any(one.text != NONE for one in own)]
    heads = (Cell("variant", "l"), *(Cell(head) for head, _ in kept))
    lines = (Line((_variant(row), *(own[i] for _, own in kept))) for i, row in enumerate(rows))
    return Table(heads, tuple(lines))


def acceptance_table(rows: Sequence[Row]) -> Table | None:
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


def _drafts_line(label: Cell, drafts: Drafts) -> Line:
    shares = [*drafts.acceptance, *[None] * len(DIMENSIONS)][: len(DIMENSIONS)]
    cells = [Cell(percent(s), shade=s) for s in (*shares, drafts.acceptance_all)]
    return Line((label, *cells, cell(f"{sum(drafts.drafted):,}"), cell(_passes(drafts))))


def _passes(drafts: Drafts) -> str:
    return NONE if drafts.passes is None else f"{drafts.passes:.2f}"


# -------------------------------------------------------------------------------- tasks


def task_tables(
    rows: Sequence[Row], other: str, sentences: Mapping[str, str] | None = None
) -> list[Table]:
    """Success of every task, grouped, a few variants side by side in each table. A task is called
    by what the policy was told (``sentences``, by the task), its name behind it."""
    tasks = names(row.tasks for row in rows)
    parts = [rows[i : i + _ABREAST] for i in range(0, len(rows), _ABREAST)]
    return [_task_table(part, tasks, other, sentences or {}) for part in parts]


def _task_table(
    rows: Sequence[Row], tasks: Sequence[str], other: str, sentences: Mapping[str, str]
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
            lines.append(Line((Cell(plain(group), "w"), *bars), "g"))
        for task in members:
            bars = (_bar(row.tasks.get(task), width=width) for row in rows)
            told = sentences.get(task, "")
            called = Cell(told, "w", plain(task)) if told else Cell(plain(task), "w")
            lines.append(Line((called, *bars)))
    if len(tasks) > 1:
        lines.append(Line((Cell("all", "w"), *(_bar(row.all, width=width) for row in rows)), "t"))
    return Table(heads, tuple(lines))
