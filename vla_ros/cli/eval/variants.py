"""The variants that the options of `vla-ros eval` ask for: every combination, each with a name."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vla_ros.cli.defaults import CHECKPOINT, DRAFT_CHECKPOINT, SCHEDULE, SCHEDULES
from vla_ros.control.timeline import Execution
from vla_ros.errors import UserError

if TYPE_CHECKING:
    from vla_ros.evaluation.records import Variant

IDENTITY, TRUE = "identity", "true"
MODEL_DRAFTED = "vanilla_speculative"  # by definition with a draft model
HETEROSPEC = "heterospec"  # by definition with a drafter that names alternatives
UNCERTAIN = ("temporal_tree", "head")


def variants_of(args: argparse.Namespace) -> tuple[Variant, ...]:
    """Every combination that the options ask for. Raises UserError."""
    from vla_ros.evaluation.records import Variant

    adaptive = args.mode == "realtime"
    try:
        return tuple(
            Variant(
                label=label + _suffix(execution, jacobian, replan, frames, delay_ms),
                adaptive_draft=adaptive,
                replan_interval=replan,
                delay_frames=frames,
                image_delay_ms=delay_ms,
                execution=execution,
                rtc_jacobian=jacobian,
                **options,
            )
            for label, options in _decodings(args)
            for execution, jacobian in _executions(args)
            for replan in args.replan_interval
            for frames in args.delay_frames
            for delay_ms in args.image_delay_ms
        )
    except ValueError as error:
        raise UserError(str(error)) from error


def _executions(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Every way to execute chunks; the Jacobian is a matter of rtc alone."""
    for jacobian in args.rtc_jacobian:
        _known("rtc-jacobian", jacobian, (IDENTITY, TRUE))
    for execution in args.execution:
        for jacobian in args.rtc_jacobian if execution == Execution.RTC else [IDENTITY]:
            yield execution, jacobian


def _suffix(execution: str, jacobian: str, replan: int, frames: int, delay_ms: float) -> str:
    executed = "" if execution == Execution.ASYNC else f",{execution}"
    executed += "" if jacobian == IDENTITY else f",{jacobian}"
    replans = executed + (f",S={replan}" if replan else "")
    delayed = f",d={frames}" if frames else ""
    return replans + delayed + (f",delay={delay_ms:g}ms" if delay_ms else "")


def _decodings(args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Label and fields of every way to decode."""
    from vla_ros.engine.options import ACCEPTANCES, DRAFTERS
    from vla_ros.evaluation.brain import DRAFTING

    if args.policy != "vla":
        yield args.policy, {}
        return
    for schedule in args.schedule or [SCHEDULE]:
        _known("schedule", schedule, SCHEDULES)
        if schedule not in DRAFTING:
            yield schedule, {"schedule": schedule}
            continue
        for drafter in _drafters(args, schedule):
            _known("drafter", drafter, DRAFTERS)
            if drafter == "model" and not args.draft_checkpoint:
                if args.checkpoint != CHECKPOINT:
                    raise UserError(f"--schedule {schedule} drafted by a model: --draft-checkpoint")
                args.draft_checkpoint = DRAFT_CHECKPOINT
            accepted = [(name, 0) for name in args.acceptance] + [
                ("relaxed", r) for r in args.relaxed
            ]
            for acceptance, distance in accepted:
                _known("acceptance", acceptance, ACCEPTANCES)
                yield _drafting(args, schedule, drafter, acceptance, distance)


def _drafters(args: argparse.Namespace, schedule: str) -> list[str]:
    """Those asked for that belong to a schedule; one of its own where none does."""
    if schedule == MODEL_DRAFTED:
        return ["model"]
    if schedule == HETEROSPEC:
        return [name for name in args.drafter if name in UNCERTAIN] or ["temporal_tree"]
    return list(args.drafter)


def _drafting(
    args: argparse.Namespace, schedule: str, drafter: str, acceptance: str, distance: int
) -> tuple[str, dict[str, Any]]:
    drafting = ("model",) if "model" in args.drafter else ("model", "head")
    parts = [schedule]
    plain = {MODEL_DRAFTED: "model", HETEROSPEC: "temporal_tree"}.get(schedule, "temporal")
    parts += [drafter] if drafter != plain else []
    parts += ["linear"] if drafter == "temporal" and args.extrapolation == "linear" else []
    parts += [acceptance] if acceptance != "exact" else []
    parts += [f"r={distance}"] if distance else []
    return ",".join(parts), {
        "schedule": schedule,
        "drafter": drafter,
        "draft_checkpoint": args.draft_checkpoint if drafter in drafting else "",
        "calibration": args.calibration if schedule == HETEROSPEC else "",
        "acceptance": acceptance,
        "relaxed_distance": distance,
        "draft_extrapolation": args.extrapolation,
    }


def _known(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"--{option} {value}: give {', '.join(known)}")
