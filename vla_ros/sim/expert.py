"""The scripted expert: solves every tabletop task from the instruction and the ground truth.

It is a policy like any other: poses in, one action out, in physical units. The next action depends
on the poses alone, never on earlier ones: so it works at any rate, with late or missing
observations, begins again when it drops a cube, and a policy of one image can learn it, which has
nothing else to go by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from vla_ros.core.rotation import matrix
from vla_ros.core.types import ACTION_DIM, GRIPPER, Floats, Pose
from vla_ros.sim.env import FINGERS
from vla_ros.sim.tasks import Family, Goal, parse_instruction

# Two paths to the same target: the hand swings out to the left or to the right.
#
# A policy trained on one path has chunks that cannot disagree, so it does not matter how they are
# joined. With two paths that are equally good, the next chunk may follow the other one. The hand's
# position shows which one is under way; only near the line itself, as at the start, it is chance.


HOME: Final = (-0.036, 0.0)  # m, where the hand is at the start, from above
_WIDE, _SHARE = 0.06, 0.4  # m aside at the most; of the way to go
_LOOK = 0.05  # m ahead on the arc that the hand is sent to
_DOUBT = 0.008  # m off the line within which the side is not decided


def around(hand: Floats, target: Floats, side: Floats) -> Floats:
    """Next point from above, float64 [N, 2], m: on the arc to ``target`` [N, 2].

    ``hand`` [N, 2]; ``side`` [N]: 1 left of the line, -1 right of it, where the hand has not
    decided; 0: straight ahead, always.
    """
    start = np.array(HOME)
    line, off = target - start, hand - start
    length = np.maximum(np.hypot(line[:, 0], line[:, 1]), 1e-6)
    along = line / length[:, None]
    left = np.stack((-along[:, 1], along[:, 0]), 1)
    gone, aside = (off * along).sum(1), (off * left).sum(1)
    side = np.where((np.abs(aside) > _DOUBT) & (side != 0), np.sign(aside), side)
    ahead = np.clip((gone + _LOOK) / length, 0.0, 1.0)
    bend = side * np.minimum(_WIDE, _SHARE * length) * np.sin(np.pi * ahead)
    out: Floats = start + (ahead * length)[:, None] * along + bend[:, None] * left
    return np.where(side[:, None] == 0, target, out)


# Rotations as the expert needs them. Quaternions are x, y, z, w; matrices [3, 3].


def axis_angle(rotation: Floats) -> Floats:
    """Axis-angle [3] in rad of a matrix, the angle in 0..pi."""
    skew = 0.5 * np.array(
        [
            rotation[2, 1] - rotation[1, 2],
            rotation[0, 2] - rotation[2, 0],
            rotation[1, 0] - rotation[0, 1],
        ]
    )
    sine, cosine = float(np.linalg.norm(skew)), 0.5 * (float(np.trace(rotation)) - 1.0)
    angle = float(np.arctan2(sine, cosine))
    if sine > 1e-9:
        return skew * (angle / sine)
    if cosine > 0:
        return np.zeros(3)
    axis = np.sqrt(np.clip((np.diag(rotation) + 1.0) / 2.0, 0.0, 1.0))  # half a turn: any sign
    return axis * np.pi


def upright_yaw(quaternion: Sequence[float]) -> float:
    """Turn of a cube about the vertical, folded by its symmetry into -pi/4..pi/4 rad."""
    turn = matrix(quaternion)
    horizontal = turn[:2, np.argmin(np.abs(turn[2]))]  # the axis that lies flattest
    yaw = float(np.arctan2(horizontal[1], horizontal[0]))
    return (yaw + np.pi / 4) % (np.pi / 2) - np.pi / 4


def downward(yaw: float) -> Floats:
    """Matrix of a gripper that points straight down, turned by ``yaw`` rad about the vertical."""
    cosine, sine = np.cos(yaw), np.sin(yaw)
    turn = np.array([[cosine, -sine, 0.0], [sine, cosine, 0.0], [0.0, 0.0, 1.0]])
    down: Floats = turn @ np.diag([1.0, -1.0, -1.0])
    return down


# Waypoints, which scripted experts follow with delta actions, by poses and never by time: a plan is
# a tuple of :class:`Waypoint`, and a :class:`PlanFollower` one attempt at it.


STEP_M = 0.05  # largest displacement of one action along an axis
STEP_RAD = 0.4
GAIN = 0.7  # share of the remaining distance in one action; below 1 it bears late observations
OPEN, CLOSED = 1.0, 0.0

_LOST = 3  # observations in a row in which the object is not in the hand
_BELOW = 0.03  # m below a waypoint that forbids sideways motion


@dataclass(frozen=True, slots=True)
class Scene:
    """Observation of an expert: positions [3] in m, rotation matrix [3, 3] of the gripper.

    ``grasp_yaw``: turn of the gripper about the vertical, in rad, for the grasp. ``start``: the
    object's position when this attempt began.
    """

    gripper: Floats
    rotation: Floats
    object: Floats
    grasp_yaw: float
    target: Floats
    start: Floats


@dataclass(frozen=True, slots=True)
class Waypoint:
    """A waypoint. It is reached within ``tolerance`` m, or after ``dwell`` actions.

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


