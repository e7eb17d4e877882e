"""Noise on executed actions, so that demonstrations show how to come back from a mistake.

Source of the idea: Laskey et al. 2017, DART: disturb what the teacher does, keep as the label
what it wanted to do.
"""

from __future__ import annotations

import numpy as np

from vla_ros.core import ACTION_DIM, GRIPPER, Floats

_CALM = 0.25  # share of episodes without noise: also the straight way is shown
_JITTER = np.array([0.06] * 3 + [0.02] * 3)  # environment units, every step
_SHOVE_CHANCE = 0.04  # per step: a shove begins
_SHOVE_STEPS = (3, 9)
_SHOVE = np.array([0.8] * 3 + [0.15] * 3)  # environment units, largest
#: how a disturbed episode begins: steps in a direction of chance, whatever the expert wants.
#: The arm always starts from one pose, so without it the arm's place alone tells which cube it
#: is on its way to, and a policy learns that before it learns to read the sentence.
_WANDER_STEPS = (3, 12)
_WANDER_LOW = np.array([-0.6, -0.8, -0.2, -0.1, -0.1, -0.3])
_WANDER_HIGH = np.array([0.6, 0.8, 0.4, 0.1, 0.1, 0.3])


class Disturbance:
    """A wander at the start, small jitter all the time, now and then a shove of some steps.

    Never on the gripper.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._calm = rng.uniform() < _CALM
        self._wander = 0 if self._calm else int(rng.integers(*_WANDER_STEPS))
        self._way = rng.uniform(_WANDER_LOW, _WANDER_HIGH)
        self._left = 0
        self._shove = np.zeros(GRIPPER)

    def __call__(self, action: Floats) -> Floats:
        """The action [7] in environment units, disturbed and clipped."""
        out = np.array(action, dtype=np.float64)
        if self._calm:
            return out
        if self._wander:
            self._wander -= 1
            out[:GRIPPER] = self._way
        out[:GRIPPER] += self._rng.normal(0.0, _JITTER)
        if self._left == 0 and self._rng.uniform() < _SHOVE_CHANCE:
            self._left = int(self._rng.integers(*_SHOVE_STEPS))
            self._shove = self._rng.uniform(-_SHOVE, _SHOVE)
        if self._left:
            self._left -= 1
            out[:GRIPPER] += self._shove
        clipped: Floats = np.clip(out, -1.0, 1.0)
        assert clipped.shape == (ACTION_DIM,)
        return clipped
