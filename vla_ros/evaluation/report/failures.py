"""The tables of what failed, and by what failures are counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from vla_ros.evaluation.plan import group_of
from vla_ros.evaluation.records import Record
from vla_ros.evaluation.report.tables import NONE, names
from vla_ros.evaluation.rows import Row, plain
from vla_ros.pages.table import Cell, Line, Table, cell

_REASONS = 7  # columns of reasons; the rest is summed up


def kind_of(reason: str) -> str:
    """What failures are counted by: the reason up to its details, numbers left out."""
    head = reason.split(":")[0]
    return re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)?", "…", head)).strip() or "no reason"


def failure_table(records: Sequence[Record], rows: Sequence[Row], other: str) -> Table | None:
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
        said = own[0].error or own[0].reason
        example = "" if said == kind else said[:160]
        cells = [cell(kind, "w"), cell(count), *(cell(each[g] or NONE) for g in groups)]
        lines.append(Line((*cells, cell(example, "w"))))
    if len(kinds) > 1:
        each = Counter(group_of(record.job.task, other) for record in failed)
        cells = [cell("all", "w"), cell(len(failed)), *(cell(each[g] or NONE) for g in groups)]
        lines.append(Line((*cells, cell("")), "t"))
    return Table(tuple(heads), tuple(lines))


def variant_failures(records: Sequence[Record], rows: Sequence[Row]) -> Table | None:
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
        lines.append(Line((Cell(plain(label), "l"), cell(total or NONE), *cells)))
    return Table(tuple(heads), tuple(lines))
