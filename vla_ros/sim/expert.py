"""The scripted expert: solves every tabletop task from the sentence and the ground truth.

It is a policy like any other: poses in, one action out, in physical units. What to do next is
read off the poses alone, never off what was done before: so it works at any rate at which it is
asked, with late or missing observations, begins again when it drops a cube, and a policy that
sees one image can learn it, for there is nothing behind the image that its teacher goes by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from vla_ros.core import Floats, Pose
from vla_ros.sim.env import FINGERS
from vla_ros.sim.goals import Family, Goal, parse_instruction
from vla_ros.sim.rotation import matrix, upright_yaw
from vla_ros.sim.swing import around
from vla_ros.sim.waypoints import CLOSED, OPEN, Scene, Waypoint, still, towards

_HOVER = 0.10  # m above a cube before going down to it
_TRAVEL = 0.15  # m, height at which a cube is carried
_BEHIND = 0.07  # m from a cube's centre to the closed fingers before a push
_LANE = (0.022, 0.016)  # m aside and above the way of a push, within which it is one
_AHEAD = 0.10  # m from the hand to where a push wants it
_PUSHED = 0.065  # m, a cube that has come so far is left alone
_LOW = -0.008  # m, fingers below the cube's centre: pushed higher up, it tips and jams
_HALF = 0.021  # m, half the edge of a cube
_CLIMB = (0.03, 0.10)  # m below where to be: from all to hardly any sideways motion
_HARDLY = 0.1  # of the way aside, where climbing comes first
_SLOPE, _MOUTH = 4.0, 0.013  # of the funnels over a place: height for distance, m of its bottom
_BEYOND = 0.006  # m that they reach deeper than the place
_GRIPPED = 0.05  # m between the fingers; more, and a cube between them is loose
_RESTING = {"plate": 0.0255, "cube": 0.042}  # m, height of a cube above the pose it lies on


class MissingPose(ValueError):
    """The ground truth lacks something that the instruction needs."""


class Expert:
    """Scripted policy for one instruction. Not thread-safe.

    It remembers one thing: where the cube lay that it pushes, to know when that is done.
    ``side``: 1 or -1, it swings out to that side on its way (:mod:`vla_ros.sim.swing`); 0: it
    goes straight.
    UnknownInstruction: the sentence asks for nothing it can do.
    """

    def __init__(self, instruction: str, side: float = 0.0) -> None:
        self._side = side
        self.reset(instruction)

    def reset(self, instruction: str) -> None:
        """Take on ``instruction``; see :class:`Expert` for errors."""
        self._goal = parse_instruction(instruction)
        self._origin: Floats | None = None

    @property
    def goal(self) -> Goal:
        """What it is told to do."""
        return self._goal

    def act(self, poses: Mapping[str, Pose]) -> Floats:
        """The next action, as :func:`advise`; a cube that is pushed far enough is left."""
        if self._goal.family is Family.PUSH:
            lies = np.array(_get(poses, self._goal.object).position)
            if self._origin is None:
                self._origin = lies
            if abs(lies[1] - self._origin[1]) > _PUSHED:
                return still(CLOSED)
        return advise(self._goal, poses, self._side)


def advise(goal: Goal, poses: Mapping[str, Pose], side: float = 0.0) -> Floats:
    """What to do for ``goal``, float64 [7]: m, rad (axis-angle), gripper 0 closed to 1 open.

    ``poses`` holds "gripper", FINGERS and every object by name, in the world frame, the
    gripper's z axis along the fingers. ``side``: as of :class:`Expert`. MissingPose: one that the
    goal needs is not there.
    """
    view = _look(goal, poses, side)
    action, _ = towards(_NEXT[goal.family](goal, view), view.scene)
    return action


@dataclass(frozen=True, slots=True)
class _View:
    """``gap``: m between the fingers. ``hand`` [3]: from the object's centre to the grip."""

    scene: Scene
    gap: float
    hand: Floats
    side: float

    def by(self, place: Floats) -> Floats:
        """Where to head for on the free way to ``place`` [3]."""
        if not self.side:
            return place
        aside = around(self.scene.gripper[None, :2], place[None, :2], np.array([self.side]))
        return np.append(aside[0], place[2])