class PlanFollower:
    """An attempt at a plan. ``reach`` m: farther from the gripper a carried object is lost.

    ``patience``: most actions for one waypoint.
    """

    def __init__(self, plan: tuple[Waypoint, ...], reach: float, patience: int) -> None:
        self._plan, self._reach, self._patience = plan, reach, patience
        self._index = self._spent = self._lost = 0

    @property
    def done(self) -> bool:
        """True once every waypoint was reached."""
        return self._index >= len(self._plan)

    def failed(self, scene: Scene) -> bool:
        """True if the object was lost or the path is blocked; to be asked once for every action."""
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
        """Action without motion, the fingers as at the end of the plan or of a given-up attempt."""
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
    """Action towards a waypoint, and its distance (turn included), in m."""
    action = still(waypoint.gripper)
    if waypoint.dwell:
        return action, 0.0
    error = waypoint.position(scene) - scene.gripper
    move = error.copy()
    if waypoint.climb and error[2] > _BELOW:
        move[:2] = 0.0
    turn = axis_angle(downward(scene.grasp_yaw if waypoint.turned else 0.0) @ scene.rotation.T)
    action[:3] = np.clip(GAIN * move, -STEP_M, STEP_M)
    action[3:6] = np.clip(GAIN * turn, -STEP_RAD, STEP_RAD)
    return action, float(np.linalg.norm(error)) + 0.05 * max(0.0, float(np.linalg.norm(turn)) - 0.1)


_HOVER = 0.10  # m above a cube before going down to it
_TRAVEL = 0.15  # m, height at which a cube is carried
_BEHIND = 0.07  # m from a cube's center to the closed fingers before a push
_LANE = (0.022, 0.016)  # m aside and above the line of a push, within which it is one
_AHEAD = 0.10  # m from the hand to the target of a push
_PUSHED = 0.065  # m, a cube that has come so far is left alone
_LOW = -0.008  # m, fingers below the cube's center: pushed higher up, it tips and jams
_HALF = 0.021  # m, half the edge of a cube
_CLIMB = (0.03, 0.10)  # m below the target: from all to hardly any sideways motion
_HARDLY = 0.1  # of the motion aside, where climbing comes first
_SLOPE, _MOUTH = 4.0, 0.013  # of the funnels over a target: height for distance, m of its bottom
_BEYOND = 0.006  # m that they reach deeper than the target
# m between the fingers; more, and a cube between them is loose. One that is held by two edges (up
# to 0.059) is carried like that: policies trained on an expert that waited for it to turn would
# wait.
_GRIPPED = 0.062
# m from another cube's center to a finger that comes down: nearer, and it would come down on that
# cube; then another turn of the hand is looked for. An expert without this hung over a cube that
# had been pushed beside another, and policies trained on it did too.
_ROOM = 0.028
_FINGER = (0.046, 0.006, 0.010)  # m from the grip to an open finger's middle; half its section
_LEVEL = 0.03  # m of height: a support is in no finger's way
# rad that are still to turn without staying above the others, and m of height for each more
_TURNING = (0.15, 0.15)
_RESTING = {"plate": 0.0255, "cube": 0.042}  # m, height of a cube above the pose it lies on


