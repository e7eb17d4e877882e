"""Layout of a policy's actions: what its numbers are, in which order, unit and sense.

One place for every policy. Who decides, in this order: the names in the checkpoint's files, its
statistics, the robot's parameters, and where none of them does a default, which is marked. With
``action_space_override`` the parameters come first.

Sources of the conventions: openpi ``examples/libero/main.py`` and lerobot 0.6.1 ``envs/libero.py``
(LIBERO's gripper: -1 open, +1 closed; robosuite takes its sign), openvla
``experiments/robot/robot_utils.py`` (0 closed, 1 open in its data sets).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from vla_ros.core.action_space import (
    END_EFFECTOR_DELTA,
    GRIPPER_UNIT,
    ActionKind,
    ActionSpace,
    action_space_of,
    joint_names_of,
    joints,
    names_positions,
    names_velocities,
)
from vla_ros.core.assumption import Assumption
from vla_ros.core.types import Floats
from vla_ros.engine.io.action_data import STATISTICS, ActionData
from vla_ros.policies.base import PolicyRefused, PolicySpec, Scale
from vla_ros.policies.units import JOINT, OPENING, Scaling, Unit, gripper_of, scaling_of, unit_of

POSITION_SCALE, ROTATION_SCALE = 0.05, 0.5  # m and rad of one unit of LIBERO's controller
CONTROLLER_UNITS: Final[Scale] = (POSITION_SCALE,) * 3 + (ROTATION_SCALE,) * 3
LIBERO_GRIPPER = "1..-1"  # closed..open
PROTOCOL = "LIBERO's protocol"
_SLACK = 0.05  # of an opening: regression and quantiles go a little beyond
_FAR = 0.05  # m or rad: displacements that never come nearer to 0 are none
_LEAST_OPEN = 0.9  # of a gripper that is open at 1


@dataclass(frozen=True, slots=True)
class ActionLayout:
    """Layout of a checkpoint's actions.

    ``order``: the index in the checkpoint of each value of the space. ``assumptions``: what is
    taken, each with its source. ``doubt``: what to check, in one line, or "".
    """

    space: ActionSpace
    order: tuple[int, ...]
    scaling: Scaling
    assumptions: tuple[Assumption, ...] = ()
    doubt: str = ""

    @property
    def gripper(self) -> str:
        """What the checkpoint has for the first gripper's closed..open; "" without one."""
        if not self.space.grippers:
            return ""
        index = self.space.grippers[0]
        factor, offset = self.scaling.factor[index], self.scaling.offset[index]
        return f"{-offset / factor + 0.0:.9g}..{(1.0 - offset) / factor:.9g}"

    def read(self, actions: Floats) -> Floats:
        """Actions [C, D] of the space, in m, rad, grippers within 0..1, of the checkpoint's."""
        out = self.scaling.to_runtime(np.asarray(actions, np.float64)[:, self.order])
        for i in self.space.grippers:
            out[:, i] = np.clip(out[:, i], 0.0, 1.0)
        return out

    def write(self, actions: Floats) -> Floats:
        """Actions [C, D] in the checkpoint's units and order of those of the space."""
        out = np.empty_like(actions)
        out[:, self.order] = self.scaling.to_checkpoint(actions)
        return out


@dataclass(frozen=True, slots=True)
class OwnUnits:
    """Units that the checkpoint or its server states, and who says so.

    ``words``: a unit for each value, or one for all that move; () says nothing. ``scale``: of an
    end effector's x y z rx ry rz, m and rad of one unit."""

    scale: Scale = (1.0,) * 6
    words: tuple[str, ...] = ()
    source: str = ""


def action_layout(
    data: ActionData,
    width: int,
    spec: PolicySpec,
    own: OwnUnits = OwnUnits(),
    rate_hz: float = 0.0,
) -> ActionLayout:
    """Layout of actions of ``width`` numbers, by what the checkpoint says and the spec gives.

    ``own``: the checkpoint's scale of an end effector; ``rate_hz`` of its data. PolicyRefused, in
    one line, where parameters and checkpoint do not fit, or nothing says what must be known.
    """
    space, why = _space(data, width, spec)
    if why.default and space.kind.joints and len(spec.action_units) == width:
        space = _with_grippers(space, spec.action_units)
    order, doubts = _order(data, space)
    known = len(data.low) == len(data.high) == width
    low, high = (tuple(e[i] for i in order) if known else () for e in (data.low, data.high))
    if low and not spec.action_space_override:
        _refuse_positions(space, low, high)
    hz = spec.action_rate_hz or rate_hz
    motion, said = _motion_units(data, space, spec, own, hz)
    units = dict(zip(space.motion, motion, strict=True))
    grippers: list[Assumption] = []
    for index in space.grippers:
        ends = (low[index], high[index]) if low else None
        units[index], row, doubt = _gripper(data, space, index, spec, own, ends)
        grippers.append(row)
        doubts.append(doubt)
    scaling = scaling_of([units[i] for i in range(width)])
    rows = (why, *said, *dict.fromkeys(grippers))
    return ActionLayout(space, order, scaling, rows, "; ".join(dict.fromkeys(filter(None, doubts))))


