"""The policy node's subscriptions: each message validated, parts joined, frames offered."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from geometry_msgs.msg import PoseStamped
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String

from vla_ros.control import Control, check_instruction
from vla_ros.control.assembling import Assembler, Stamped
from vla_ros.core import Observation
from vla_ros.msg import EpisodeStatus, NamedPoses
from vla_ros.nodes.common import qos
from vla_ros.nodes.common.convert import (
    BadMessage,
    decompressed,
    image_of,
    quoted,
    stamp_of,
)
from vla_ros.nodes.policy import convert
from vla_ros.timing import Clock, moment

Put = Callable[[Stamped[Any]], Observation | None]


class PolicyInputs:
    """Open from construction until :meth:`close`."""

    def __init__(
        self,
        node: LifecycleNode,
        values: Mapping[str, Any],
        clock: Clock,
        control: Control,
        *,
        poses: bool,
    ) -> None:
        self._node = node
        self._clock = clock
        self._control = control
        self._frame_id = values["frame_id"]
        self._most = values["max_image_pixels"]
        wrist, joints = values["use_wrist_image"], values["use_joint_states"]
        slop_ns = control.limits.period_ns // 2
        join = Assembler(slop_ns, wrist=wrist, proprio=joints, poses=poses)
        compressed = values["image_transport"] == "compressed"
        kind, suffix = (CompressedImage, "/compressed") if compressed else (Image, "")
        self._open: list[Any] = []
        self._listen(kind, f"image{suffix}", self._stream(self._pixels, join.image), qos.IMAGE_SUB)
        if wrist:
            take = self._stream(self._pixels, join.wrist)
            self._listen(kind, f"wrist_image{suffix}", take, qos.IMAGE_SUB)
        if joints:
            take = self._stream(convert.proprio_of, join.proprio)
            self._listen(JointState, "joint_states", take, qos.STATE)
        if poses:
            take = self._stream(convert.poses_of, join.poses)
            self._listen(NamedPoses, "ground_truth", take, qos.STATE)
        if control.limits.absolute:
            self._listen(PoseStamped, "measured_pose", self._on_measured_pose, qos.STATE)
        self._listen(String, "instruction", self._on_instruction, qos.LATCHED, raw=True)
        # A writer that is VOLATILE does not match that reader; its stop must count all the same.
        self._listen(String, "instruction", self._on_stop, qos.STOP, raw=True)
        self._listen(EpisodeStatus, "bridge/episode", self._on_episode, qos.EVERY_CHANGE)

    def close(self) -> None:
        for subscription in self._open:
            self._node.destroy_subscription(subscription)
        self._open.clear()

    def _listen(
        self,
        kind: Any,
        topic: str,
        callback: Callable[[Any], None],
        profile: QoSProfile,
        raw: bool = False,
    ) -> None:
        subscription = self._node.create_subscription(kind, topic, callback, profile, raw=raw)
        self._open.append(subscription)

    def _pixels(self, message: Image | CompressedImage) -> Any:
        if isinstance(message, CompressedImage):
            return decompressed(message, self._most)
        return image_of(message, self._most)

    def _stream(self, read: Callable[[Any], Any], put: Put) -> Callable[[Any], None]:
        """A callback that validates one stream and offers the observation it completes."""

        def callback(message: Any) -> None:
            received = moment(self._clock)
            try:
                part = Stamped(stamp_of(message.header.stamp), received, read(message))
            except BadMessage as error:
                self._control.drop(str(error))
                return
            observation = put(part)
            if observation is not None:
                self._control.offer(observation)

        return callback

    def _on_measured_pose(self, message: PoseStamped) -> None:
        """Where the end effector is: what a first pose is measured from, and what stale_policy
        'hold' keeps."""
        received, frame = moment(self._clock), message.header.frame_id
        try:
            if frame != self._frame_id:
                raise BadMessage(f"measured_pose is in {quoted(frame)}, not in '{self._frame_id}'")
            pose = convert.pose_action_of(message)
        except BadMessage as error:
            self._control.drop(str(error))
            return
        self._control.measure(pose, stamp_of(message.header.stamp), received)

    def _on_instruction(self, serialized: bytes) -> None:
        log = self._node.get_logger()
        try:
            text = check_instruction(convert.text_of(serialized))
        except ValueError as error:
            log.warning(f"instruction rejected, the task stays: {error}")
            return
        if self._control.set_instruction(text):
            log.info(f"instruction: '{text}'" if text else "instruction: stop")

    def _on_stop(self, serialized: bytes) -> None:
        """Obeys the empty text and nothing else."""
        with contextlib.suppress(ValueError):  # the other reader says so
            if not check_instruction(convert.text_of(serialized)) and self._control.stop():
                self._node.get_logger().info("instruction: stop")

    def _on_episode(self, message: EpisodeStatus) -> None:
        """Of a simulation; nobody publishes it on a robot."""
        if message.state == EpisodeStatus.STATE_RUNNING:
            self._control.episode_runs(message.episode, message.step)
        elif message.state in (EpisodeStatus.STATE_SUCCESS, EpisodeStatus.STATE_FAILURE):
            self._control.episode_over(message.episode, message.reason or "success")
