"""The privileged experts of the simulations as a policy: needs poses, ignores pixels."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from vla_ros.core.clock import Clock
from vla_ros.core.types import (
    ACTION_DIM,
    Inference,
    Instruction,
    Observation,
    PolicyInfo,
    Pose,
    Timeline,
)
from vla_ros.policies.base import InvalidAction, finish
from vla_ros.sim.expert import Expert
from vla_ros.sim.libero.expert import LiberoExpert


def expert_for(instruction: str, poses: Mapping[str, Pose]) -> Expert | LiberoExpert:
    """The expert for the world that these poses are of: LIBERO numbers its things.

    ValueError: it cannot do what ``instruction`` asks for.
    """
    libero = any(re.fullmatch(r".+_\d+", name) for name in poses)
    return LiberoExpert(instruction) if libero else Expert(instruction)


class ScriptedPolicy:
    """Asks an expert for every action."""

    info = PolicyInfo(name="scripted")

    def __init__(self) -> None:
        self._instruction = Instruction("", 0)
        self._expert: Expert | LiberoExpert | None = None

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
                self._expert = expert_for(self._instruction.text, observation.poses)
            action = np.asarray(self._expert.act(observation.poses), dtype=np.float64)
        except (KeyError, ValueError) as error:
            raise InvalidAction(f"the expert cannot act: {error}") from error
        if action.shape != (ACTION_DIM,) or not np.isfinite(action).all():
            raise InvalidAction(f"the expert's action is not {ACTION_DIM} finite numbers")
        return Inference(observation.stamp_ns, action[None], finish(timeline, clock))
