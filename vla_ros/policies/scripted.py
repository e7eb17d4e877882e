"""The privileged experts of the simulations as a policy: needs poses, ignores pixels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionKind, ActionSpace
from vla_ros.core.clock import Clock
from vla_ros.core.types import (
    Floats,
    Inference,
    Instruction,
    Observation,
    PolicyInfo,
    Pose,
    Timeline,
)
from vla_ros.policies.base import InvalidAction, finish
from vla_ros.sim.env import SimError
from vla_ros.sim.expert import Expert
from vla_ros.sim.libero.expert import LiberoExpert


class Teacher(Protocol):
    """A scripted expert: the poses of everything -> one action."""

    def act(self, poses: Mapping[str, Pose]) -> Floats: ...


def expert_for(
    instruction: str, poses: Mapping[str, Pose], space: ActionSpace = END_EFFECTOR_DELTA
) -> Teacher:
    """The expert for the world of these poses: LIBERO numbers its objects, and the SO-101 takes
    joint positions.

    ValueError: it cannot do what ``instruction`` asks for. SimError: what it needs is not there.
    """
    if space.kind is ActionKind.JOINT_POSITION:
        from vla_ros.sim.so101.expert import So101Expert  # needs mujoco, the others do not

        return So101Expert(instruction)
    libero = any(re.fullmatch(r".+_\d+", name) for name in poses)
    return LiberoExpert(instruction) if libero else Expert(instruction)


class ScriptedPolicy:
    """A policy whose every action is an expert's."""

    def __init__(self, space: ActionSpace = END_EFFECTOR_DELTA) -> None:
        self.info = PolicyInfo(name="scripted", action_space=space)
        self._instruction = Instruction("", 0)
        self._expert: Teacher | None = None

    def reset(self, instruction: Instruction) -> None:
        """Begin the task anew; the expert is made at the next step."""
        self._instruction = instruction
        self._expert = None

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference:
        """The expert's action [1, D]; InvalidAction where it has no poses or no such task."""
        if not observation.poses:
            raise InvalidAction("no ground truth came with the frame: the scripted policy needs it")
        try:
            if self._expert is None:
                space = self.info.action_space
                self._expert = expert_for(self._instruction.text, observation.poses, space)
            action = np.asarray(self._expert.act(observation.poses), dtype=np.float64)
        except (ImportError, KeyError, SimError, ValueError) as error:
            raise InvalidAction(f"the expert cannot act: {error}") from error
        width = self.info.action_space.width
        if action.shape != (width,) or not np.isfinite(action).all():
            raise InvalidAction(f"the expert's action is not {width} finite numbers")
        return Inference(observation.stamp_ns, action[None], finish(timeline, clock))
