"""Rotations as the expert needs them. Quaternions are x, y, z, w; matrices [3, 3]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vla_ros.core import Floats


def matrix(quaternion: Sequence[float]) -> Floats:
    """Rotation matrix of a quaternion of any length but zero."""
    x, y, z, w = np.asarray(quaternion, np.float64) / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def axis_angle(rotation: Floats) -> Floats:
    """Axis times angle [3] in rad, the angle in 0..pi."""
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
    """A gripper that points straight down, turned by ``yaw`` rad about the vertical."""
    cosine, sine = np.cos(yaw), np.sin(yaw)
    turn = np.array([[cosine, -sine, 0.0], [sine, cosine, 0.0], [0.0, 0.0, 1.0]])
    down: Floats = turn @ np.diag([1.0, -1.0, -1.0])
    return down
