"""Tasks of the tabletop: names, instructions, fixed initial states, success predicates.

All of it is pure: an initial state is a function of (task, index, seed), success one of the
state of the table.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from vla_ros.core.types import Floats
from vla_ros.sim.env import Task
from vla_ros.sim.scene import CUBE_HALF, PLATE_TOP, PLATE_XY

# Goals of the tabletop, from an instruction and as one.
#
# The scripted expert reads instructions with :func:`parse_instruction`, so its input is a real
# policy's; the tasks write theirs with :func:`instruction_of`.


COLORS = ("red", "green", "blue", "yellow")
PLATE = "plate"


class Family(str, Enum):
    """Kinds of goal, from easy to hard."""

    REACH = "reach"  # the gripper comes to rest above the object
    PUSH = "push"  # the object moves left or right on the table; target: "left" or "right"
    PICK = "pick"  # the object lies on the plate
    STACK = "stack"  # the object lies on another cube; target: that cube


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal. ``object`` and ``target`` are names of ground-truth poses, or a side for PUSH."""

    family: Family
    object: str
    target: str = ""


class UnknownInstruction(ValueError):
    """The instruction asks for nothing that the tabletop can do."""


_ABILITIES = (
    "'move the gripper above the C cube', 'push the C cube to the left' or 'right', "
    "'pick up the C cube and put it on the plate', 'put the C cube on the D cube'; "
    f"colors C, D: {', '.join(COLORS)}"
)
_NEGATIONS = {"not", "never", "don't", "dont", "without"}
_PUSH_VERBS = {"push", "slide", "shove", "move", "nudge"}
_ABOVE = {"above", "over"}
_ONTO = {"on", "onto", "stack", "atop"}


def cube(color: str) -> str:
    """Name of the cube of that color in the ground truth."""
    return f"{color}_cube"


def instruction_of(goal: Goal) -> str:
    """The instruction that asks for ``goal``, as the tasks word it."""
    thing = goal.object.replace("_", " ")
    if goal.family is Family.REACH:
        return f"move the gripper above the {thing}"
    if goal.family is Family.PUSH:
        return f"push the {thing} to the {goal.target}"
    if goal.family is Family.PICK:
        return f"pick up the {thing} and put it on the plate"
    return f"put the {thing} on the {goal.target.replace('_', ' ')}"


def parse_instruction(text: str) -> Goal:
    """The goal that ``text`` asks for.

    It looks for key words, so other wordings of the same request are understood too.
    UnknownInstruction: it asks for something else; the message lists the possible goals.
    """
    words = re.findall(r"[a-z']+", text.lower())
    goal = None if _NEGATIONS & set(words) else _match(words)
    if goal is None:
        raise UnknownInstruction(f"cannot do {text[:200]!r}; it can do {_ABILITIES}")
    return goal


def _match(words: list[str]) -> Goal | None:
    present = set(words)
    colors = [word for word in words if word in COLORS]
    if len(colors) == 2 and colors[0] != colors[1]:
        if present & _ONTO and not present & {PLATE, "left", "right"}:
            return Goal(Family.STACK, cube(colors[0]), cube(colors[1]))
        return None
    if len(colors) != 1:
        return None
    thing = cube(colors[0])
    sides = present & {"left", "right"}
    if PLATE in present:
        return Goal(Family.PICK, thing, PLATE) if not sides else None
    if present & _ABOVE:
        return Goal(Family.REACH, thing) if not sides else None
    if present & _PUSH_VERBS and len(sides) == 1:
        return Goal(Family.PUSH, thing, sides.pop())
    return None


INITIAL_STATES = 50  # per task and seed
PUSH_DISTANCE = 0.06  # m
REACH_RADIUS = 0.025  # m, of the gripper beside the cube
REACH_HEIGHT = (0.05, 0.16)  # m, of the gripper above the cube's middle
PLATE_RADIUS = 0.06  # m, of the cube from the plate's middle
STACK_RADIUS = 0.03  # m, of the cube beside the lower one
LIES = 0.008  # m, of a cube's height from that of one that lies there
LIES_ON_TABLE = 0.01  # m, the same after a push
FALLEN = -0.05  # m; a cube below this has left the table

