"""Conversions between the simulation's types and messages. Messages are validated first."""

from __future__ import annotations

import array
import importlib
import importlib.util
import math
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import Point, Pose, PoseStamped, Quaternion, TransformStamped, Vector3
from rclpy.node import Node
from rclpy.publisher import Publisher
from sensor_msgs.msg import CameraInfo, Image, JointState
from std_msgs.msg import Header, String

from vla_ros.core import types as core
from vla_ros.core.action_space import ActionSpace
from vla_ros.core.clock import SECOND
from vla_ros.core.pixels import BadMessage
from vla_ros.core.types import Command, CommandKind
from vla_ros.msg import ActionCommand, EpisodeStatus, NamedPoses
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import stamp_of, status, to_time
from vla_ros.sim.env import OPTICAL_FRAMES, WORLD, EnvSpec, Geometry, SimObservation
from vla_ros.sim.episode import EpisodeState, EpisodeView


def command_of(message: ActionCommand) -> Command:
    """Command of a message, of any robot; the simulation judges its numbers. Raises
    :class:`BadMessage`."""
    try:
        kind = CommandKind(message.kind)
    except ValueError:
        raise BadMessage(f"kind {message.kind} is none of ActionCommand.KIND_*") from None
    staleness = message.staleness_s * SECOND  # a finite number of seconds may overflow as ns
    return Command(
        kind=kind,
        action=np.array(message.action, np.float64),
        sequence=message.sequence,
        epoch=message.epoch,
        instruction_digest=message.instruction_hash,
        published_ns=stamp_of(message.header.stamp),
        stamp_ns=stamp_of(message.observation_stamp),
        received_ns=stamp_of(message.receive_stamp),
        latest_ns=stamp_of(message.latest_observation_stamp),
        valid_until_ns=stamp_of(message.valid_until),
        chunk_index=message.chunk_index,
        chunk_length=message.chunk_length,
        action_phase=message.action_phase,
        staleness_ns=round(staleness) if isfinite(staleness) else 0,
    )


def check_space(message: ActionCommand, space: ActionSpace) -> None:
    """Raise BadMessage for a command of another space than the simulation's, or for joints that it
    has not or has in another order."""
    names = " ".join(space.names)
    if message.action_space != space.kind:
        takes = "joint positions" if space.kind.joints else "end-effector deltas"
        raise BadMessage(
            f"action_space {message.action_space}: the simulated arm takes {takes}"
            f" only ({int(space.kind)}): {names}"
        )
    if space.kind.joints and tuple(message.names) != space.names:
        raise BadMessage(f"its joints are {' '.join(message.names)}, the simulated arm's {names}")


def image_message(image: core.Image, stamp_ns: int, frame_id: str) -> Image:
    """An rgb8 message of a uint8 [height, width, 3]."""
    height, width, channels = image.shape
    out = Image(height=height, width=width, encoding="rgb8", step=width * channels)
    out.header.stamp = to_time(stamp_ns)
    out.header.frame_id = frame_id
    pixels = array.array("B")
    pixels.frombytes(image.tobytes())
    out.data = pixels  # rclpy takes an array of bytes as it is; anything else is 100 times slower
    return out


def joints_message(observation: SimObservation, stamp_ns: int) -> JointState:
    """Message of the joints' positions, rad and m."""
    if len(observation.joint_names) != len(observation.joint_positions):
        raise ValueError("an observation has as many joint names as positions")
    out = JointState(name=list(observation.joint_names))
    out.header.stamp = to_time(stamp_ns)
    out.position = observation.joint_positions.tolist()
    return out


def poses_message(observation: SimObservation, stamp_ns: int) -> NamedPoses:
    """Message of the ground truth, in the world frame."""
    out = NamedPoses(names=list(observation.poses))
    out.header.stamp = to_time(stamp_ns)
    out.header.frame_id = WORLD
    out.poses = [pose_message(pose) for pose in observation.poses.values()]
    return out


def pose_message(pose: core.Pose) -> Pose:
    x, y, z = pose.position
    qx, qy, qz, qw = pose.quaternion
    return Pose(position=Point(x=x, y=y, z=z), orientation=Quaternion(x=qx, y=qy, z=qz, w=qw))


def episode_message(view: EpisodeView, spec: EnvSpec, mode: str) -> EpisodeStatus:
    """Message of an episode's state; the caller stamps it."""
    counters = view.counters
    return EpisodeStatus(
        state=int(view.state),
        reason=view.reason,
        environment=spec.name,
        mode=mode,
        task=view.request.task,
        instruction=view.instruction,
        episode=view.episode,
        initial_state=view.request.initial_state,
        seed=view.request.seed,
        step=view.step,
        max_steps=view.max_steps,
        control_steps=view.control_steps,
        action_rate_hz=spec.action_rate_hz,
        control_rate_hz=spec.control_rate_hz,
        achieved_rate_hz=view.achieved_rate_hz,
        actions_applied=counters.applied,
        idle_steps=counters.idle,
        # Displacement that was replaced before it was executed is lost like a rejected one.
        actions_rejected=counters.rejected,
        actions_superseded=counters.superseded,
        late_steps=counters.late,
        resends=counters.resends,
    )


