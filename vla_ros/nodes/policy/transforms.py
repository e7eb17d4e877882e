"""The end effector's pose from tf2, where tf2_ros is installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from geometry_msgs.msg import PoseStamped, TransformStamped
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.time import Time

LOOK_S = 0.01  # how often the newest transform is read


def tf2_is_there() -> bool:
    """Whether tf2_ros can be imported."""
    return importlib.util.find_spec("tf2_ros") is not None


def as_pose(transform: TransformStamped) -> PoseStamped:
    """Where the child frame is, in the header's frame."""
    out = PoseStamped(header=transform.header)
    moved, turned = transform.transform.translation, transform.transform.rotation
    out.pose.position.x, out.pose.position.y, out.pose.position.z = moved.x, moved.y, moved.z
    out.pose.orientation = turned
    return out


class FramePoses:
    """Calls back with the pose of ``frame`` in ``base`` whenever the tree has a newer one."""

    def __init__(
        self, node: Node, base: str, frame: str, callback: Callable[[PoseStamped], None]
    ) -> None:
        tf2: Any = importlib.import_module("tf2_ros")
        self._node = node
        self._base, self._frame = base, frame
        self._callback = callback
        self._not_yet = tf2.TransformException
        self._buffer = tf2.Buffer(node=node)
        self._listener = tf2.TransformListener(self._buffer, node)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = node.create_timer(LOOK_S, self._look, clock=steady)
        self._last = Time().to_msg()

    def close(self) -> None:
        self._node.destroy_timer(self._timer)
        self._listener.unregister()

    def _look(self) -> None:
        try:
            transform = self._buffer.lookup_transform(self._base, self._frame, Time())
        except self._not_yet:
            return
        if transform.header.stamp != self._last:
            self._last = transform.header.stamp
            self._callback(as_pose(transform))
