"""The scripted expert for libero_object and libero_spatial: instruction and ground truth only.

It knows the sizes of the things it handles, as the benchmark's collision shapes have them, and
their poses; success is the benchmark's own to judge. Like the tabletop's expert it goes by the
poses and begins again when it has lost the object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vla_ros.core.types import Floats, Pose
from vla_ros.sim.expert import CLOSED, OPEN, PlanFollower, Scene, Waypoint, matrix, still
from vla_ros.sim.libero.suites import Goal, MissingThing, UnknownInstruction, find, parse, position

_HOVER = 0.10  # m above an object's top before going down to it
_DEEP = 0.033  # m below its top where an object is held
_FINGER = 0.012  # m above its bottom at least: the fingers would touch the table
_CLEAR = 0.06  # m between a carried object and the rim it is carried over
_AWAY = 0.15  # m above the rim, where the gripper goes at last
_PATIENCE = 35  # actions for one waypoint
_SIDES = (0.0, np.pi / 2, np.pi, -np.pi / 2)  # rad: left, near, right, far side of a rim
_BASE = np.array([-0.66, 0.0])  # m, the robot's base beside the table
_FAR = 0.755  # m from there; farther out the arm does not reach down at an object's left side
_CLOSE, _LET = 8, 8  # actions to close and to open the fingers
_BESIDE = 0.06  # m from the target's middle; farther off an object is not there
_HELD = 0.10  # m; farther from the gripper a carried object is lost


@dataclass(frozen=True, slots=True)
class CarriedObject:
    """An object to carry: ``top`` and ``bottom`` are heights over its pose's origin, in m.

    ``across``: the axis of its body (0 x, 1 y, 2 z) that the fingers close along; -1 for round
    ones that are held by the rim, ``rim`` m from the middle.
    """

    top: float
    bottom: float
    across: int
    rim: float = 0.0

    @property
    def grip(self) -> float:
        """Height of the fingers over the origin."""
        return max(self.top - _DEEP, self.bottom + _FINGER)


#: Measured on the collision shapes of the things, standing as LIBERO puts them.
THINGS = {
    "alphabet_soup": CarriedObject(0.038, -0.038, 2),
    "bbq_sauce": CarriedObject(0.052, -0.055, 0),
    "butter": CarriedObject(0.009, -0.009, 1),
    "chocolate_pudding": CarriedObject(0.014, -0.013, 1),
    "cream_cheese": CarriedObject(0.009, -0.009, 1),
    "ketchup": CarriedObject(0.073, -0.072, 0),
    "milk": CarriedObject(0.061, -0.070, 0),
    "orange_juice": CarriedObject(0.061, -0.070, 0),
    "salad_dressing": CarriedObject(0.073, -0.073, 0),
    "tomato_sauce": CarriedObject(0.038, -0.038, 2),
    "akita_black_bowl": CarriedObject(0.052, 0.002, -1, rim=0.0475),
}


@dataclass(frozen=True, slots=True)
class PlaceTarget:
    """A target: heights over its pose's origin, in m. ``rim``: to carry an object over;
    ``release``: of the bottom of an object when it is let go."""

    rim: float
    release: float


TARGETS = {"basket": PlaceTarget(0.146, 0.126), "plate": PlaceTarget(0.016, 0.026)}


class LiberoExpert:
    """Scripted policy for one instruction. Not thread-safe.

    UnknownInstruction: the instruction asks for nothing it can do.
    """

    def __init__(self, instruction: str) -> None:
        self._goal = parse(instruction)
        if self._goal.object not in THINGS or self._goal.target not in TARGETS:
            raise UnknownInstruction(
                f"cannot carry {self._goal.object} to {self._goal.target}; it carries"
                f" {', '.join(THINGS)} to {', '.join(TARGETS)}"
            )
        self._thing = THINGS[self._goal.object]
        self._name = ""  # of the object that is meant, once it was seen
        self._attempts = 0
        self._begin()

    def _begin(self) -> None:
        """Begin another attempt, planned once the object's position is known."""
        self._attempts += 1
        self._start: Floats | None = None

    def _plan_attempt(self, start: Floats) -> None:
        """Plan an attempt from the object's position; round ones by another side each time."""
        self._start = start
        number = self._attempts - 1 + int(np.linalg.norm(start[:2] - _BASE) > _FAR)
        self._side = _SIDES[number % len(_SIDES)]
        self._follower = PlanFollower(_plan(self._goal, self._thing, self._side), _HELD, _PATIENCE)

    def act(self, poses: Mapping[str, Pose]) -> Floats:
        """The next action, float64 [7]: m, rad (axis-angle), gripper 0 closed to 1 open.

        ``poses`` holds "gripper" and every thing by LIBERO's name, in the world frame, the
        gripper's z axis along the fingers. MissingThing: one that is needed is not there.
        """
        scene = self._scene(poses)
        if self._follower.done:
            if self._achieved(scene):
                return still(OPEN)
            self._begin()
            scene = self._scene(poses)
        if self._follower.failed(scene):
            action = self._follower.still()
            self._begin()
            return action
        return self._follower.act(scene)

    def _achieved(self, scene: Scene) -> bool:
        """True once the object has come down at the target; it may hang on a rim or a finger."""
        offset = scene.object - scene.target
        highest = TARGETS[self._goal.target].release - self._thing.bottom
        return bool(np.linalg.norm(offset[:2]) < _BESIDE and offset[2] < highest)

    def _scene(self, poses: Mapping[str, Pose]) -> Scene:
        if "gripper" not in poses:
            raise MissingThing("the ground truth has no gripper")
        self._name = self._name or find(self._goal, poses)
        thing, gripper = poses[self._name], poses["gripper"]
        at = np.array(thing.position)
        if self._start is None:
            self._plan_attempt(at)
        assert self._start is not None
        return Scene(
            gripper=np.array(gripper.position),
            rotation=matrix(gripper.quaternion),
            object=at,
            grasp_yaw=self._grasp_yaw(thing),
            target=position(self._goal.target, poses),
            start=self._start,
        )

    def _grasp_yaw(self, pose: Pose) -> float:
        """Turn of the gripper, -pi/2..pi/2 rad, that makes the fingers close the right way."""
        along = matrix(pose.quaternion)[:2, self._thing.across]
        yaw = self._side if self._thing.rim else float(np.arctan2(-along[0], along[1]))
        return (yaw + np.pi / 2) % np.pi - np.pi / 2  # unturned they close along y


