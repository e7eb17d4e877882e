"""A policy that looks at the world some frames late: what does old evidence cost?"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from vla_ros.core import Inference, Instruction, Observation, PolicyInfo, Timeline
from vla_ros.policies.base import Policy
from vla_ros.timing import Clock


class DelayedPolicy:
    """Gives ``policy`` the observation of ``frames`` calls ago; None while there is none.

    The inference names the observation that it rests on, so its age is what it is.
    """

    def __init__(self, policy: Policy, frames: int) -> None:
        self._policy = policy
        self._frames = frames
        self._waiting: deque[Observation] = deque()
        depth = policy.info.pipeline_depth + frames
        self.info: PolicyInfo = replace(policy.info, pipeline_depth=depth)

    def reset(self, instruction: Instruction) -> None:
        """Forget the observations that wait, too."""
        self._waiting.clear()
        self._policy.reset(instruction)

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference | None:
        """See :class:`vla_ros.policies.base.Policy`."""
        self._waiting.append(observation)
        if len(self._waiting) <= self._frames:
            return None
        return self._policy.step(self._waiting.popleft(), timeline, clock)