def _look(goal: Goal, poses: Mapping[str, Pose], side: float) -> _View:
    gripper, thing = _get(poses, "gripper"), _get(poses, goal.object)
    position, grip = np.array(thing.position), np.array(gripper.position)
    placing = goal.family in (Family.PICK, Family.STACK)
    target = np.array(_get(poses, goal.target).position) if placing else position
    left, right = (np.array(_get(poses, name).position) for name in FINGERS)
    scene = Scene(
        gripper=grip,
        rotation=matrix(gripper.quaternion),
        object=position,
        grasp_yaw=upright_yaw(thing.quaternion),
        target=target,
        start=position,
    )
    return _View(scene, float(np.linalg.norm(left - right)), grip - position, side)


def _get(poses: Mapping[str, Pose], name: str) -> Pose:
    if name not in poses:
        known = ", ".join(poses) or "nothing"
        raise MissingPose(f"the ground truth has no '{name}'; it has: {known}")
    return poses[name]


def _up(height: float) -> Floats:
    return np.array([0.0, 0.0, height])


def _funnel(offset: Floats, top: float) -> float:
    """Height to be at, in m, when so far off to the side: down the walls of a funnel.

    Nobody waits above for being exact, and the bottom lies a little deeper than what is wanted:
    a pupil that is some millimetres wrong comes down all the same instead of hanging there.
    """
    aside = float(np.hypot(offset[0], offset[1]))
    return float(np.clip(_SLOPE * (aside - _MOUTH), -_BEYOND, top))


def _within(offset: Floats, aside: float, above: float) -> bool:
    """Whether something is within ``aside`` m sideways and ``above`` m in height, or below."""
    return bool(np.hypot(offset[0], offset[1]) < aside and offset[2] < above)


def _to(position: Floats, gripper: float, turned: bool = False) -> Waypoint:
    """Up first, where it has to be higher.

    Even then a little aside, and nothing here ever stands quite still: an action that is the
    same for many sentences is a peak at one token, and a pupil in doubt says the highest peak.
    """

    def rising(scene: Scene) -> Floats:
        way = position - scene.gripper
        most, least = _CLIMB
        way[:2] *= np.clip((least - way[2]) / (least - most), _HARDLY, 1.0)
        return scene.gripper + way

    return Waypoint(rising, gripper, 0.0, turned=turned)


# ------------------------------------------------------------------ what to do next


def _grasp_and_place(goal: Goal, view: _View) -> Waypoint:
    scene = view.scene
    rest = scene.target + _up(_RESTING["cube" if goal.family is Family.STACK else "plate"])
    off = scene.object - rest  # where the cube is, from where it shall be
    between = _within(view.hand, 0.02, 0.02)
    if between and view.gap < _GRIPPED:
        if _within(off, 0.017, 0.012):
            return _to(rest + view.hand, OPEN)
        height = _funnel(off, _TRAVEL - _HALF)
        return _to(rest + _up(height) + view.hand, CLOSED)  # wherever it is held
    if _within(off, 0.03, 0.015):
        return _to(np.array([scene.target[0], scene.target[1], _TRAVEL]), OPEN)
    grasp = _within(view.hand, 0.018, 0.014) or (between and view.gap < 0.07)
    height = _funnel(view.hand, _HOVER)
    down = view.by(scene.object + _up(height))
    return _to(down, CLOSED if grasp else OPEN, turned=True)


def _push(goal: Goal, view: _View) -> Waypoint:
    scene = view.scene
    side = np.array([0.0, 1.0 if goal.target == "right" else -1.0, 0.0])
    foot = scene.object + _up(_LOW)
    off = scene.gripper - foot
    ahead = float(off @ side)  # negative behind the cube
    aside, above = _LANE
    if abs(off[0]) < aside and off[2] < above and -_BEHIND - aside < ahead < 0.0:
        return _to(foot + (ahead + _AHEAD) * side, CLOSED)
    behind = foot - _BEHIND * side
    height = max(0.0, _funnel(scene.gripper - behind, _HOVER))
    return _to(view.by(behind + _up(height)), CLOSED)


def _reach(goal: Goal, view: _View) -> Waypoint:
    return _to(view.by(view.scene.object + _up(_HOVER)), OPEN)


_NEXT: Final[Mapping[Family, Callable[[Goal, _View], Waypoint]]] = {
    Family.REACH: _reach,
    Family.PUSH: _push,
    Family.PICK: _grasp_and_place,
    Family.STACK: _grasp_and_place,
}
