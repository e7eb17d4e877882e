"""Following waypoints with delta actions, judged by the poses that come and never by time.

What scripted experts have in common: a plan is a list of :class:`Waypoint`; a
:class:`Follower` says the next action for what is seen now, and when the attempt has failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vla_ros.core import ACTION_DIM, GRIPPER, Floats
from vla_ros.sim.rotation import axis_angle, downward

STEP_M = 0.05  # largest displacement of one action along an axis
STEP_RAD = 0.4
GAIN = 0.7  # part of the remaining way asked for at once; below 1 it bears late observations
OPEN, CLOSED = 1.0, 0.0

_LOST = 3  # looks in a row at which the object is not in the hand
_BELOW = 0.03  # m below a waypoint that forbids sideways motion


@dataclass(frozen=True, slots=True)
class Scene:
    """What an expert sees at once: positions [3] in m, rotation matrix [3, 3] of the gripper.

    ``grasp_yaw``: turn of the gripper about the vertical, in rad, that the object wants.
    ``start``: where the object was when this attempt began.
    """

    gripper: Floats
    rotation: Floats
    object: Floats
    grasp_yaw: float
    target: Floats
    start: Floats


@dataclass(frozen=True, slots=True)
class Waypoint:
    """Where to be next. It is reached within ``tolerance`` m, or after ``dwell`` actions.

    ``climb`` forbids sideways motion below the waypoint's height, ``carry`` means the object
    is in the hand: losing it ends the attempt.
    """

    position: Callable[[Scene], Floats]
    gripper: float
    tolerance: float
    turned: bool = False
    climb: bool = False
    carry: bool = False
    dwell: int = 0


class Follower:
    """One attempt at a plan. ``reach`` m: farther from the gripper a carried object is lost.

    ``patience``: most actions for one waypoint.
    """

    def __init__(self, plan: tuple[Waypoint, ...], reach: float, patience: int) -> None:
        self._plan, self._reach, self._patience = plan, reach, patience
        self._index = self._spent = self._lost = 0

    @property
    def done(self) -> bool:
        """Whether every waypoint was reached."""
        return self._index >= len(self._plan)

    def failed(self, scene: Scene) -> bool:
        """Whether the object was lost or the way is blocked; ask once for every action."""
        waypoint = self._plan[self._index]
        away = float(np.linalg.norm(scene.object - scene.gripper)) > self._reach
        self._lost = self._lost + 1 if waypoint.carry and away else 0
        return self._lost >= _LOST or self._spent >= self._patience

    def act(self, scene: Scene) -> Floats:
        """The next action, float64 [7]: m, rad, gripper 0 closed to 1 open."""
        waypoint = self._plan[self._index]
        action, distance = towards(waypoint, scene)
        self._spent += 1
        if self._spent >= waypoint.dwell if waypoint.dwell else distance < waypoint.tolerance:
            self._index, self._spent = self._index + 1, 0
        return action

    def still(self) -> Floats:
        """No motion, the fingers as at the end of the plan or as an attempt is given up."""
        if self.done:
            return still(self._plan[-1].gripper)
        waypoint = self._plan[self._index]
        return still(OPEN if waypoint.gripper == OPEN or waypoint.carry else CLOSED)


def still(gripper: float) -> Floats:
    """The action that only sets the fingers."""
    action = np.zeros(ACTION_DIM)
    action[GRIPPER] = gripper
    return action


def towards(waypoint: Waypoint, scene: Scene) -> tuple[Floats, float]:
    """The action towards a waypoint, and how far it still is (turn included), in m."""
    action = still(waypoint.gripper)
    if waypoint.dwell:
        return action, 0.0
    error = waypoint.position(scene) - scene.gripper
    way = error.copy()
    if waypoint.climb and error[2] > _BELOW:
        way[:2] = 0.0
    turn = axis_angle(downward(scene.grasp_yaw if waypoint.turned else 0.0) @ scene.rotation.T)
    action[:3] = np.clip(GAIN * way, -STEP_M, STEP_M)
    action[3:6] = np.clip(GAIN * turn, -STEP_RAD, STEP_RAD)
    return action, float(np.linalg.norm(error)) + 0.05 * max(0.0, float(np.linalg.norm(turn)) - 0.1)