def diagnostic_of(view: EpisodeView, spec: EnvSpec) -> DiagnosticStatus:
    """Status of the simulation on /diagnostics, which bags keep. Warns where it waits, or executes
    commands too late."""
    counters = view.counters
    waits = view.state is EpisodeState.RESETTING and bool(view.reason)
    message = f"{view.state.name}: {view.reason}" if view.reason else view.state.name
    values = {
        "episode": view.episode,
        "task": view.request.task,
        "step": view.step,
        "rate": f"{view.achieved_rate_hz:.2f} Hz",
        "actions rejected": counters.rejected,
        "late steps": counters.late,
        "resends": counters.resends,
        "world": spec.world,
        **({"note": spec.note} if spec.note else {}),
    }
    return status(int(waits or bool(counters.late)), "episode", message, values.items())


# Geometry for other tools of ROS: camera calibrations, transforms, the robot's description, the end
# effector's pose. Messages without a subscriber are not made: a frame costs a query of the graph.


#: Beside `image` stands `camera_info`, as image_transport has it.
INFO_TOPICS = {"image": "camera_info", "wrist_image": "wrist_camera_info"}


def camera_info(fovy: float, size: int) -> CameraInfo:
    """Calibration of an ideal pinhole camera with square images; the caller fills the header.

    ``fovy``: rad, from the lower edge of the image to the upper one. Pixel centers are at whole
    numbers, so the middle of the image is at (size - 1) / 2.
    """
    focal, middle = size / 2 / math.tan(fovy / 2), (size - 1) / 2
    out = CameraInfo(height=size, width=size, distortion_model="plumb_bob", d=[0.0] * 5)
    out.k = [focal, 0.0, middle, 0.0, focal, middle, 0.0, 0.0, 1.0]
    out.r = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    out.p = [focal, 0.0, middle, 0.0, 0.0, focal, middle, 0.0, 0.0, 0.0, 1.0, 0.0]
    return out


def transform(name: str, parent: str, pose: core.Pose, stamp_ns: int) -> TransformStamped:
    """Transform of the frame ``name`` in ``parent``."""
    out = TransformStamped(header=header(stamp_ns, parent), child_frame_id=name)
    x, y, z = pose.position
    out.transform.translation = Vector3(x=x, y=y, z=z)
    out.transform.rotation = pose_message(pose).orientation
    return out


def fixed_transforms(geometry: Geometry) -> list[TransformStamped]:
    """Transforms that never change."""
    return [transform(frame.name, frame.parent, frame.pose, 0) for frame in geometry.fixed]


def moving_transforms(
    geometry: Geometry, links: Mapping[str, core.Pose], stamp_ns: int
) -> list[TransformStamped]:
    """Transforms of one observation."""
    parents = geometry.parents
    return [transform(name, parents[name], pose, stamp_ns) for name, pose in links.items()]


def header(stamp_ns: int, frame_id: str) -> Header:
    """Header of a stamp and a frame."""
    return Header(stamp=to_time(stamp_ns), frame_id=frame_id)


class GeometryTopics:
    """Publishers of the geometry. ``images``: camera -> topic of its images. ``tf``: transforms
    too, where tf2_msgs is."""

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
        """Messages of an observation, with the publishers that have a subscriber."""
        if _subscribed(self._pose):
            yield self._pose, end_effector_message(observation, stamp_ns)
        if self._geometry is None:
            return
        if self._tf is not None and _subscribed(self._tf):
            moving = moving_transforms(self._geometry, observation.links, stamp_ns)
            yield self._tf, self._array(transforms=moving)
        for camera, publisher in self._infos.items():
            if camera in observation.images and _subscribed(publisher):
                info = camera_info(self._geometry.fovy[camera], self._size)
                info.header = header(stamp_ns, OPTICAL_FRAMES[camera])
                yield publisher, info


def end_effector_message(observation: SimObservation, stamp_ns: int) -> PoseStamped:
    """Pose of the point between the fingers, with the hand's rotation, in the world frame: LIBERO's
    ``robot0_eef_pos`` and ``robot0_eef_quat``, which its policies were trained on."""
    x, y, z = observation.eef_pos.tolist()
    qx, qy, qz, qw = observation.eef_quat.tolist()
    pose = pose_message(core.Pose((x, y, z), (qx, qy, qz, qw)))
    return PoseStamped(header=header(stamp_ns, WORLD), pose=pose)


def _subscribed(publisher: Publisher) -> bool:
    return bool(publisher.get_subscription_count())