# What its numbers are


def _space(data: ActionData, width: int, spec: PolicySpec) -> tuple[ActionSpace, Assumption]:
    given = spec.action_space
    fits, chosen = given.width == width, given != END_EFFECTOR_DELTA
    by_names = len(data.names) == width
    if chosen and not fits:
        raise PolicyRefused(
            f"{beside(given, width, data.names)}: give action_space and action_names of as many"
        )
    try:
        named = action_space_of(width, data.names)
    except ValueError as error:
        raise PolicyRefused(str(error)) from error
    if data.positions:
        grippers = tuple(named.names[i] for i in named.grippers)
        called = named.names if named.kind.joints else tuple(f"joint_{i}" for i in range(width))
        named = joints(ActionKind.JOINT_POSITION, called, grippers if named.kind.joints else ())
    if spec.action_space_override and fits:
        space, source, default = given, "parameter action_space_override", False
    elif fits and chosen and not by_names and not data.positions:
        space, source, default = given, "parameter action_space", False
    elif fits and given.kind.joints and named.kind.joints:
        space = _robot_s(given, named, data)
        source, default = f"{data.named_by or 'config.json'} and parameter action_space", False
    elif fits and chosen and not given.kind.joints and not named.kind.joints:
        space, source, default = given, "parameter action_space", False
    else:
        space, default = named, not (by_names or data.positions)
        source = "default" if default else data.named_by or "config.json"
        if default and data.libero and space == END_EFFECTOR_DELTA:
            source, default = f"{PROTOCOL} ({data.libero})", False
    what = f"{space.kind.name.lower()}: {' '.join(space.names)}"
    return space, Assumption("actions", what, source, default)


def _with_grippers(space: ActionSpace, words: Sequence[str]) -> ActionSpace:
    """Joints that nothing names, of which those with a gripper's unit are grippers."""
    pairs = zip(space.names, words, strict=True)
    grippers = tuple(name for name, word in pairs if unit_of(word).si == GRIPPER_UNIT)
    return joints(space.kind, space.names, grippers)


def _robot_s(given: ActionSpace, named: ActionSpace, data: ActionData) -> ActionSpace:
    """The robot's joints in the robot's order; the kind is that of the names where they have one,
    and what the names call a gripper is one."""
    stated = data.positions or names_positions(data.names) or names_velocities(data.names)
    kind = named.kind if stated else given.kind
    order = _places(data.names, given.names) or range(given.width)
    grippers = tuple(
        name
        for i, (name, place) in enumerate(zip(given.names, order, strict=True))
        if i in given.grippers or place in named.grippers
    )
    return joints(kind, given.names, grippers)


