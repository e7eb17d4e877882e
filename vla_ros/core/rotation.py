"""Rotations: the matrix of a quaternion, and axis-angle vectors [3] in rad.

Two vectors may be far apart and be the same rotation (all around pi), so neither their difference
nor a bound on their components says how far a gripper turns. The angle of the relative rotation
does: the distance on the manifold, 0..pi, by the shorter side.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vla_ros.core.types import Floats


def matrix(xyzw: Sequence[float]) -> Floats:
    """Float64 [3, 3] of a quaternion of any length but zero."""
    x, y, z, w = np.asarray(xyzw, np.float64) / (np.linalg.norm(xyzw) or 1.0)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def quaternion(vector: Floats) -> tuple[float, Floats]:
    """Quaternion of an axis-angle: its scalar part and vector part [3]."""
    angle = float(np.linalg.norm(vector))
    if angle < 1e-12:
        return 1.0, np.asarray(vector, np.float64) / 2
    return float(np.cos(angle / 2)), vector / angle * np.sin(angle / 2)


def _vector(w: float, v: Floats) -> Floats:
    """Axis-angle of a quaternion, the shorter way round: 0..pi rad."""
    sine = float(np.linalg.norm(v))
    if sine < 1e-12:
        return np.zeros(3)
    out: Floats = (v if w >= 0 else -v) / sine * 2 * np.arctan2(sine, abs(w))
    return out


def turned(rotation: Floats, by: Floats) -> Floats:
    """``rotation`` followed by ``by``, which is seen from the turned frame."""
    (w, v), (b, u) = quaternion(rotation), quaternion(by)
    return _vector(w * b - float(v @ u), w * u + b * v + np.cross(v, u))


def relative(start: Floats, goal: Floats) -> Floats:
    """The rotation from ``start`` to ``goal``; its length is the distance, 0..pi."""
    return turned(-start, goal)


def towards(start: Floats, goal: Floats, most: float) -> Floats:
    """``goal``, or the rotation that is ``most`` rad on the way to it."""
    needed = relative(start, goal)
    distance = float(np.linalg.norm(needed))
    return goal if distance <= most else turned(start, needed * (most / distance))
