"""The policy that never moves: tests the wiring of a graph on any machine."""

from __future__ import annotations

import numpy as np

from vla_ros.core import (
    ACTION_DIM,
    GRIPPER,
    Inference,
    Instruction,
    Observation,
    PolicyInfo,
    Timeline,
)
from vla_ros.policies.base import finish
from vla_ros.timing import Clock


class ZeroPolicy:
    """Answers every observation with no motion and an open gripper."""

    info = PolicyInfo(name="zero")

    def reset(self, instruction: Instruction) -> None:
        """Nothing to forget."""

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference:
        """One action [1, 7]: six zeros, gripper 1 (open)."""
        action = np.zeros((1, ACTION_DIM))
        action[0, GRIPPER] = 1.0
        return Inference(observation.stamp_ns, action, finish(timeline, clock))