_MAX_STEPS = {Family.REACH: 120, Family.PUSH: 200, Family.PICK: 300, Family.STACK: 300}
#: actions for which the predicate must hold, so that passing by is no success
HELD_ACTIONS = {Family.REACH: 5, Family.PUSH: 1, Family.PICK: 3, Family.STACK: 5}

_AREA = ((-0.08, -0.25), (0.16, 0.20))  # of cubes: lower and upper corner, m
_CLEARANCE = 0.11  # m between centers, so that the open hand fits in between
_BESIDE = (0.003, 0.020)  # m between two that stand right beside each other
_DRAWS = 50  # until another one beside has room
_PUSH_LANE = (0.10, 0.24)  # half-width and length that a push needs free, m


@dataclass(frozen=True, slots=True)
class TableState:
    """State that success is judged by: positions [3] in m, and the cubes the fingers touch."""

    gripper: Floats
    cubes: Mapping[str, Floats]
    start: Mapping[str, Floats]
    touched: frozenset[str]


@dataclass(frozen=True, slots=True)
class CubePlacement:
    """Pose of a cube at the start: m and rad about the vertical."""

    x: float
    y: float
    yaw: float


def task_name(goal: Goal) -> str:
    """Name of a goal's task: ``pick_red_cube``, ``push_red_cube_left``, ``stack_red_on_blue``,
    ``reach_red_cube``."""
    if goal.family is Family.PUSH:
        return f"push_{goal.object}_{goal.target}"
    if goal.family is Family.STACK:
        return f"stack_{goal.object.removesuffix('_cube')}_on_{goal.target.removesuffix('_cube')}"
    return f"{goal.family.value}_{goal.object}"


def all_goals() -> tuple[Goal, ...]:
    """Every goal of the tabletop: picks first, then pushes, stacks and reaches."""
    cubes = [cube(color) for color in COLORS]
    picks = [Goal(Family.PICK, thing, PLATE) for thing in cubes]
    pushes = [Goal(Family.PUSH, thing, side) for thing in cubes for side in ("left", "right")]
    stacks = [Goal(Family.STACK, a, b) for a in cubes for b in cubes if a != b]
    reaches = [Goal(Family.REACH, thing) for thing in cubes]
    return (*picks, *pushes, *stacks, *reaches)


GOALS: dict[str, Goal] = {task_name(goal): goal for goal in all_goals()}
TASKS: tuple[Task, ...] = tuple(
    Task(name, instruction_of(goal), INITIAL_STATES, _MAX_STEPS[goal.family])
    for name, goal in GOALS.items()
)


def placements(name: str, index: int, seed: int) -> dict[str, CubePlacement]:
    """Poses of all cubes in initial state ``index`` of task ``name``."""
    goal = GOALS[name]
    rng = np.random.default_rng([seed, zlib.crc32(name.encode()), index])
    while True:
        placed = {cube(color): _draw(rng) for color in COLORS}
        if allowed(goal, placed):
            return placed


def crowded_placements(name: str, index: int, seed: int) -> dict[str, CubePlacement]:
    """Poses as of :func:`placements` but for one or two cubes right beside the one to be grasped,
    at any side of it and turned anyhow, like pushed ones. Where nothing is grasped, the same."""
    goal, placed = GOALS[name], placements(name, index, seed)
    if goal.family not in (Family.PICK, Family.STACK):
        return placed
    rng = np.random.default_rng([seed, zlib.crc32(name.encode()), index, 2])
    others = [other for other in placed if other not in (goal.object, goal.target)]
    for other in rng.permutation(others)[: rng.integers(1, 3)]:
        rest = {n: p for n, p in placed.items() if n != other}
        for _ in range(_DRAWS):
            beside = _beside(placed[goal.object], rng)
            below = {n: p for n, p in rest.items() if n == goal.target}
            if allowed(goal, below | {other: beside}) and _disjoint(beside, rest.values()):
                placed = rest | {other: beside}
                break
    return placed


