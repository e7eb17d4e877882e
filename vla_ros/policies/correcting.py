"""A policy's corrector as a policy of its own, for a worker of its own. Imports torch.

The worker that makes chunks is busy with the next one just when corrections are due. The second
worker has the same checkpoint and is asked about every frame: what of the chunk that is executed
now would be another action, seen from here? Source: arXiv 2509.23224.
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
    """Its answer to a frame are the frame's ``uncorrected`` actions, corrected by the frame.

    PolicyRefused: the checkpoint that ``spec`` names has no corrector.
    """

    def __init__(self, spec: PolicySpec) -> None:
        self._policy = VlaPolicy(spec)
        if not self._policy.info.corrects:
            raise PolicyRefused(f"{spec.checkpoint} has no corrector")
        self.info: PolicyInfo = replace(self._policy.info, continues=())

    def reset(self, instruction: Instruction) -> None:
        """See :class:`vla_ros.policies.base.Policy`."""
        self._policy.reset(instruction)

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference:
        """See :class:`vla_ros.policies.base.Policy`. Warming up, it is asked about nothing."""
        still: Floats = np.zeros((1, self.info.action_space.width))
        asked = observation.uncorrected or Uncorrected(0, 0, still)
        actions = self._policy.correct(observation, asked.actions, asked.index)
        timeline = timeline.mark("prefill", clock.steady_ns())
        chunk = Executing(asked.stamp_ns, asked.index, 0)
        return Inference(observation.stamp_ns, actions, timeline, continues=chunk)
