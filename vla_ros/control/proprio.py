"""The robot's own state as a checkpoint was taught it: named layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_ros.core import Floats, Pose

#: The values of an observation's streams by name -> what the policy is shown of the robot.
Layout = Callable[[Mapping[str, Any]], Floats | None]


def as_joints(values: Mapping[str, Any]) -> Floats | None:
    """The joints in their order; None where none are asked for."""
    joints: Floats | None = values.get("joint_states")
    return joints


def libero_oft(values: Mapping[str, Any]) -> Floats:
    """Float64 [8]: the end effector's position [3] in m, its rotation as axis-angle [3] in rad,
    two fingers [2] in m. A single finger joint stands for both of a parallel gripper: q, -q.

    Source: openvla-oft ``run_libero_eval.py`` (``prepare_observation``): ``robot0_eef_pos``,
    ``quat2axisangle(robot0_eef_quat)``, ``robot0_gripper_qpos``.
    """
    pose: Pose = values["end_effector_pose"]
    fingers: Floats = values["joint_states"]
    if len(fingers) == 1:
        fingers = np.array([fingers[0], -fingers[0]])
    return np.concatenate((pose.position, axis_angle(pose.quaternion), fingers))


def axis_angle(quaternion: tuple[float, float, float, float]) -> Floats:
    """Rotation vector [3] in rad of a quaternion x, y, z, w, as robosuite's ``quat2axisangle``
    has it: the angle is 2 acos(w), from 0 to 2 pi, whichever sign the quaternion bears."""
    x, y, z, w = quaternion
    w = min(1.0, max(-1.0, w))
    sine = float(np.sqrt(1.0 - w * w))
    if sine < 1e-9:
        return np.zeros(3)
    return np.array([x, y, z]) * (2.0 * float(np.arccos(w)) / sine)


@dataclass(frozen=True, slots=True)
class ProprioLayout:
    """``size``: how many values it gives; 0: as many as there are joints. ``joints``: how many
    joints it takes; empty: any number. ``pose``: whether it takes the end effector's pose."""

    make: Layout
    size: int = 0
    joints: tuple[int, ...] = ()
    pose: bool = False


LIBERO_STATE = 8  # values of libero_oft
LAYOUTS = {
    "joints": ProprioLayout(as_joints),
    "libero_oft": ProprioLayout(libero_oft, size=LIBERO_STATE, joints=(1, 2), pose=True),
}
