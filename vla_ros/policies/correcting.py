"""A policy's corrector as a policy of its own, for a worker of its own. Imports torch.

The worker that makes chunks is busy with the next one just when corrections are due. The second
worker has the same checkpoint and corrects the chunk under way by every frame. Source: arXiv
2509.23224.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vla_ros.core.clock import Clock
from vla_ros.core.types import (
    Executing,
    Floats,
    Inference,
    Instruction,
    Observation,
    PolicyInfo,
    Timeline,
    Uncorrected,
)
from vla_ros.policies.base import PolicyRefused, PolicySpec
from vla_ros.policies.vla import VlaPolicy


class CorrectingPolicy:
    """A corrector: its answer to a frame are the frame's ``uncorrected`` actions, corrected.

    PolicyRefused: the checkpoint that ``spec`` names has no corrector.
    """

    def __init__(self, spec: PolicySpec) -> None:
        self._policy = VlaPolicy(spec)
        if not self._policy.info.corrects:
            raise PolicyRefused(f"{spec.checkpoint} has no corrector")
        self.info: PolicyInfo = replace(self._policy.info, continues=())

    def reset(self, instruction: Instruction) -> None:
        """A new task for the checkpoint's policy."""
        self._policy.reset(instruction)

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference:
        """The corrected actions; of a frame without any (warm-up) those of standing still."""
        still: Floats = np.zeros((1, self.info.action_space.width))
        given = observation.uncorrected or Uncorrected(0, 0, still)
        actions = self._policy.correct(observation, given.actions, given.index)
        timeline = timeline.mark("prefill", clock.steady_ns())
        chunk = Executing(given.stamp_ns, given.index, 0)
        return Inference(observation.stamp_ns, actions, timeline, continues=chunk)
