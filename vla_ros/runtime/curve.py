"""Curves through actions: cubic segments with continuous velocity, rotations on the sphere.

A segment leads from one row of numbers that move, float64 [M], to the next in one action period;
velocities are per action period. The slopes are those of monotone cubics (Fritsch and Carlson, SIAM
J. Numer. Anal. 17, 1980, with the central slope): between two rows nothing overshoots them, and a
motion of constant acceleration is met exactly. Pure functions; no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from vla_ros.core import rotation
from vla_ros.core.types import Floats

#: The indices of each arm's rotation among the numbers that move.
Turns = Sequence[npt.NDArray[np.intp]]

_STEEPEST = 3.0  # times the smaller difference: beyond that a cubic overshoots


def difference(start: Floats, goal: Floats, turns: Turns = ()) -> Floats:
    """Step from one row to the next, float64 [M]; rotations of poses as the relative rotation."""
    out: Floats = goal - start
    for arm in turns:
        out[arm] = rotation.relative(start[arm], goal[arm])
    return out


def moved(start: Floats, by: Floats, turns: Turns = ()) -> Floats:
    """Row that a step leads to, float64 [M]."""
    out: Floats = start + by
    for arm in turns:
        out[arm] = rotation.turned(start[arm], by[arm])
    return out


def slope(before: Floats, after: Floats) -> Floats:
    """Velocity at a row between the steps to it and from it, float64 [M]: their mean, no steeper
    than a monotone cubic allows, none where the motion turns back."""
    least = np.minimum(np.abs(before), np.abs(after))
    mean = np.clip((before + after) / 2, -_STEEPEST * least, _STEEPEST * least)
    out: Floats = np.where(before * after > 0.0, mean, 0.0)
    return out


def along(step: Floats, begin: Floats, end: Floats, share: float | Floats) -> Floats:
    """Way from the begin of a segment, float64 [M], after this ``share`` of it, of each number its
    own if float64 [M].

    ``step`` leads to its end; ``begin`` and ``end`` are the velocities there.
    """
    s, s2 = share, share * share
    s3 = s2 * s
    out: Floats = begin * (s - 2 * s2 + s3) + step * (3 * s2 - 2 * s3) + end * (s3 - s2)
    return out


def velocity(step: Floats, begin: Floats, end: Floats, share: float | Floats) -> Floats:
    """Velocity in a segment, float64 [M], after this ``share`` of it."""
    s, s2 = share, share * share
    out: Floats = begin * (1 - 4 * s + 3 * s2) + step * (6 * s - 6 * s2) + end * (3 * s2 - 2 * s)
    return out


def acceleration(step: Floats, begin: Floats, end: Floats, share: float | Floats) -> Floats:
    """Acceleration in a segment, float64 [M], per action period squared."""
    s = share
    out: Floats = begin * (6 * s - 4) + step * (6 - 12 * s) + end * (6 * s - 2)
    return out


def arriving(step: Floats, end: Floats, turns: Turns) -> Floats:
    """Velocity of :func:`along`'s numbers for which the motion at the end of ``step`` turns with
    ``end``: of a rotation vector that is not the velocity of the rotation, unless both are about
    one axis (inverse of the right Jacobian of SO(3))."""
    if not len(turns):
        return end
    out = end.copy()
    for arm in turns:
        vector, turn = step[arm], end[arm]
        angle = float(np.linalg.norm(vector))
        if angle < 1e-6:
            continue
        factor = 1 / angle**2 - (1 + np.cos(angle)) / (2 * angle * np.sin(angle))
        once = np.cross(vector, turn)
        out[arm] = turn + once / 2 + factor * np.cross(vector, once)
    return out


def turning(way: Floats, change: Floats, turns: Turns) -> Floats:
    """Velocity of the motion where :func:`along`'s numbers are ``way`` and change so: of a rotation
    that of the body (right Jacobian of SO(3)). The inverse of :func:`arriving`."""
    if not len(turns):
        return change
    out = change.copy()
    for arm in turns:
        vector, turn = way[arm], change[arm]
        angle = float(np.linalg.norm(vector))
        if angle < 1e-6:
            continue
        once = np.cross(vector, turn)
        twice = np.cross(vector, once)
        out[arm] = turn - (1 - np.cos(angle)) / angle**2 * once
        out[arm] += (angle - np.sin(angle)) / angle**3 * twice
    return out


def steps(rows: Floats, turns: Turns = ()) -> Floats:
    """Steps from each of the rows [n, M] to the next, float64 [n - 1, M]."""
    if not len(turns):
        return np.diff(rows, axis=0)
    return np.array([difference(a, b, turns) for a, b in pairwise(rows)])


def slopes(rows: Floats, turns: Turns = ()) -> Floats:
    """Velocities at rows [n, M] one action period apart, float64 [n, M]; at the first and the last
    one that of the step beside it; of a single row none."""
    if len(rows) < 2:
        return np.zeros_like(rows)
    between = steps(rows, turns)
    out: Floats = slope(
        np.concatenate((between[:1], between)), np.concatenate((between, between[-1:]))
    )
    return out
