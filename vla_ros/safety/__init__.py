"""What may move the robot: the states of the policy node and the gate before publication.

Pure functions of (state, action, time): they read no clock, hold nothing and log nothing, so
every rule can be tested by itself. The rules are those of the fault matrix in
docs/explanation/safety.md.
"""

from vla_ros.safety.gating import (
    ActionRefused,
    Gated,
    Gripper,
    gate,
    refuse_unless_numbers,
    steady_gripper,
)
from vla_ros.safety.limits import Limits, age_ns, least_max_age_s
from vla_ros.safety.states import (
    Safety,
    after_invalid,
    after_valid,
    enter,
    hold,
    recover,
)

__all__ = [
    "ActionRefused",
    "Gated",
    "Gripper",
    "Limits",
    "Safety",
    "after_invalid",
    "after_valid",
    "age_ns",
    "enter",
    "gate",
    "hold",
    "least_max_age_s",
    "recover",
    "refuse_unless_numbers",
    "steady_gripper",
]
