"""Between a robot's units and GR00T's: groups of values, each scaled in its own way.

Source: NVIDIA/Isaac-GR00T ``state_action_processor.py``, ``data/utils.py`` and ``pose.py``, value
for value: statistics are float64, and what goes into the model float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from vla_ros.rotation import turned

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


class Scale(Enum):
    """How a group's values are brought to about [-1, 1]."""

    RANGE = "range"  # from the least and the greatest, or two quantiles
    SPREAD = "spread"  # by mean and standard deviation
    TURN = "turn"  # angles: sine and cosine, twice as many values
    ZERO = "zero"  # the model is not shown any


class Relative(Enum):
    """To what a group of actions is relative, and how it is put together."""

    NOTHING = "nothing"
    SUM = "sum"  # to the state's values
    ROT6D = "xyz+rot6d"  # to the state's pose: translation and two rows of a rotation
    ROTVEC = "xyz+rotvec"  # the same with an axis-angle


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A run of values that belong together. ``low`` and ``high`` are [size], or [rows, size] of
    actions with statistics of their own for every row; least and greatest, or mean and deviation.
    ``begin``: where in the state the values are that an action is relative to."""

    name: str
    low: F64
    high: F64
    scale: Scale = Scale.RANGE
    relative: Relative = Relative.NOTHING
    begin: int = 0

    @property
    def size(self) -> int:
        """Values of the robot."""
        return int(self.low.shape[-1])

    @property
    def wide(self) -> int:
        """Values of the model."""
        return self.size * (2 if self.scale is Scale.TURN else 1)


def state_to_model(groups: Sequence[Group], state: F32, clip: bool) -> F32:
    """The robot's state [n] -> the model's [m]; ``clip`` to [-1, 1] what is scaled by a range."""
    parts, begin = [], 0
    for group in groups:
        values = state[begin : begin + group.size]
        begin += group.size
        parts.append(_shown(group, values, clip))
    return np.concatenate(parts).astype(np.float32)


def _shown(group: Group, values: F32, clip: bool) -> F32:
    out = np.zeros_like(values)
    if group.scale is Scale.ZERO:
        return out
    if group.scale is Scale.TURN:
        return np.concatenate([np.sin(values), np.cos(values)])
    if group.scale is Scale.SPREAD:
        moves = group.high != 0
        out[moves] = (values[moves] - group.low[moves]) / group.high[moves]
        out[~moves] = values[~moves]
        return out
    moves = ~np.isclose(group.high, group.low)
    out[moves] = (values[moves] - group.low[moves]) / (group.high[moves] - group.low[moves])
    out[moves] = 2 * out[moves] - 1
    return np.clip(out, -1.0, 1.0) if clip else out


def actions_to_robot(groups: Sequence[Group], chunk: F32, state: F32) -> F64:
    """A chunk [H, m] of the model -> actions [H, n] of the robot, whose state is [s]."""
    parts, begin = [], 0
    for group in groups:
        values = _restored(group, chunk[:, begin : begin + group.size])
        begin += group.size
        origin = state[group.begin : group.begin + group.size].astype(np.float64)
        parts.append(_absolute(group.relative, values, origin))
    return np.concatenate(parts, axis=1)


def _restored(group: Group, values: F32) -> F64:
    rows = len(values)
    low, high = (v if v.ndim == 1 else v[:rows] for v in (group.low, group.high))
    if group.scale is Scale.SPREAD:
        out = np.where(high != 0, values * high + low, values)
        return np.asarray(out.astype(np.float32), dtype=np.float64)
    unit = (np.clip(values, -1.0, 1.0) + 1.0) / 2.0
    return np.asarray(unit * (high - low) + low, dtype=np.float64)


def _absolute(relative: Relative, values: F64, origin: F64) -> F64:
    if relative is Relative.NOTHING:
        return values
    if relative is Relative.SUM:
        return values + origin
    out = np.empty_like(values)
    for row, value in zip(out, values, strict=True):
        if relative is Relative.ROT6D:
            turn = _of_six(origin[3:])
            row[:3] = origin[:3] + turn @ value[:3]
            row[3:] = (turn @ _of_six(value[3:]))[:2].flatten()
        else:
            row[:3] = origin[:3] + _spun(origin[3:], value[:3])
            row[3:] = turned(origin[3:], value[3:])
    return out


def _of_six(six: F64) -> F64:
    """The first two rows of a rotation, made perpendicular -> the rotation [3, 3]."""
    first = six[:3] / np.linalg.norm(six[:3])
    second = six[3:] - np.dot(first, six[3:]) * first
    second = second / np.linalg.norm(second)
    return np.stack([first, second, np.cross(first, second)])


def _spun(rotation: F64, vector: F64) -> F64:
    """``vector`` [3] turned by an axis-angle [3] (Rodrigues)."""
    angle = float(np.linalg.norm(rotation))
    if angle < 1e-12:
        return vector
    axis = rotation / angle
    across = np.cross(axis, vector) * np.sin(angle)
    along = axis * (axis @ vector) * (1.0 - np.cos(angle))
    out: F64 = vector * np.cos(angle) + across + along
    return out
