"""What the time that a loaded policy takes means for its limits. Pure functions."""

from __future__ import annotations

from vla_ros.control.timeline import Chunking
from vla_ros.core import PolicyInfo
from vla_ros.safety import Limits


def refuse_unless_met(
    limits: Limits, info: PolicyInfo, inference_s: float, chunking: Chunking
) -> None:
    """Raise ValueError where the policy cannot act on evidence as young as ``limits`` want.

    ``inference_s``: L, the 99th percentile of inference at warm-up; 0 in lock-step, where the
    world waits and inference makes no evidence older.
    """
    least = chunking.least_age_s(limits, info, inference_s)
    if limits.max_age_s < least:
        kept = chunking.executed_of(info.chunk_length)
        late = chunking.delay_frames if info.chunk_length > 1 else 0
        raise ValueError(
            f"max_age_s {limits.max_age_s:g} cannot be met: camera period"
            f" {1e3 / limits.camera_rate_hz:.0f} ms, {info.pipeline_depth - 1 + late} frames of"
            f" pipeline and {kept} actions at {limits.period_s * 1e3:.0f} ms, inference"
            f" {inference_s * 1e3:.0f} ms need at least {least:.3f}"
        )


def hang_timeout_s(limits: Limits, inference_s: float) -> float:
    """max(3 L, 5 T, A) + T. Before A the robot still moves on valid evidence: a worker that is
    merely slow, on a busy machine, must not be killed for it."""
    period = limits.period_s
    return max(3 * inference_s, 5 * period, limits.max_age_s) + period
