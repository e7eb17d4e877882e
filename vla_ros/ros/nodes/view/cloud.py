"""The point cloud of an RGB-D camera for the page's 3-D part: read by sensor_msgs_py, a few of its
points, in the frame of the robot's root.

Apart from the node: nobody pays for it where no cloud is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
from rclpy.node import Node
from sensor_msgs.msg import PointCloud2, PointField

from vla_ros.core.clock import SECOND
from vla_ros.core.pixels import BadMessage
from vla_ros.core.types import Floats
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import stamp_of
from vla_ros.ros.common.listening import message_of
from vla_ros.viz.robot_model import place_of
from vla_ros.viz.viewer.stage import Cloud

MOST_POINTS = 20_000  # that are drawn: more make a browser slow
OLD_NS = 2 * SECOND  # a camera that is gone leaves no cloud behind
_GREY = 150
_XYZ = ("x", "y", "z")
_MOST_LINKS = 16  # of /tf_static from a camera to the robot
_DEEP = 1_000  # static transforms that are kept


class CloudReader:
    """The newest cloud of ``topic``, decoded when it is asked for. ``warn`` gets the reason why one
    is not shown. ValueError: sensor_msgs_py is not installed."""

    def __init__(
        self, node: Node, topic: str, steady_ns: Callable[[], int], warn: Callable[[str], None]
    ) -> None:
        try:
            from sensor_msgs_py import point_cloud2
        except ImportError as error:
            raise ValueError(
                f"point_cloud needs sensor_msgs_py ({error}): apt install"
                " ros-$ROS_DISTRO-sensor-msgs-py"
            ) from None
        self._reader: Any = point_cloud2
        self._steady_ns, self._warn, self._topic = steady_ns, warn, topic
        self._raw, self._came_ns = b"", 0
        self._fixed: dict[str, tuple[str, Floats]] = {}  # frame -> its parent, and where in it
        node.create_subscription(PointCloud2, topic, self._take, qos.IMAGE_SUB, raw=True)
        try:
            transforms = import_module("tf2_msgs.msg").TFMessage
        except ImportError:
            return  # the camera has to be a link of the robot's description
        node.create_subscription(transforms, "/tf_static", self._on_fixed, qos.EVERY_CHANGE)

    def _take(self, raw: bytes) -> None:
        self._raw, self._came_ns = raw, self._steady_ns()

    def _on_fixed(self, message: Any) -> None:
        for one in message.transforms[: _DEEP - len(self._fixed)]:
            t, q = one.transform.translation, one.transform.rotation
            place = place_of((t.x, t.y, t.z), (q.x, q.y, q.z, q.w))
            self._fixed[one.child_frame_id.lstrip("/")] = one.header.frame_id.lstrip("/"), place

    def cloud(self, places: Mapping[str, Floats]) -> Cloud | None:
        """What there is to show now; ``places``: the robot's links, float64 [4, 4]. None: nothing
        new, or nothing that can be shown; an empty one: the camera is gone."""
        raw, self._raw = self._raw, b""
        if not raw:
            return Cloud.none() if self._steady_ns() - self._came_ns > OLD_NS else None
        try:
            message = message_of(raw, PointCloud2)
            place = self._place(message.header.frame_id.lstrip("/"), places)
            points, colors = self._read(message)
        except BadMessage as error:
            self._warn(f"no cloud of {self._topic} is shown: {error}")
            return None
        points = points @ place[:3, :3].T + place[:3, 3]
        return Cloud(points.astype(np.float32), colors, stamp_of(message.header.stamp))

    def _place(self, frame: str, places: Mapping[str, Floats]) -> Floats:
        """Where a frame is in the root's: a link, or fixed to one by /tf_static."""
        name, place = frame, np.eye(4)
        for _ in range(_MOST_LINKS):
            if name in places:
                return places[name] @ place
            if name not in self._fixed:
                break
            name, step = self._fixed[name]
            place = step @ place
        raise BadMessage(
            f"its frame {frame!r} is no link of robot_description, and /tf_static does not fix it"
            " to one: publish where the camera is (static_transform_publisher)"
        )

    def _read(self, message: PointCloud2) -> tuple[Floats, np.ndarray[Any, np.dtype[np.uint8]]]:
        """Float64 [n, 3] in its own frame, and uint8 [n, 3] RGB, of n <= MOST_POINTS."""
        count, step = message.width * message.height, message.point_step
        fields = {field.name: field for field in message.fields}
        if any(getattr(fields.get(n), "datatype", 0) != PointField.FLOAT32 for n in _XYZ):
            raise BadMessage(f"it has no float32 x, y, z, but {', '.join(fields) or 'nothing'}")
        if message.row_step != message.width * step or len(message.data) != count * step:
            raise BadMessage(
                f"{len(message.data)} bytes for {message.height} rows of {message.row_step} and"
                f" {message.width} points of {step} do not fit, or have padding"
            )
        every = np.arange(0, count, -(-count // MOST_POINTS) or 1)
        color = next((name for name in ("rgb", "rgba") if name in fields), "")
        wanted = [*_XYZ, *filter(None, [color])]
        try:
            found = self._reader.read_points(message, wanted, uvs=every)
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise BadMessage(f"sensor_msgs_py reads none of it: {error}") from None
        points = np.stack([found[name] for name in _XYZ], -1).astype(np.float64)
        there = np.isfinite(points).all(-1)
        colors = np.full((len(points), 3), _GREY, np.uint8)
        if color and found[color].dtype.itemsize == 4:  # 0xAARRGGBB, as a float's bits or a uint32
            packed = np.ascontiguousarray(found[color]).view(np.uint32)
            colors = np.stack([packed >> shift & 255 for shift in (16, 8, 0)], -1).astype(np.uint8)
        return points[there], colors[there]
