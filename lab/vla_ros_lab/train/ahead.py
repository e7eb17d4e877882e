"""The expert's next H actions from any state of the table.

A demonstration has the expert's next actions only while nobody disturbed it, and only for the
instruction that it pursued. So the table is moved on by a model of it: the hand follows commands by
three taps of a filter (measured on the tabletop: half a millimetre off a step), fingers close on
what is between them, what is held moves along, what is pushed is pushed. The expert is
:mod:`vla_ros.sim.expert`'s, for many states at once; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vla_ros.core.types import ACTION_DIM, GRIPPER, Floats
from vla_ros.sim import expert as scripted
from vla_ros.sim.tasks import Family, Goal
from vla_ros_lab.train.demonstrations import BODIES
from vla_ros_lab.train.units import to_environment, to_values

Bools = npt.NDArray[np.bool_]

#: motion of the hand in a step, as shares of the commands of now, one and two steps ago
TAPS = (0.135, 0.105, 0.025)
_SPEED = 0.75  # share of their way that the fingers go in a step
_WIDE, _CUBE = 0.08, 0.041  # m between open fingers, and between those that hold a cube
_TOUCH = 0.034  # m from a cube's center to the hand that pushes it
_REACH = (0.03, 0.03)  # m aside and above within which closed fingers meet a cube
_FREE = 0.055  # m between the fingers: what they held falls
_FAMILIES = list(Family)
_REACHING, _PUSHING, _STACKING = map(_FAMILIES.index, (Family.REACH, Family.PUSH, Family.STACK))


@dataclass(slots=True)
class Tables:
    """States of N tables with their goals; everything in m, rad.

    ``family`` [N]: the number of the goal's; ``grip``, ``thing``, ``target`` [N, 3], ``gap`` [N];
    ``level`` and ``turned`` [N, 3]: the rotation still to make to point straight down, and to grasp
    the thing, ``crowded`` [N]: beside others; ``commanded`` [2, N, 6]: one and two steps ago;
    ``side`` [N]: of a push, along y; ``swing`` [N]: the side of :mod:`vla_ros.sim.expert`.
    """

    family: npt.NDArray[np.int64]
    grip: Floats
    thing: Floats
    target: Floats
    gap: Floats
    level: Floats
    turned: Floats
    crowded: Bools
    commanded: Floats
    side: Floats
    swing: Floats


def futures(
    poses: npt.NDArray[np.float32],
    before: npt.NDArray[np.float32],
    goals: Sequence[Goal],
    scale: Floats,
    horizon: int,
    swing: Floats | None = None,
) -> npt.NDArray[np.float32]:
    """Values (see units) float32 [N, horizon, 7] of the expert; it swings out to the side
    ``swing`` [N] of every state, or nowhere.

    ``poses`` [N, BODIES, 7], one goal a state; ``before`` [N, 2, 7]: what was executed one and
    two steps ago, in environment units; ``scale`` [6].
    """
    tables = tables_of(poses, before, goals, scale, swing)
    chunk = []
    for _ in range(horizon):
        action = advise_many(tables)
        chunk.append(to_values(to_environment(action, scale)))
        move_on(tables, action, scale)
    return np.stack(chunk, 1).astype(np.float32)


def tables_of(
    poses: npt.NDArray[np.float32],
    before: npt.NDArray[np.float32],
    goals: Sequence[Goal],
    scale: Floats,
    swing: Floats | None = None,
) -> Tables:
    """The states as tables, arguments as of :func:`futures`."""
    wide = poses.astype(np.float64)
    rows = np.arange(len(wide))
    thing = wide[rows, [BODIES.index(goal.object) for goal in goals]]
    named = [g.target if g.target in BODIES else g.object for g in goals]
    hand = wide[:, BODIES.index("gripper")]
    left, right = (wide[:, BODIES.index(f"finger_{name}"), :3] for name in ("left", "right"))
    rotation = matrices(hand[:, 3:])
    cubes = [index for index, name in enumerate(BODIES) if name.endswith("_cube")]
    turns, crowded = scripted.grasp_turn(
        upright_yaws(thing[:, 3:]),
        np.arctan2(rotation[:, 1, 0], rotation[:, 0, 0]),
        wide[:, cubes, :3] - thing[:, None, :3],
    )
    cosine, sine = np.cos(turns), np.sin(turns)
    turn = np.zeros((len(wide), 3, 3))
    turn[:, 0, 0], turn[:, 0, 1], turn[:, 1, 0], turn[:, 1, 1] = cosine, -sine, sine, cosine
    turn[:, 2, 2] = 1.0
    back = rotation.transpose(0, 2, 1)
    return Tables(
        family=np.array([_FAMILIES.index(goal.family) for goal in goals]),
        grip=hand[:, :3].copy(),
        thing=thing[:, :3].copy(),
        target=wide[rows, [BODIES.index(name) for name in named], :3].copy(),
        gap=np.linalg.norm(left - right, axis=1),
        level=axis_angles(scripted.downward(0.0) @ back),
        turned=axis_angles(turn @ scripted.downward(0.0) @ back),
        crowded=crowded,
        commanded=before[:, :, :GRIPPER].astype(np.float64).transpose(1, 0, 2) * scale,
        side=np.array([1.0 if goal.target == "right" else -1.0 for goal in goals]),
        swing=np.zeros(len(wide)) if swing is None else swing,
    )


def advise_many(tables: Tables) -> Floats:
    """:func:`vla_ros.sim.expert.advise` for each table: float64 [N, 7]."""
    reach = _by(tables, tables.thing + _up(scripted._HOVER))
    position, gripper, turned = _grasp_and_place(tables)
    push = tables.family == _PUSHING
    still = tables.family == _REACHING
    position = np.where(still[:, None], reach, np.where(push[:, None], _push(tables), position))
    gripper = np.where(still, scripted.OPEN, np.where(push, scripted.CLOSED, gripper))
    turned &= ~(still | push)
    way = position - tables.grip
    most, least = scripted._CLIMB
    way[:, :2] *= np.clip((least - way[:, 2:]) / (least - most), scripted._HARDLY, 1.0)
    turn = np.where(turned[:, None], tables.turned, tables.level)
    action = np.empty((len(way), ACTION_DIM))
    gain = scripted.GAIN
    action[:, :3] = np.clip(gain * way, -scripted.STEP_M, scripted.STEP_M)
    action[:, 3:6] = np.clip(gain * turn, -scripted.STEP_RAD, scripted.STEP_RAD)
    action[:, GRIPPER] = gripper
    return action


def _grasp_and_place(tables: Tables) -> tuple[Floats, Floats, Bools]:
    high = scripted._RESTING
    rest = tables.target.copy()
    rest[:, 2] += np.where(tables.family == _STACKING, high["cube"], high["plate"])
    off, hand = tables.thing - rest, tables.grip - tables.thing
    between = _within(hand, 0.02, 0.02)
    gripped = between & (tables.gap < scripted._GRIPPED)
    there, near = _within(off, 0.017, 0.012), _within(off, 0.03, 0.015)
    carried = rest + hand + _up(_funnel(off, scripted._TRAVEL - scripted._HALF))
    away = tables.target.copy()
    away[:, 2] = scripted._TRAVEL
    grasp = _within(hand, 0.018, 0.014) | (between & (tables.gap < 0.07))
    free, rise = scripted._TURNING
    left = np.minimum(scripted._HOVER, rise * (np.linalg.norm(tables.turned, axis=1) - free))
    height = _funnel(hand, scripted._HOVER)
    height = np.where(tables.crowded, np.maximum(height, left), height)
    down = _by(tables, tables.thing + _up(height))
    cases = [gripped & there, gripped, near]
    position = np.select([c[:, None] for c in cases], [rest + hand, carried, away], down)
    shut, wide = scripted.CLOSED, scripted.OPEN
    gripper = np.select(cases, [wide, shut, wide], np.where(grasp, shut, wide))
    return position, gripper, ~(gripped | near)


def _push(tables: Tables) -> Floats:
    side = np.zeros_like(tables.thing)
    side[:, 1] = tables.side
    foot = tables.thing + _up(scripted._LOW)
    off = tables.grip - foot
    ahead = (off * side).sum(1)
    aside, above = scripted._LANE
    lane = (np.abs(off[:, 0]) < aside) & (off[:, 2] < above)
    lane &= (ahead > -scripted._BEHIND - aside) & (ahead < 0.0)
    behind = foot - scripted._BEHIND * side
    high = np.maximum(0.0, _funnel(tables.grip - behind, scripted._HOVER))
    onward = foot + (ahead + scripted._AHEAD)[:, None] * side
    return np.where(lane[:, None], onward, _by(tables, behind + _up(high)))


def _by(tables: Tables, position: Floats) -> Floats:
    """Waypoint [N, 3] on the free way to ``position`` [N, 3]."""
    aside = scripted.around(tables.grip[:, :2], position[:, :2], tables.swing)
    return np.concatenate((aside, position[:, 2:]), 1)


def _up(height: float | Floats) -> Floats:
    return np.multiply.outer(np.asarray(height, np.float64), np.array([0.0, 0.0, 1.0]))


def _funnel(offset: Floats, top: float) -> Floats:
    aside = np.hypot(offset[:, 0], offset[:, 1])
    out: Floats = np.clip(scripted._SLOPE * (aside - scripted._MOUTH), -scripted._BEYOND, top)
    return out


def _within(offset: Floats, aside: float, above: float) -> Bools:
    out: Bools = (np.hypot(offset[:, 0], offset[:, 1]) < aside) & (offset[:, 2] < above)
    return out


def move_on(tables: Tables, action: Floats, scale: Floats) -> None:
    """Let every table's hand do ``action`` [N, 7] for one control step."""
    commanded = np.clip(action[:, :GRIPPER], -scale, scale)
    now, one, two = TAPS
    moved = now * commanded + one * tables.commanded[0] + two * tables.commanded[1]
    tables.commanded = np.stack((commanded, tables.commanded[0]))
    shut = action[:, GRIPPER] < 0.5
    hand = tables.grip - tables.thing
    between = _within(hand, 0.02, 0.02) & (hand[:, 2] > -0.02)
    held = between & (tables.gap < scripted._GRIPPED)
    goes = np.where(shut, np.where(between, _CUBE, 0.0), _WIDE)
    tables.gap = tables.gap + _SPEED * (goes - tables.gap)
    tables.grip = tables.grip + moved[:, :3]
    tables.level, tables.turned = tables.level - moved[:, 3:], tables.turned - moved[:, 3:]
    carried = held & (tables.gap < _FREE)
    tables.thing = tables.thing + np.where(carried[:, None], moved[:, :3], 0.0)
    _shove(tables, ~between & (tables.gap < scripted._GRIPPED))


