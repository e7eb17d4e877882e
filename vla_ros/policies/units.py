"""Conversion between the units of a checkpoint and the runtime's, value by value.

LeRobot's data sets keep whatever unit the robot's driver had: degrees, percent, -1 to 1. The
runtime has metres, radians and grippers from 0 (closed) to 1 (open). A unit is given by its name
("deg"), a gripper's also by its range as "closed..open": "-1..1", or "1..-1" where closing is +1.
Of a robot's state a gripper is what its joint is measured at: then its ends follow, in rad or m, as
in "0..100=-0.17..1.75".
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vla_ros.core.action_space import GRIPPER_UNIT
from vla_ros.core.types import Floats
from vla_ros.policies.base import PolicyRefused

#: name: the runtime's unit, and how much of it one is
_UNITS = {
    "rad": ("rad", 1.0),
    "deg": ("rad", math.pi / 180.0),
    "m": ("m", 1.0),
    "cm": ("m", 1e-2),
    "mm": ("m", 1e-3),
    "1": (GRIPPER_UNIT, 1.0),
    "%": (GRIPPER_UNIT, 1e-2),
}
_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)\.\.(-?\d+(?:\.\d+)?)")
JOINT = "rad or m"  # the unit of a gripper as its joint is measured


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: the runtime's value is ``factor`` times the checkpoint's, plus ``offset``."""

    name: str
    si: str
    factor: float
    offset: float = 0.0


def unit_of(word: str) -> Unit:
    """The unit of this name or range. PolicyRefused: it is none."""
    if word in _UNITS:
        return Unit(word, *_UNITS[word])
    theirs, equals, joint = word.partition("=")
    found, ends = _RANGE.fullmatch(theirs), _RANGE.fullmatch(joint if equals else "0..1")
    if found and ends:
        (closed, opened), (low, high) = (map(float, m.groups()) for m in (found, ends))
        if closed != opened and low != high:
            factor = (high - low) / (opened - closed)
            si = JOINT if equals else GRIPPER_UNIT
            return Unit(word, si, factor, low - closed * factor)
    known = ", ".join(_UNITS)
    raise PolicyRefused(
        f"{word!r} is no unit: give {known}, or closed..open such as -1..1, and of a gripper that"
        " is measured as a joint both its ends, such as 0..100=-0.17..1.75"
    )


@dataclass(frozen=True, slots=True)
class Scaling:
    """Conversion of values between a checkpoint's units and the runtime's: float64 [D] each."""

    factor: Floats
    offset: Floats

    def to_runtime(self, values: Floats) -> Floats:
        """Values [..., D] in m, rad, 0..1 of those in the checkpoint's units."""
        return values * self.factor + self.offset

    def to_checkpoint(self, values: Floats) -> Floats:
        """Values [..., D] in the checkpoint's units of those in m, rad, 0..1."""
        return (values - self.offset) / self.factor


def scaling_of(units: Sequence[Unit]) -> Scaling:
    """Scaling of values in these units."""
    return Scaling(
        np.array([u.factor for u in units]),
        np.array([u.offset for u in units]),
    )


def scaling_for(words: Sequence[str], count: int, parameter: str) -> Scaling:
    """Scaling of ``count`` values; no words: the runtime's own units. PolicyRefused."""
    if not words:
        return Scaling(np.ones(count), np.zeros(count))
    return scaling_of([unit_of(word) for word in each(words, count, parameter)])


def each(words: Sequence[str], count: int, parameter: str) -> Sequence[str]:
    """Names of units, one a value; a single one stands for all. PolicyRefused."""
    if len(words) == 1:
        return tuple(words) * count
    if len(words) != count:
        raise PolicyRefused(f"{parameter} has {len(words)} units, the checkpoint {count} values")
    return words
