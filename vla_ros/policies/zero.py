"""The policy that never moves: tests the wiring of a graph on any machine."""

from __future__ import annotations

import numpy as np

from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionKind, ActionSpace
from vla_ros.core.clock import Clock
from vla_ros.core.types import Floats, Inference, Instruction, Observation, PolicyInfo, Timeline
from vla_ros.policies.base import InvalidAction, PolicyRefused, finish


class ZeroPolicy:
    """The policy without motion; its numbers for grippers mean nothing.

    In a space of joint positions that is where the joints were at the first observation of the
    task: ``state`` names the joints of the robot's state, which has all of them, in any order and
    beside others. Raises PolicyRefused where it has not, and for poses, which no observation has.
    """

    def __init__(
        self, space: ActionSpace = END_EFFECTOR_DELTA, state: tuple[str, ...] = ()
    ) -> None:
        if space.kind is ActionKind.END_EFFECTOR_POSE:
            raise PolicyRefused(
                "policy 'zero' says zero, which is a place to go to in action_space"
                " end_effector_pose: use another policy, or end_effector_delta"
            )
        self._space = space
        self._start: Floats | None = None
        needed = [space.names[index] for index in space.motion] if space.absolute else []
        if missing := [name for name in needed if name not in state]:
            raise PolicyRefused(
                "policy 'zero' stays where the joints of its action are, which it finds by name:"
                " joint_names (with state_layout joints) must have"
                f" {', '.join(map(repr, missing))}"
            )
        self._indices = [state.index(name) for name in needed]
        self.info = PolicyInfo(
            name="zero",
            action_space=space,
            state_dim=len(state) if needed else 0,
            moves_grippers=False,
        )

    def reset(self, instruction: Instruction) -> None:
        """A new task: stand still where the robot is at the next observation."""
        self._start = None

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference:
        """One action [1, D]: zeros, or the joints as they were."""
        action = np.zeros((1, self._space.width))
        if self._space.absolute:
            action[0, list(self._space.motion)] = self._joints(observation.proprio)
        action[0, list(self._space.grippers)] = 1.0
        return Inference(observation.stamp_ns, action, finish(timeline, clock))

    def _joints(self, state: Floats | None) -> Floats:
        if self._start is None:
            if state is None or len(state) != self.info.state_dim:
                raise InvalidAction(f"the frame has no state of {self.info.state_dim} joints")
            self._start = state[self._indices]
        return self._start