def _plan(goal: Goal, thing: CarriedObject, side: float) -> tuple[Waypoint, ...]:
    # where the fingers are, seen from the object
    hold = np.array([-np.sin(side) * thing.rim, np.cos(side) * thing.rim, thing.grip])
    target = TARGETS[goal.target]

    def above(scene: Scene) -> Floats:
        return scene.object + hold + [0, 0, thing.top - thing.grip + _HOVER]

    def around(scene: Scene) -> Floats:
        return scene.object + hold

    def carry_height(scene: Scene) -> float:
        """Height of the object: clear of the target's rim and of its first support."""
        over = scene.target[2] + target.rim + _CLEAR - thing.bottom
        return float(max(over, scene.start[2] + _CLEAR))

    def in_hand(position: Floats, scene: Scene) -> Floats:
        return position + scene.gripper - scene.object

    def up(scene: Scene) -> Floats:
        return in_hand(np.array([*scene.object[:2], carry_height(scene)]), scene)

    def over(scene: Scene) -> Floats:
        return in_hand(np.array([*scene.target[:2], carry_height(scene)]), scene)

    def down(scene: Scene) -> Floats:
        height = scene.target[2] + target.release - thing.bottom
        return in_hand(np.array([*scene.target[:2], height]), scene)

    def away(scene: Scene) -> Floats:
        return np.array([*scene.gripper[:2], scene.target[2] + target.rim + _AWAY])

    return (
        Waypoint(above, OPEN, 0.015, turned=True, climb=True),
        Waypoint(around, OPEN, 0.006, turned=True),
        Waypoint(around, CLOSED, 0.0, turned=True, dwell=_CLOSE),
        Waypoint(up, CLOSED, 0.03, turned=True, carry=True),
        Waypoint(over, CLOSED, 0.015, turned=True, carry=True),
        Waypoint(down, CLOSED, 0.010, turned=True, carry=True),
        Waypoint(down, OPEN, 0.0, turned=True, dwell=_LET),
        Waypoint(away, OPEN, 0.03, turned=True),
    )
