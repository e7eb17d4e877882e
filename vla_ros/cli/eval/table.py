"""What `vla-ros eval` prints at its end: the variants, then families and tasks of the first."""

from __future__ import annotations

from collections.abc import Sequence

from vla_ros.evaluation.plan import group_of
from vla_ros.evaluation.records import Record, Setup, Variant
from vla_ros.evaluation.report.rows import Outcome, Row, rows_of

_HEAD = f"{'solved':>9}  {'success':>8}  95 % Wilson"


def table(setup: Setup, variants: Sequence[Variant], records: Sequence[Record]) -> str:
    """All of it as lines of text."""
    rows = rows_of(variants, records, setup.suite)
    if not rows:
        return "no episode was played"
    width = max(24, *(len(row.variant.label) for row in rows))
    lines = [f"{'variant':<{width}}{_HEAD}  {'age p50':>8}  {'actions':>8}  {'held':>6}"]
    lines += [
        f"{row.variant.label:<{width}}{_outcome(row.all)}  {row.age.p50:5.0f} ms"
        f"  {row.rate_hz:5.1f} Hz  {100 * row.held:4.1f} %"
        for row in rows
    ]
    lines += ["", *_tasks(rows[0], setup.suite, width)]
    if len(rows) > 1:
        lines += ["", f"families and tasks: {rows[0].variant.label}; the others are in the report"]
    return "\n".join(lines)


def _tasks(row: Row, suite: str, width: int) -> list[str]:
    lines = [f"{'task':<{width}}{_HEAD}"]
    for group, outcome in row.groups.items():
        name = group or "all"
        lines.append(f"{name:<{width}}{_outcome(outcome)}")
        for task, single in row.tasks.items():
            if group_of(task, suite) == group:
                lines.append(f"  {task:<{width - 2}}{_outcome(single)}")
    return lines


def _outcome(outcome: Outcome) -> str:
    low, high = (100 * end for end in outcome.interval)
    solved = f"{outcome.successes}/{outcome.episodes}"
    return f"{solved:>9}  {100 * outcome.rate:6.1f} %  {f'{low:.1f} to {high:.1f}':>13}"
