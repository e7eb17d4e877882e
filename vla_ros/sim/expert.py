"""The scripted expert: solves every tabletop task from the sentence and the ground truth.

It is a policy like any other: poses in, one action out, in physical units. It judges its
progress by the poses it is shown and never by counting time, so it works at any rate at
which it is asked, with late or missing observations; when it drops a cube it begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy

import numpy as np

from vla_ros.core import Floats, Pose
from vla_ros.sim.goals import Family, Goal, parse_instruction
from vla_ros.sim.rotation import matrix, upright_yaw
from vla_ros.sim.waypoints import CLOSED, OPEN, Follower, Scene, Waypoint

_HOVER = 0.10  # m above a cube before going down to it
_TRAVEL = 0.15  # m, height at which a cube is carried
_BEHIND = 0.07  # m from a cube's centre to the closed fingers before a push
_PUSH = 0.085  # m from the cube's start to where the fingers stop
_LOW = -0.008  # m, fingers below the cube's centre: pushed higher up, it tips and jams
_HALF = 0.021  # m, half the edge of a cube
_SLOPE, _MOUTH = 4.0, 0.008  # of the funnels over a place: height for distance, m of its bottom
_BEYOND = 0.004  # m that they reach deeper than the place
_IN_HAND = 0.04  # m; farther from the gripper a carried cube is lost
_PATIENCE = 80  # actions for one waypoint before the whole is tried again
_DWELL = 6  # actions to close or open the fingers
_RESTING = {"plate": 0.0255, "cube": 0.042}  # m, height of a cube above the pose it lies on


class MissingPose(ValueError):
    """The ground truth lacks an object that the instruction names."""


class Expert:
    """Scripted policy for one instruction. Not thread-safe.

    UnknownInstruction: the sentence asks for nothing it can do.
    """

    def __init__(self, instruction: str) -> None:
        self.reset(instruction)

    def reset(self, instruction: str) -> None:
        """Forget all progress and take on ``instruction``; see :class:`Expert` for errors."""
        self._take_on(parse_instruction(instruction))

    def instead(self, goal: Goal) -> Expert:
        """Another expert, as if it were told ``goal`` at this moment.

        Grasping an object goes on from here where this one grasps the same; all else begins.
        """
        other = copy(self)
        grasps = (Family.PICK, Family.STACK)
        if not (
            goal.object == self._goal.object
            and goal.family in grasps
            and self._goal.family in grasps
        ):
            other._take_on(goal)
        else:
            other._goal, other._plan = goal, _PLANS[goal.family](goal)
            other._follower = self._follower.going_on(other._plan)
        return other

    def _take_on(self, goal: Goal) -> None:
        self._goal = goal
        self._plan = _PLANS[goal.family](goal)
        self._origin: Floats | None = None  # where the object lay when the task began
        self._begin()

    def _begin(self) -> None:
        self._follower = Follower(self._plan, _IN_HAND, _PATIENCE)
        self._start: Floats | None = None

    @property
    def goal(self) -> Goal:
        """What it is told to do."""
        return self._goal

    @property
    def waypoint(self) -> int:
        """Index of the waypoint on the way to."""
        return self._follower.index

    def act(self, poses: Mapping[str, Pose]) -> Floats:
        """The next action, float64 [7]: m, rad (axis-angle), gripper 0 closed to 1 open.

        ``poses`` holds "gripper" and every object by name, in the world frame, the gripper's
        z axis along the fingers. MissingPose: one that the instruction needs is not there.
        """
        scene = self._look(poses)
        if self._follower.done:
            if self._achieved(scene):
                return self._follower.still()
            self._begin()
            scene = self._look(poses)
        if self._follower.failed(scene):
            action = self._follower.still()
            self._begin()
            return action
        return self._follower.act(scene)

    def _look(self, poses: Mapping[str, Pose]) -> Scene:
        gripper, thing = _get(poses, "gripper"), _get(poses, self._goal.object)
        position = np.array(thing.position)
        if self._origin is None:
            self._origin = position
        if self._start is None:
            self._start = position
        has_target = self._goal.family in (Family.PICK, Family.STACK)
        target = np.array(_get(poses, self._goal.target).position) if has_target else position
        return Scene(
            gripper=np.array(gripper.position),
            rotation=matrix(gripper.quaternion),
            object=position,
            grasp_yaw=upright_yaw(thing.quaternion),
            target=target,
            start=self._start,
        )

    def _achieved(self, scene: Scene) -> bool:
        """Whether the goal still holds once the plan has run; a cube may have rolled off."""
        if self._goal.family is Family.REACH:
            return False  # the cube may be moved: keep following it
        if self._goal.family is Family.PUSH:
            assert self._origin is not None
            return bool(abs(scene.object[1] - self._origin[1]) > _PUSH - 0.02)
        offset = scene.object - _resting_place(self._goal, scene)
        return bool(np.linalg.norm(offset[:2]) < 0.03 and abs(offset[2]) < 0.015)


def _get(poses: Mapping[str, Pose], name: str) -> Pose:
    if name not in poses:
        known = ", ".join(poses) or "nothing"
        raise MissingPose(f"the ground truth has no '{name}'; it has: {known}")
    return poses[name]


def _up(height: float) -> Floats:
    return np.array([0.0, 0.0, height])


def _above(scene: Scene) -> Floats:
    return scene.object + _up(_HOVER)


def _funnel(offset: Floats, top: float) -> float:
    """Height to be at, in m, when so far off to the side: down the walls of a funnel.

    Nobody waits above for being exact, and the bottom lies a little deeper than what is wanted:
    a pupil that is some millimetres wrong comes down all the same instead of hanging there.
    """
    aside = float(np.hypot(offset[0], offset[1]))
    return float(np.clip(_SLOPE * (aside - _MOUTH), -_BEYOND, top))


def _there(offset: Floats, aside: float, above: float) -> bool:
    """Whether something is within ``aside`` m sideways and not higher than ``above`` m."""
    return bool(np.hypot(offset[0], offset[1]) < aside and offset[2] < above)


def _resting_place(goal: Goal, scene: Scene) -> Floats:
    """Where the object's centre comes to lie on the target."""
    height = _RESTING["cube" if goal.family is Family.STACK else "plate"]
    return scene.target + _up(height)


