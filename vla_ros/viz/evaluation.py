"""The tables that end an evaluation: its variants, then families and tasks of the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vla_ros.core.console import Table
from vla_ros.data.episodes.beside import ComparedEvaluation, lines, own
from vla_ros.data.episodes.plan import group_of
from vla_ros.data.episodes.records import Record, Setup, Variant
from vla_ros.data.episodes.rows import Successes, VariantRow, rows_of

if TYPE_CHECKING:
    from rich.console import RenderableType

_SPARE = ("held", "actions", "age p50")  # columns where there is no room
_OUTCOME = ("solved", "success", "95 % Wilson")


def tables(
    setup: Setup,
    variants: Sequence[Variant],
    records: Sequence[Record],
    beside: Sequence[ComparedEvaluation] = (),
) -> tuple[RenderableType, ...]:
    """One below the other."""
    rows = rows_of(variants, records, setup.suite)
    if not rows:
        return ("no episode was played",)
    shown: list[RenderableType] = [
        Table(("variant", *_OUTCOME, "age p50", "actions", "held"), map(_variant, rows), _SPARE),
        "",
    ]
    shown.append(Table(("task", *_OUTCOME), _tasks(rows[0], setup.suite)))
    if len(rows) > 1:
        shown += ["", f"families and tasks: {rows[0].name}; the others are in the report"]
    if beside:
        shown += ["", _beside_table([*beside, own(rows[0], setup.suite or setup.environment)])]
    return tuple(shown)


def _beside_table(found: Sequence[ComparedEvaluation]) -> RenderableType:
    """Solved of played: a task a row, an evaluation a column, this one last."""
    rows = (
        (task, *(f"{one.successes}/{one.episodes}" if one else "–" for one in outcomes))
        for task, outcomes in lines(found)
    )
    return Table(("task", *(one.name for one in found)), rows)


def _variant(row: VariantRow) -> tuple[str, ...]:
    rates = f"{row.age.p50:.0f} ms", f"{row.rate_hz:.1f} Hz", f"{100 * row.held:.1f} %"
    return (row.name, *_outcome(row.all), *rates)


def _tasks(row: VariantRow, suite: str) -> Iterator[tuple[str, ...]]:
    """Every group with its tasks below it."""
    for group, outcome in row.groups.items():
        yield (group or "all", *_outcome(outcome))
        for task, single in row.tasks.items():
            if group_of(task, suite) == group:
                yield (f"  {task}", *_outcome(single))


def _outcome(outcome: Successes) -> tuple[str, str, str]:
    low, high = (100 * end for end in outcome.interval)
    solved = f"{outcome.successes}/{outcome.episodes}"
    return solved, f"{100 * outcome.rate:.1f} %", f"{low:.1f} to {high:.1f}"
