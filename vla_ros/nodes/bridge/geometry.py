"""Where things are, as other tools of ROS want to know it: camera calibrations, transforms, the
robot's description, the end effector's pose.

What nobody listens to is not made: a frame costs a look at the graph and nothing else.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Iterable, Mapping
from typing import Any

from geometry_msgs.msg import PoseStamped, TransformStamped, Vector3
from rclpy.node import Node
from rclpy.publisher import Publisher
from sensor_msgs.msg import CameraInfo
from std_msgs.msg import Header, String

from vla_ros.core import Pose
from vla_ros.nodes.bridge.convert import pose_message
from vla_ros.nodes.common import qos
from vla_ros.nodes.common.convert import to_time
from vla_ros.sim.env import OPTICAL_FRAMES, WORLD, EnvSpec, Geometry, SimObservation

#: Beside `image` stands `camera_info`, as image_transport has it.
INFO_TOPICS = {"image": "camera_info", "wrist_image": "wrist_camera_info"}


def camera_info(fovy: float, size: int) -> CameraInfo:
    """Of an ideal pinhole camera with square images; the caller fills the header.

    ``fovy``: rad, from the lower edge of the image to the upper one. Pixel centres are at whole
    numbers, so the middle of the image is at (size - 1) / 2.
    """
    focal, middle = size / 2 / math.tan(fovy / 2), (size - 1) / 2
    out = CameraInfo(height=size, width=size, distortion_model="plumb_bob", d=[0.0] * 5)
    out.k = [focal, 0.0, middle, 0.0, focal, middle, 0.0, 0.0, 1.0]
    out.r = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    out.p = [focal, 0.0, middle, 0.0, 0.0, focal, middle, 0.0, 0.0, 0.0, 1.0, 0.0]
    return out


def transform(name: str, parent: str, pose: Pose, stamp_ns: int) -> TransformStamped:
    """Where the frame ``name`` is in ``parent``."""
    out = TransformStamped(header=header(stamp_ns, parent), child_frame_id=name)
    x, y, z = pose.position
    out.transform.translation = Vector3(x=x, y=y, z=z)
    out.transform.rotation = pose_message(pose).orientation
    return out


def fixed_transforms(geometry: Geometry) -> list[TransformStamped]:
    """Those that hold for ever."""
    return [transform(frame.name, frame.parent, frame.pose, 0) for frame in geometry.fixed]


def moving_transforms(
    geometry: Geometry, links: Mapping[str, Pose], stamp_ns: int
) -> list[TransformStamped]:
    """Those of one observation."""
    parents = geometry.parents
    return [transform(name, parents[name], pose, stamp_ns) for name, pose in links.items()]


def header(stamp_ns: int, frame_id: str) -> Header:
    """A stamp and a frame."""
    return Header(stamp=to_time(stamp_ns), frame_id=frame_id)


class GeometryTopics:
    """``images``: camera -> topic of its pictures. ``tf``: transforms too, where tf2_msgs is."""

    def __init__(self, node: Node, spec: EnvSpec, images: Mapping[str, str], tf: bool) -> None:
        self._geometry = geometry = spec.geometry
        self._size = spec.image_size
        self._pose = node.create_publisher(PoseStamped, "end_effector_pose", qos.STATE)
        self._infos: dict[str, Publisher] = {}
        self._tf: Publisher | None = None
        if geometry is None:
            return
        for camera, topic in images.items():
            info = node.create_publisher(CameraInfo, INFO_TOPICS[topic], qos.IMAGE_PUB)
            self._infos[camera] = info
        self._described = node.create_publisher(String, "robot_description", qos.LATCHED)
        self._described.publish(String(data=geometry.urdf))
        if tf and importlib.util.find_spec("tf2_msgs") is None:
            node.get_logger().info("no transforms are published: tf2_msgs cannot be imported")
        elif tf:
            self._open_tf(node, geometry)

    def _open_tf(self, node: Node, geometry: Geometry) -> None:
        self._array: Any = importlib.import_module("tf2_msgs.msg").TFMessage
        self._tf = node.create_publisher(self._array, "/tf", qos.TRANSFORMS)
        self._tf_static = node.create_publisher(self._array, "/tf_static", qos.LATCHED)
        self._tf_static.publish(self._array(transforms=fixed_transforms(geometry)))

    def messages(
        self, stamp_ns: int, observation: SimObservation
    ) -> Iterable[tuple[Publisher, Any]]:
        """What belongs to an observation, with the publishers that somebody listens to."""
        if _heard(self._pose):
            yield self._pose, end_effector_message(observation, stamp_ns)
        if self._geometry is None:
            return
        if self._tf is not None and _heard(self._tf):
            moving = moving_transforms(self._geometry, observation.links, stamp_ns)
            yield self._tf, self._array(transforms=moving)
        for camera, publisher in self._infos.items():
            if camera in observation.images and _heard(publisher):
                info = camera_info(self._geometry.fovy[camera], self._size)
                info.header = header(stamp_ns, OPTICAL_FRAMES[camera])
                yield publisher, info


def end_effector_message(observation: SimObservation, stamp_ns: int) -> PoseStamped:
    """The point between the fingers, turned as the hand is, in the world frame: LIBERO's
    ``robot0_eef_pos`` and ``robot0_eef_quat``, which its policies were taught."""
    x, y, z = observation.eef_pos.tolist()
    qx, qy, qz, qw = observation.eef_quat.tolist()
    pose = pose_message(Pose((x, y, z), (qx, qy, qz, qw)))
    return PoseStamped(header=header(stamp_ns, WORLD), pose=pose)


def _heard(publisher: Publisher) -> bool:
    return bool(publisher.get_subscription_count())
