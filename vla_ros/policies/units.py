"""Conversion between the units of a checkpoint and the runtime's, value by value.

Data sets keep whatever unit the robot's driver had: degrees, percent, -1 to 1, a controller's own.
The runtime has metres, radians and grippers from 0 (closed) to 1 (open). A unit is given by its
name ("deg"), with how much of it one is where that is not 1 ("0.2rad", "-1rad" of a joint that
turns the other way), a velocity's as "rad/s": over one action period that is a displacement. A
gripper's is its range as "closed..open": "-1..1", or "1..-1" where closing is +1. Of a robot's
state a gripper is what its joint is measured at: then its ends follow, in rad or m, as in
"0..100=-0.17..1.75"; so it is of an action whose gripper is commanded as a joint like the others.
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
_NUMBER = r"-?(?:\d+(?:\.\d+)?|\.\d+)(?:e-?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})")
_SCALED = re.compile(rf"({_NUMBER})?(rad|deg|m|cm|mm)(/s)?")
JOINT = "rad or m"  # the unit of a gripper as its joint is measured
OPENING = "0..1"  # of a gripper in the runtime: closed..open


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: the runtime's value is ``factor`` times the checkpoint's, plus ``offset``.

    ``per_second``: it is a velocity's, and ``factor`` is of one second.
    """

    name: str
    si: str
    factor: float
    offset: float = 0.0
    per_second: bool = False

    def over(self, rate_hz: float) -> Unit:
        """The unit of a displacement: a velocity times the period of an action at ``rate_hz``.
        PolicyRefused: that is a velocity's, and the rate is not known."""
        if not self.per_second:
            return self
        if not rate_hz:
            raise PolicyRefused(
                f"{self.name} is a velocity's unit, and nothing says how long an action lasts: give"
                " action_rate_hz, the rate of its data"
            )
        return Unit(self.name, self.si, self.factor / rate_hz)


def unit_of(word: str) -> Unit:
    """The unit of this name or range. PolicyRefused: it is none."""
    if word in _UNITS:
        return Unit(word, *_UNITS[word])
    if (scaled := _SCALED.fullmatch(word)) and (many := float(scaled[1] or 1.0)) != 0.0:
        si, one = _UNITS[scaled[2]]
        return Unit(word, si, many * one, per_second=bool(scaled[3]))
    theirs, equals, joint = word.partition("=")
    found, ends = _RANGE.fullmatch(theirs), _RANGE.fullmatch(joint if equals else OPENING)
    if found and ends:
        (closed, opened), (low, high) = (map(float, m.groups()) for m in (found, ends))
        if closed != opened and low != high:
            factor = (high - low) / (opened - closed)
            si = JOINT if equals else GRIPPER_UNIT
            return Unit(word, si, factor, low - closed * factor)
    known = ", ".join(_UNITS)
    raise PolicyRefused(
        f"{word!r} is no unit: give {known}, one with a number such as 0.2rad, a velocity's as"
        " rad/s, or a gripper's closed..open such as 1..-1, and of one that is measured as a joint"
        " both its ends, such as 0..100=-0.17..1.75"
    )


def gripper_of(word: str, parameter: str = "gripper") -> Unit:
    """The unit of a gripper that is given as closed..open. PolicyRefused: it is none."""
    unit = unit_of(word)
    if unit.si != GRIPPER_UNIT:
        raise PolicyRefused(
            f"{parameter} is {word!r}: give what is closed..open in the data, such as 1..-1"
        )
    return unit


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
    units = [unit_of(word) for word in each(words, count, parameter)]
    if fast := [unit.name for unit in units if unit.per_second]:
        raise PolicyRefused(f"{parameter} has {fast[0]}: a velocity is no value of the state's")
    return scaling_of(units)


def each(words: Sequence[str], count: int, parameter: str) -> Sequence[str]:
    """Names of units, one a value; a single one stands for all. PolicyRefused."""
    if len(words) == 1:
        return tuple(words) * count
    if len(words) != count:
        raise PolicyRefused(f"{parameter} has {len(words)} units, the checkpoint {count} values")
    return words