def _places(names: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[int, ...]:
    """The index in ``names`` of each of ``wanted``; () where they are not the same."""
    called = joint_names_of(names)
    return tuple(map(called.index, wanted)) if sorted(called) == sorted(wanted) else ()


def _order(data: ActionData, space: ActionSpace) -> tuple[tuple[int, ...], list[str]]:
    plain = tuple(range(space.width))
    if len(data.names) != space.width or not space.kind.joints:
        return plain, []
    if places := _places(data.names, space.names):
        return places, []
    table = beside(space, space.width, data.names)
    return plain, [f"{table}: taken in this order, since no name is the same"]


def beside(space: ActionSpace, width: int, names: Sequence[str]) -> str:
    """What is wanted, a name and unit a value, and what the checkpoint offers."""
    wanted = " ".join(f"{n}[{u}]" for n, u in zip(space.names, space.units, strict=True))
    given = " ".join(names) if names else "without names"
    return f"actions wanted: {space.width} ({wanted}); offered: {width} ({given})"


def _refuse_positions(space: ActionSpace, low: Sequence[float], high: Sequence[float]) -> None:
    """Raise PolicyRefused where statistics of displacements never come near 0."""
    if space.absolute:
        return
    for i in space.motion:
        gap = max(low[i], -high[i])
        if gap > max(_FAR, (high[i] - low[i]) / 4):
            raise PolicyRefused(
                f"its data of {space.names[i]} lie from {low[i]:.3g} to {high[i]:.3g} and never"
                " near 0, so they are positions, no displacements: give action_space"
                " joint_position and action_names, or end_effector_pose"
                " (action_space_override: true where they are displacements)"
            )


# In which units


def _motion_units(
    data: ActionData, space: ActionSpace, spec: PolicySpec, own: OwnUnits, hz: float
) -> tuple[list[Unit], list[Assumption]]:
    """Unit of each value that moves."""
    if spec.action_scale is not None and spec.action_units:
        raise PolicyRefused("action_scale and action_units say the same: leave one out")
    words, by = spec.action_units, "parameter action_units"
    if not words and spec.action_scale is None:
        words, by = own.words, own.source
    wanted = [space.units[i] for i in space.motion]
    if words:
        if len(words) not in (1, space.width):
            raise PolicyRefused(
                f"action_units has {len(words)} units, the checkpoint {space.width} values"
            )
        own_words = words * space.width if len(words) == 1 else words
        units = [unit_of(own_words[i]).over(hz) for i in space.motion]
        _refuse_misfits(space, units)
        shown = " ".join(own_words[i] for i in space.motion)
        return units, [Assumption("units of actions", shown, by)]
    if space.kind.joints:
        if spec.action_scale is not None:
            raise PolicyRefused(
                "action_scale is for end effectors, and these actions are joints: give action_units"
            )
        fast = len(data.names) == space.width and names_velocities(data.names)
        word, source = ("rad/s", data.named_by) if fast else ("rad", "default")
        one = unit_of(word).over(hz)
        return [one] * len(wanted), [Assumption("units of actions", word, source, not fast)]
    if spec.action_scale is not None and len(space.motion) != 6:
        raise PolicyRefused("action_scale is for one end effector: give action_units")
    scale, source = own.scale, own.source
    if spec.action_scale is not None:
        scale, source = spec.action_scale, "parameter action_scale"
    many = scale * (len(space.motion) // 6)
    units = [Unit(f"{x:g}{si}", si, x) for x, si in zip(many, wanted, strict=True)]
    shown = " ".join(unit.si if unit.factor == 1.0 else unit.name for unit in units)
    row = Assumption("units of actions", shown, source or "default", not source)
    return units, [row]


def _refuse_misfits(space: ActionSpace, units: Sequence[Unit]) -> None:
    pairs = zip(space.motion, units, strict=True)
    wrong = [
        f"{space.names[i]} in {unit.name}, wanted {space.units[i]}"
        for i, unit in pairs
        if unit.si != space.units[i] and not (unit.si == JOINT and space.absolute)
    ]
    if wrong:
        raise PolicyRefused(f"action_units do not fit the action space: {'; '.join(wrong)}")


# Which side of a gripper is open


def _gripper(
    data: ActionData,
    space: ActionSpace,
    index: int,
    spec: PolicySpec,
    own: OwnUnits,
    ends: tuple[float, float] | None,
) -> tuple[Unit, Assumption, str]:
    """Unit of a gripper, who says so, and a doubt or ""."""
    words = spec.action_units
    if len(words) == space.width:
        if spec.gripper:
            raise PolicyRefused("gripper and action_units say the same: leave gripper out")
        return _said(words[index], "parameter action_units")
    if spec.gripper:
        return _said(spec.gripper, "parameter gripper")
    if len(own.words) == space.width and not spec.action_scale:
        return _said(own.words[index], own.source)
    if data.gripper:
        return _said(data.gripper, data.gripper_by)
    return _by_statistics(data, space.names[index], ends)


def _by_statistics(
    data: ActionData, name: str, ends: tuple[float, float] | None
) -> tuple[Unit, Assumption, str]:
    if ends is None:
        if data.libero:
            return _said(LIBERO_GRIPPER, f"{PROTOCOL} ({data.libero})")
        return _said(OPENING, "default", default=True)
    low, high = ends
    if data.libero and low < -_SLACK and low >= -1 - _SLACK and high <= 1 + _SLACK:
        return _said(LIBERO_GRIPPER, f"{PROTOCOL} ({data.libero})")
    if low < -_SLACK or high > 1 + _SLACK:
        raise PolicyRefused(
            f"its data of {name} lie from {low:.3g} to {high:.3g}, and nothing says which end is"
            " closed: give gripper, closed..open, such as 1..-1 (LIBERO, robosuite), 0..100 or"
            " 0.8..0"
        )
    doubt = ""
    if high < _LEAST_OPEN and high - low > 2 * _SLACK:
        doubt = (
            f"its data of {name} lie from {low:.3g} to {high:.3g}: taken for 0 closed to 1 open;"
            " where that is wrong give gripper, closed..open, such as 0.8..0"
        )
    unit, row, _ = _said(OPENING, f"default, as {STATISTICS} allow", default=True)
    return unit, row, doubt


def _said(word: str, source: str, default: bool = False) -> tuple[Unit, Assumption, str]:
    unit = gripper_of(word, source.removeprefix("parameter "))
    closed, _, opened = word.partition("..")
    value = f"{closed} closed, {opened} open" if opened else f"0 closed, 1 open ({word})"
    return unit, Assumption("gripper", value, source, default), ""


def state_units_of(
    spec: PolicySpec, count: int, given: Sequence[str] = (), by: str = ""
) -> tuple[tuple[str, ...], Assumption | None]:
    """Units of the robot's state of ``count`` values: the spec's, else ``given`` by whom ``by``
    names; and the row that says so, None for a policy that takes no state."""
    words = spec.state_units or tuple(given)
    if not count:
        return words, None
    if not words:
        return (), Assumption.taken("units of the state", "rad, m, grippers as measured")
    source = "parameter state_units" if spec.state_units else by
    return words, Assumption("units of the state", " ".join(words), source)
