"""From a gated action to the command that says what it rests on and where the time went."""

from __future__ import annotations

from vla_ros.control.actions import Answer, Candidate
from vla_ros.core import STAGES
from vla_ros.timing import MS, Moment


def stages_ms(answer: Answer, now: Moment) -> dict[str, float]:
    """Durations of all stages of a command published at ``now``, in milliseconds.

    ``transport`` is a difference of stamps (capture and receipt lie in two processes), all
    others are steady time. ``gate`` is what is left from the end of the inference to ``now``,
    so the stages sum to the time since capture.
    """
    timeline = answer.inference.timeline
    spent = timeline.durations_ms()
    spent["transport"] = (answer.received_ns - answer.inference.stamp_ns) / MS
    spent["gate"] = spent.get("gate", 0.0) + (now.steady_ns - timeline.end_ns) / MS
    return {stage: spent.get(stage, 0.0) for stage in STAGES}


def total_ms(answer: Answer, now: Moment, sim_time: bool) -> float:
    """Capture to publication in milliseconds: by the stamps, or in simulated time, which
    stands still while a policy thinks, by the steady clock from receipt on."""
    if not sim_time:
        return (now.now_ns - answer.inference.stamp_ns) / MS
    transport = (answer.received_ns - answer.inference.stamp_ns) / MS
    return transport + (now.steady_ns - answer.received_steady_ns) / MS


def order_of(candidate: Candidate) -> tuple[int, int]:
    """Commands must be published in this order and never twice: frame, then place in chunk."""
    return candidate.answer.inference.stamp_ns, candidate.index