def _beside(cube: CubePlacement, rng: np.random.Generator) -> CubePlacement:
    angle, yaw = float(rng.uniform(-np.pi, np.pi)), float(rng.uniform(-0.7, 0.7))
    away = _extent(cube.yaw - angle) + _extent(yaw - angle) + float(rng.uniform(*_BESIDE))
    x, y = cube.x + away * float(np.cos(angle)), cube.y + away * float(np.sin(angle))
    return CubePlacement(x, y, yaw)


def _disjoint(one: CubePlacement, others: Iterable[CubePlacement]) -> bool:
    """True if a line across the middle separates it from each."""
    for other in others:
        angle = float(np.arctan2(other.y - one.y, other.x - one.x))
        away = float(np.hypot(other.x - one.x, other.y - one.y))
        if away < _extent(one.yaw - angle) + _extent(other.yaw - angle) + _BESIDE[0] / 2:
            return False
    return True


def _extent(turn: float) -> float:
    """Distance from a cube's center to its edge, in a direction so far from its edges', m."""
    return CUBE_HALF * float(abs(np.cos(turn)) + abs(np.sin(turn)))


def allowed(goal: Goal, placed: Mapping[str, CubePlacement]) -> bool:
    """True of poses on the area for cubes, apart, and with room for a push."""
    low, high = _AREA
    inside = all(low[0] <= p.x <= high[0] and low[1] <= p.y <= high[1] for p in placed.values())
    return inside and _far_apart(placed) and _lane_free(goal, placed)


def _draw(rng: np.random.Generator) -> CubePlacement:
    x, y = rng.uniform(*_AREA)
    return CubePlacement(float(x), float(y), float(rng.uniform(-0.6, 0.6)))


def _far_apart(placed: Mapping[str, CubePlacement]) -> bool:
    spots = np.array([*((p.x, p.y) for p in placed.values()), PLATE_XY])
    distance = np.linalg.norm(spots[:, None] - spots[None], axis=-1)
    return bool((distance + np.eye(len(spots)) > _CLEARANCE).all())


def _lane_free(goal: Goal, placed: Mapping[str, CubePlacement]) -> bool:
    """True if a pushed cube and the hand behind it have a lane without other objects."""
    if goal.family is not Family.PUSH:
        return True
    width, length = _PUSH_LANE
    moved = placed[goal.object]
    others = [(p.x, p.y) for name, p in placed.items() if name != goal.object]
    return all(
        abs(x - moved.x) > width or abs(y - moved.y) > length for x, y in (*others, PLATE_XY)
    )


def satisfied(goal: Goal, state: TableState) -> bool:
    """True if ``goal`` holds in ``state``."""
    position = state.cubes[goal.object]
    if goal.family is Family.REACH:
        above = state.gripper - position
        low, high = REACH_HEIGHT
        return bool(np.hypot(above[0], above[1]) < REACH_RADIUS and low < above[2] < high)
    if goal.family is Family.PUSH:
        side = 1.0 if goal.target == "right" else -1.0
        moved = side * (position[1] - state.start[goal.object][1])
        lies = abs(position[2] - CUBE_HALF) < LIES_ON_TABLE
        return bool(moved > PUSH_DISTANCE and lies)
    if goal.object in state.touched:
        return False
    if goal.family is Family.PICK:
        support, reach = np.array([*PLATE_XY, PLATE_TOP]), PLATE_RADIUS
    else:
        support, reach = state.cubes[goal.target] + [0.0, 0.0, CUBE_HALF], STACK_RADIUS
    offset = position - support
    return bool(np.hypot(offset[0], offset[1]) < reach and abs(offset[2] - CUBE_HALF) < LIES)


def out_of_reach(goal: Goal, state: TableState) -> bool:
    """True if a cube that the goal needs has fallen off the table."""
    names = {goal.object, goal.target} & set(state.cubes)
    return any(state.cubes[name][2] < FALLEN for name in names)
