"""A simulated robot's own state as a checkpoint was taught it, without the graph and through it."""

from __future__ import annotations

from typing import Any

from vla_ros.control.proprio import LIBERO_STATE, libero_oft
from vla_ros.core import Floats, Pose
from vla_ros.sim.env import FINGERS, SimObservation


def robot_state(seen: SimObservation, size: int) -> Floats | None:
    """Float64 [size]: the joints, or, of 8 values, LIBERO's pose and fingers; None for none.

    Of another size it is the joints all the same, which the policy refuses with both numbers.
    """
    if size == 0:
        return None
    if size == LIBERO_STATE:
        position, rotation = (tuple(map(float, v)) for v in (seen.eef_pos, seen.eef_quat))
        pose = Pose(position, rotation)  # type: ignore[arg-type]
        return libero_oft({"end_effector_pose": pose, "joint_states": seen.gripper_qpos})
    return seen.joint_positions


def state_parameters(size: int) -> dict[str, Any]:
    """The policy node's parameters with which it makes the same of what the bridge publishes."""
    if size == LIBERO_STATE:
        return {"proprio_layout": "libero_oft", "joint_names": list(FINGERS)}
    return {}  # the joints as they come, of which the node knows how many it needs
