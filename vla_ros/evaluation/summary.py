"""The figures of an evaluation as JSON: summary.json and the last line of `--json`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from vla_ros.evaluation.records import Record, Setup, Spread, Variant
from vla_ros.evaluation.rows import Drafts, Outcome, Row, rows_of


def summary(
    setup: Setup, variants: Sequence[Variant], records: Sequence[Record], command: str = ""
) -> dict[str, Any]:
    """Everything, with the first variant's figures on top and each variant's in ``variants``.

    ``success_rate`` and ``wilson95`` are shares of 1, null without an episode; spreads in ms, those
    of ``seam`` and ``jerk`` in m and rad; null where there were none.
    """
    rows = rows_of(variants, records, setup.suite)
    own = {row.variant.label: _figures(row, records) for row in rows}
    first = next(iter(own.values()), {"success_rate": None, "wilson95": None, "episodes": 0})
    return {
        **first,
        "mode": setup.mode.value,
        "route": setup.route,
        "environment": setup.environment,
        "suite": setup.suite,
        "policy": setup.policy,
        "checkpoint": setup.checkpoint,
        "checkpoint_sha256": setup.checkpoint_sha256,
        "device": setup.device,
        "dtype": setup.dtype,
        "weights": setup.weights,
        "embodiment": setup.embodiment,
        "seed": setup.seed,
        "note": setup.note,
        "command": command,
        "variants": own,
    }


def _figures(row: Row, records: Sequence[Record]) -> dict[str, Any]:
    own = [record for record in records if record.job.variant == row.variant.label]
    failed = Counter(record.reason for record in own if not record.success)
    return {
        **_outcome(row.all),
        "by_group": _outcomes(row.groups),
        "by_task": _outcomes(row.tasks),
        "schedule": row.schedule,
        "schedule_asked": row.variant.schedule,
        "variant": row.variant.label,
        "observation_age_ms": _spread(row.age),
        "staleness_ms": _spread(row.staleness) if row.staleness.count else None,
        "told_delay": _spread(row.told) if row.told.count else None,
        "begun": _spread(row.begun) if row.begun.count else None,
        "seam": _spread(row.seam, 6) if row.seam.count else None,
        "jerk": _spread(row.jerk, 6) if row.jerk.count else None,
        "inference_ms": _spread(row.inference),
        "rate_hz": round(row.rate_hz, 3),
        "steps": row.steps,
        "held": round(row.held, 4),
        **_drafts(row.drafts),
        "solved_only": _drafts(row.solved),
        "same_actions": list(row.same),
        "failures": dict(failed.most_common()),
    }


def _drafts(drafts: Drafts) -> dict[str, Any]:
    return {
        "passes": None if drafts.passes is None else round(drafts.passes, 3),
        "drafted": list(drafts.drafted),
        "accepted": list(drafts.accepted),
        "acceptance": [None if a is None else round(a, 4) for a in drafts.acceptance],
    }


def _outcomes(outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    return {name: _outcome(outcome) for name, outcome in outcomes.items()}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "success_rate": round(outcome.rate, 4),
        "wilson95": [round(end, 4) for end in outcome.interval],
        "episodes": outcome.episodes,
        "successes": outcome.successes,
    }


def _spread(spread: Spread, digits: int = 3) -> dict[str, float]:
    marks = {"mean": spread.mean, "p50": spread.p50, "p95": spread.p95, "max": spread.quantile(100)}
    return {name: round(value, digits) for name, value in marks.items()}