class MissingPose(ValueError):
    """The ground truth lacks something that the instruction needs."""


class Expert:
    """Scripted policy for one instruction. Not thread-safe.

    Its only state is where the cube lay that it pushes, to know when that is done. ``side``: 1 or
    -1, it swings out to that side (:func:`around`); 0: it goes straight.
    UnknownInstruction: the instruction asks for nothing it can do.
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
        """The goal of its instruction."""
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
    """Action for ``goal``, float64 [7]: m, rad (axis-angle), gripper 0 closed to 1 open.

    ``poses`` holds "gripper", FINGERS and every object by name, in the world frame, the
    gripper's z axis along the fingers. ``side``: of :class:`Expert`. MissingPose: one that the goal
    needs is not there.
    """
    view = _view(goal, poses, side)
    action, _ = towards(_NEXT[goal.family](goal, view), view.scene)
    return action


@dataclass(frozen=True, slots=True)
class _View:
    """View of an expert. ``gap``: m between the fingers. ``hand`` [3]: from the object's center to
    the grip. ``crowded``: another cube is where a finger could come down."""

    scene: Scene
    gap: float
    hand: Floats
    side: float
    crowded: bool

    def towards(self, target: Floats) -> Floats:
        """Next point on the free path to ``target`` [3]."""
        if not self.side:
            return target
        aside = around(self.scene.gripper[None, :2], target[None, :2], np.array([self.side]))
        return np.append(aside[0], target[2])


def _view(goal: Goal, poses: Mapping[str, Pose], side: float) -> _View:
    gripper, thing = _get(poses, "gripper"), _get(poses, goal.object)
    position, grip = np.array(thing.position), np.array(gripper.position)
    placing = goal.family in (Family.PICK, Family.STACK)
    target = np.array(_get(poses, goal.target).position) if placing else position
    left, right = (np.array(_get(poses, name).position) for name in FINGERS)
    rotation, yaw = matrix(gripper.quaternion), upright_yaw(thing.quaternion)
    cubes = [np.array(pose.position) for name, pose in poses.items() if name.endswith("_cube")]
    hand = np.arctan2(rotation[1, 0], rotation[0, 0])
    turn, crowded = grasp_turn(np.array([yaw]), np.array([hand]), np.array([cubes]) - position)
    scene = Scene(
        gripper=grip,
        rotation=rotation,
        object=position,
        grasp_yaw=float(turn[0]),
        target=target,
        start=position,
    )
    gap = float(np.linalg.norm(left - right))
    return _View(scene, gap, grip - position, side, bool(crowded[0]))


def grasp_turn(yaw: Floats, hand: Floats, offsets: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Turns of the fingers to grasp each of N cubes, rad [N], and whether another is near enough to
    matter: as the cube lies, or across, or by two of its edges, in this order, the
    first with room for the fingers, or else the one with most.

    ``yaw`` [N]: the cube's own turn; ``hand`` [N]: the hand's, which is as good half a turn on;
    ``offsets`` [N, C, 3]: from its center to those of all cubes, m.
    """
    quarters = yaw[:, None] + np.pi / 4 * np.array([-2, -1, 1, 2])
    quarters = np.take_along_axis(quarters, np.abs(quarters - hand[:, None]).argsort(1), 1)
    sides = np.abs(np.sin(2 * (quarters - yaw[:, None]))) < 0.5  # not by edges
    order = np.argsort(~sides, 1, kind="stable")  # across, nearest first; then by edges
    turns = np.concatenate((yaw[:, None], np.take_along_axis(quarters, order, 1)), 1)
    rooms = np.stack([np.minimum(_room(turn, offsets), _ROOM) for turn in turns.T], 1)
    first = rooms.argmax(1)
    return turns[np.arange(len(yaw)), first], rooms[:, 0] < _ROOM


