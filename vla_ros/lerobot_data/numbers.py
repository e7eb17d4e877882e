"""The numbers of a message, whatever it is: a command, a state, of this package or another's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_ros.lerobot_data.wire import Array
from vla_ros.replay.errors import BagError

COMMAND = "vla_ros/msg/ActionCommand"
_JOINTS = "sensor_msgs/msg/JointState"
_POSE = "geometry_msgs/msg/PoseStamped"
_TWIST, _TWIST_STAMPED = "geometry_msgs/msg/Twist", "geometry_msgs/msg/TwistStamped"
_TRAJECTORY = "trajectory_msgs/msg/JointTrajectory"
_ARRAYS = ("std_msgs/msg/Float64MultiArray", "std_msgs/msg/Float32MultiArray")
ACTIONS = (COMMAND, *_ARRAYS, _TWIST, _TWIST_STAMPED, _JOINTS, _TRAJECTORY)
JOINT_STATES, POSES = (_JOINTS, *_ARRAYS), (_POSE,)
UNSTAMPED = (*_ARRAYS, _TWIST)


@dataclass(frozen=True, slots=True)
class Numbers:
    """``values`` float64 [D], a name each."""

    names: tuple[str, ...]
    values: Array

    def ordered(self, names: Sequence[str]) -> Array | None:
        """The same in another order; None: one of ``names`` is not among them."""
        if tuple(names) == self.names:
            return self.values
        if not set(names) <= set(self.names):
            return None
        return self.values[[self.names.index(name) for name in names]]


def numbers_of(kind: str, content: Any) -> Numbers:
    """BagError: a type that is not understood, or names and values that do not belong together."""
    if kind == COMMAND:
        names, values = _names(content), content.action
    elif kind == _JOINTS:
        names, values = content.name, content.position
    elif kind == _TRAJECTORY:
        point = content.points[0] if content.points else None
        names, values = content.joint_names, point.positions if point else ()
    elif kind == _POSE:
        place, turn = content.pose.position, content.pose.orientation
        names = ("x", "y", "z", "qx", "qy", "qz", "qw")
        values = (place.x, place.y, place.z, turn.x, turn.y, turn.z, turn.w)
    elif kind in (_TWIST, _TWIST_STAMPED):
        twist = content.twist if kind == _TWIST_STAMPED else content
        names = ("vx", "vy", "vz", "wx", "wy", "wz")
        values = (
            twist.linear.x, twist.linear.y, twist.linear.z,
            twist.angular.x, twist.angular.y, twist.angular.z,
        )  # fmt: skip
    elif kind in _ARRAYS:
        values = content.data
        names = tuple(f"value_{i}" for i in range(len(values)))
    else:
        raise BagError(f"{kind} has no numbers that are understood")
    array = np.array(values, dtype=np.float64)
    if len(names) != len(array):
        raise BagError(f"a {kind} has {len(names)} names and {len(array)} values")
    return Numbers(tuple(map(str, names)), array)


def _names(command: Any) -> Sequence[str]:
    """The first release's actions have none."""
    from vla_ros.action_space import END_EFFECTOR_DELTA

    return tuple(getattr(command, "names", ())) or END_EFFECTOR_DELTA.names
