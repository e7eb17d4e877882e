"""One episode as a bridge tells it, and the policy in it, in words. Free of ROS."""

from __future__ import annotations

from dataclasses import dataclass

from vla_ros.monitoring import StatusSeen


@dataclass(frozen=True, slots=True)
class Episode:
    """One EpisodeStatus. ``ended``: "success", "failure", or empty while it goes on.

    ``achieved_rate_hz``: control steps per second of wall time, to be ``control_rate_hz``.
    ``applied`` of the ``step`` steps executed a new action of the policy.
    """

    number: int
    stamp_ns: int
    running: bool
    ended: str
    reason: str
    task: str
    instruction: str
    initial_state: int
    step: int
    max_steps: int
    control_rate_hz: float = 0.0
    achieved_rate_hz: float = 0.0
    applied: int = 0


def policy_in_words(status: StatusSeen | None) -> str:
    """The policy's state and why, for a person."""
    return f"policy {status.state.name}: {status.reason}" if status else "no policy was heard"
