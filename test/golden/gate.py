"""Random actions of seven numbers through the last door: the cases of gate7.npz."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vla_ros.core.action_space import ActionKind, end_effectors
from vla_ros.core.types import StaleAction
from vla_ros.runtime import limiter
from vla_ros.runtime.limiter import Commanded
from vla_ros.runtime.safety import Limits, refuse_unless_numbers

COUNT = 400
NARROW = Limits(
    low=(-0.05, -0.04, -0.03, -0.5, -0.4, -0.3),
    high=(0.03, 0.04, 0.05, 0.3, 0.4, 0.5),
    jump=0.4,
    jerk=0.5,
)
POSES = Limits(
    space=end_effectors(ActionKind.END_EFFECTOR_POSE),
    stale_action=StaleAction.HOLD,
    low=(-1.0,) * 3 + (-2.0,) * 3,
    high=(1.0,) * 3 + (2.0,) * 3,
    jump=0.1,
    jerk=0.15,
)


class Gated(NamedTuple):
    """A limited action, float64 [D]; what was clamped, and whether by more than a tolerance."""

    action: np.ndarray
    clamped: str
    far: bool


def gate(action: np.ndarray, before: tuple[np.ndarray, ...], limits: Limits) -> Gated:
    """An action through the last door, a period after those ``before`` it, newest first; with two
    the door knows the step between them."""
    refuse_unless_numbers(action, limits.space)
    motion, reach = list(limits.space.motion), limiter.reach_of(limits)
    commanded = Commanded(before[0][motion]) if before else None
    if len(before) > 1:
        step = limiter.step_between(before[1][motion], before[0][motion], reach)
        commanded = Commanded(before[0][motion], step)
    passed = limiter.pass_through(action[motion], commanded, reach)
    out = np.array(action, np.float64)
    out[motion] = passed.commanded.at
    grippers = list(limits.space.grippers)
    out[grippers] = np.clip(out[grippers], 0.0, 1.0)
    return Gated(out, passed.over, passed.far)


def actions(seed: int, scale: float) -> np.ndarray:
    """Float64 [COUNT, 7]: a walk with outliers, also of the gripper."""
    random = np.random.default_rng(seed)
    walk = np.cumsum(random.normal(0.0, scale / 4, (COUNT, 7)), 0) % (2 * scale) - scale
    walk *= np.array([1, 1, 1, 10, 10, 10, 20])
    walk[random.random((COUNT, 7)) < 0.05] *= 3.0
    return walk


def gated(rows: np.ndarray, limits: Limits) -> tuple[np.ndarray, list[str], list[bool]]:
    """Actions [n, 7] through the door, each after the two before it; what was clamped, how far."""
    before: tuple[np.ndarray, ...] = ()
    out, clamped, far = [], [], []
    for row in rows:
        passed = gate(row, before, limits)
        before = (passed.action, *before[:1])
        out.append(passed.action)
        clamped.append(passed.clamped)
        far.append(passed.far)
    return np.array(out), clamped, far