def _shove(tables: Tables, closed: Bools) -> None:
    """Closed fingers that come too near from behind take the thing along."""
    off = tables.grip - tables.thing
    aside, above = _REACH
    ahead = off[:, 1] * tables.side
    meets = closed & (tables.family == _PUSHING) & (np.abs(off[:, 0]) < aside)
    meets &= (np.abs(off[:, 2]) < above) & (ahead < 0.0)
    tables.thing[:, 1] += tables.side * np.where(meets, np.maximum(0.0, ahead + _TOUCH), 0.0)


def matrices(quaternions: Floats) -> Floats:
    """Rotation matrices [N, 3, 3] of quaternions x, y, z, w [N, 4]."""
    x, y, z, w = (quaternions / np.linalg.norm(quaternions, axis=1, keepdims=True)).T
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
        (2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
        (2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
    )
    return np.stack([np.stack(row, -1) for row in rows], 1)


def axis_angles(rotations: Floats) -> Floats:
    """Axis times angle [N, 3] in rad; of half a turn, whose axis has no sign, 0."""
    skew = 0.5 * np.stack(
        [
            rotations[:, 2, 1] - rotations[:, 1, 2],
            rotations[:, 0, 2] - rotations[:, 2, 0],
            rotations[:, 1, 0] - rotations[:, 0, 1],
        ],
        1,
    )
    sine = np.linalg.norm(skew, axis=1)
    angle = np.arctan2(sine, 0.5 * (np.trace(rotations, axis1=1, axis2=2) - 1.0))
    return skew * (angle / np.maximum(sine, 1e-9))[:, None]


def upright_yaws(quaternions: Floats) -> Floats:
    """Turns [N] of cubes, see :func:`vla_ros.sim.expert.upright_yaw`."""
    turns = matrices(quaternions)
    flattest = np.abs(turns[:, 2]).argmin(1)
    horizontal = turns[np.arange(len(turns)), :2, flattest]
    yaw = np.arctan2(horizontal[:, 1], horizontal[:, 0])
    out: Floats = (yaw + np.pi / 4) % (np.pi / 2) - np.pi / 4
    return out