def _grasp_and_place(goal: Goal) -> tuple[Waypoint, ...]:
    def grasp(scene: Scene) -> Floats:
        return scene.object + _up(_funnel(scene.gripper - scene.object, _HOVER))

    def around(scene: Scene) -> bool:
        return _there(scene.gripper - scene.object, 0.012, 0.008)

    def place(scene: Scene) -> Floats:
        rest = _resting_place(goal, scene)
        height = _funnel(scene.object - rest, _TRAVEL - _HALF)
        return rest + _up(height) + scene.gripper - scene.object  # wherever it is held

    def placed(scene: Scene) -> bool:
        return _there(scene.object - _resting_place(goal, scene), 0.015, 0.008)

    def up(scene: Scene) -> Floats:
        return np.array([scene.gripper[0], scene.gripper[1], _TRAVEL])

    return (
        Waypoint(grasp, OPEN, 0.0, turned=True, climb=True, passed=around),
        Waypoint(up, CLOSED, 0.0, dwell=_DWELL),
        Waypoint(up, CLOSED, 0.03, turned=True, carry=True),
        Waypoint(place, CLOSED, 0.0, carry=True, passed=placed),
        Waypoint(up, OPEN, 0.0, dwell=_DWELL),
        Waypoint(up, OPEN, 0.03),
    )


def _push(goal: Goal) -> tuple[Waypoint, ...]:
    side = np.array([0.0, 1.0 if goal.target == "right" else -1.0, 0.0])

    def foot(scene: Scene) -> Floats:
        return scene.object - _BEHIND * side + _up(_LOW)

    def behind(scene: Scene) -> Floats:
        return foot(scene) + _up(max(0.0, _funnel(scene.gripper - foot(scene), _HOVER)))

    def low(scene: Scene) -> bool:
        return _there(scene.gripper - foot(scene), 0.018, 0.010)

    def through(scene: Scene) -> Floats:
        return scene.start + _PUSH * side + _up(_LOW)

    def up(scene: Scene) -> Floats:
        return np.array([scene.gripper[0], scene.gripper[1], _HOVER])

    return (
        Waypoint(behind, CLOSED, 0.0, climb=True, passed=low),
        Waypoint(through, CLOSED, 0.012),
        Waypoint(up, CLOSED, 0.03),
    )


def _reach(goal: Goal) -> tuple[Waypoint, ...]:
    return (Waypoint(_above, OPEN, 0.0, climb=True),)


_PLANS: dict[Family, Callable[[Goal], tuple[Waypoint, ...]]] = {
    Family.REACH: _reach,
    Family.PUSH: _push,
    Family.PICK: _grasp_and_place,
    Family.STACK: _grasp_and_place,
}