def _room(turn: Floats, offsets: Floats) -> Floats:
    """Distance of the next cube's center from the fingers around one, m [N]; infinite where there
    is none."""
    flat = offsets[..., :2]
    along = np.abs((flat * np.stack((np.sin(turn), -np.cos(turn)), -1)[:, None]).sum(-1))
    aside = np.abs((flat * np.stack((np.cos(turn), np.sin(turn)), -1)[:, None]).sum(-1))
    middle, thick, wide = _FINGER
    apart = np.hypot(np.maximum(np.abs(along - middle) - thick, 0.0), np.maximum(aside - wide, 0.0))
    other = (np.hypot(along, aside) > 0.0) & (np.abs(offsets[..., 2]) < _LEVEL)
    out: Floats = np.where(other, apart, np.inf).min(-1, initial=np.inf)
    return out


def _get(poses: Mapping[str, Pose], name: str) -> Pose:
    if name not in poses:
        known = ", ".join(poses) or "nothing"
        raise MissingPose(f"the ground truth has no '{name}'; it has: {known}")
    return poses[name]


def _up(height: float) -> Floats:
    return np.array([0.0, 0.0, height])


def _funnel(offset: Floats, top: float) -> float:
    """Height in m at an offset to the side: down the walls of a funnel.

    It never waits above for being exact, and the bottom lies a little deeper than the target: a
    policy trained on it that is some millimetres wrong comes down all the same.
    """
    aside = float(np.hypot(offset[0], offset[1]))
    return float(np.clip(_SLOPE * (aside - _MOUTH), -_BEYOND, top))


def _within(offset: Floats, aside: float, above: float) -> bool:
    """True of an offset within ``aside`` m sideways and ``above`` m in height, or below."""
    return bool(np.hypot(offset[0], offset[1]) < aside and offset[2] < above)


def _to(position: Floats, gripper: float, turned: bool = False) -> Waypoint:
    """Waypoint at a position, approached from above where it has to be higher.

    Even then it moves a little aside, and never stands quite still: an action that is the same for
    many instructions is a peak at one token, which a policy in doubt would give.
    """

    def rising(scene: Scene) -> Floats:
        move = position - scene.gripper
        most, least = _CLIMB
        move[:2] *= np.clip((least - move[2]) / (least - most), _HARDLY, 1.0)
        return scene.gripper + move

    return Waypoint(rising, gripper, 0.0, turned=turned)


# The next waypoint of each family


def _grasp_and_place(goal: Goal, view: _View) -> Waypoint:
    scene = view.scene
    rest = scene.target + _up(_RESTING["cube" if goal.family is Family.STACK else "plate"])
    off = scene.object - rest  # from its target
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
    if view.crowded:  # turned first, above the others
        left = axis_angle(downward(scene.grasp_yaw) @ scene.rotation.T)
        free, rise = _TURNING
        height = max(height, min(_HOVER, rise * (float(np.linalg.norm(left)) - free)))
    down = view.towards(scene.object + _up(height))
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
    return _to(view.towards(behind + _up(height)), CLOSED)


def _reach(goal: Goal, view: _View) -> Waypoint:
    return _to(view.towards(view.scene.object + _up(_HOVER)), OPEN)


_NEXT: Final[Mapping[Family, Callable[[Goal, _View], Waypoint]]] = {
    Family.REACH: _reach,
    Family.PUSH: _push,
    Family.PICK: _grasp_and_place,
    Family.STACK: _grasp_and_place,
}
