"""A policy of one's own: the gripper nods, a little lower every time."""

import numpy as np

from vla_ros.core.clock import Clock
from vla_ros.core.types import Inference, Instruction, Observation, PolicyInfo, Timeline
from vla_ros.policies import InvalidAction, PolicyRefused, PolicySpec


class Nod:
    """Moves down and up in turn; `policy_options: ["step_m=0.01"]` says how far."""

    info = PolicyInfo(name="nod")

    def __init__(self, spec: PolicySpec) -> None:
        self._step_m = float(spec.options.get("step_m", "0.005"))
        if self._step_m > 0.05:
            raise PolicyRefused(f"step_m is {self._step_m:g}: that is no nod, give 0.05 or less")
        self._count = 0

    def reset(self, instruction: Instruction) -> None:
        self._count = 0

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference:
        if observation.image.max() == 0:
            raise InvalidAction("the image is black: nothing to nod at")
        down = self._count % 2 == 0
        self._count += 1
        action = np.zeros((1, 7))
        action[0, 2] = -self._step_m if down else 0.9 * self._step_m
        action[0, 6] = 1.0  # the gripper stays open
        done = timeline.mark("decode", clock.steady_ns())
        return Inference(observation.stamp_ns, action, done)
