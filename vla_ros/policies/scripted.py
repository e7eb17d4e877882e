"""The privileged expert of the built-in simulation as a policy: needs poses, ignores pixels."""

from __future__ import annotations

import numpy as np

from vla_ros.core import ACTION_DIM, Inference, Instruction, Observation, PolicyInfo, Timeline
from vla_ros.policies.base import InvalidAction, finish
from vla_ros.sim.expert import Expert
from vla_ros.timing import Clock


class ScriptedPolicy:
    """Asks ``vla_ros.sim.expert.Expert`` for every action."""

    info = PolicyInfo(name="scripted")

    def __init__(self) -> None:
        self._instruction = Instruction("", 0)
        self._expert: Expert | None = None

    def reset(self, instruction: Instruction) -> None:
        """Begin the task anew; the expert is made at the next step."""
        self._instruction = instruction
        self._expert = None

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference:
        """The expert's action [1, 7]; InvalidAction where it has no poses or no such task."""
        if not observation.poses:
            raise InvalidAction("no ground truth came with the frame: the scripted policy needs it")
        try:
            if self._expert is None:
                self._expert = Expert(self._instruction.text)
            action = np.asarray(self._expert.act(observation.poses), dtype=np.float64)
        except (KeyError, ValueError) as error:
            raise InvalidAction(f"the expert cannot act: {error}") from error
        if action.shape != (ACTION_DIM,) or not np.isfinite(action).all():
            raise InvalidAction(f"the expert's action is not {ACTION_DIM} finite numbers")
        return Inference(observation.stamp_ns, action[None], finish(timeline, clock))
