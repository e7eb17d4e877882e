"""The policy node's subscriptions: each message validated, parts joined, frames offered."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from geometry_msgs.msg import PoseStamped
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, JointState
from std_msgs.msg import String

from vla_ros.action_space import ActionKind
from vla_ros.control import Control, check_instruction
from vla_ros.control.assembling import WRIST_IMAGE, Assembler, Lost, PairingWindow, Stamped
from vla_ros.control.parts import PICTURES, STATES, Joints, Nearest, Part, Poses
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
from vla_ros.nodes.common.images import image_topic
from vla_ros.nodes.common.listening import listen
from vla_ros.nodes.common.serialized import read_compressed, read_image, read_text
from vla_ros.nodes.policy import convert
from vla_ros.nodes.policy.needs import Camera, Needs
from vla_ros.nodes.policy.transforms import FramePoses
from vla_ros.timing import SECOND, Clock, moment

Put = Callable[[Stamped[Any]], Observation | None]
Read = Callable[[Any], tuple[int, Any]]  # a message -> its stamp in ns, its content
_SAY_AGAIN_NS = 60 * SECOND  # a stream that was in order for so long is news when it fails


class PolicyInputs:
    """Open from construction until :meth:`close`."""

    def __init__(
        self,
        node: LifecycleNode,
        values: Mapping[str, Any],
        clock: Clock,
        control: Control,
        needs: Needs,
    ) -> None:
        self._node = node
        self._clock = clock
        self._control = control
        self._frame_id = values["frame_id"]
        self._most = values["max_image_pixels"]
        self._slop_ns = round(values["pairing_slop_s"] * SECOND)
        self._joints = Joints(needs.joint_names, needs.size)
        self._frames: FramePoses | None = None
        self._names_told = 0
        self._lost_ns: dict[str, int] = {}  # stream and kind -> steady time of its last loss
        self._open: list[Any] = []
        more = {f"{role}_image": role for role in needs.more}
        parts: dict[str, Part] = {name: Nearest(PICTURES) for name in more}
        if needs.wrist is not None:
            parts[WRIST_IMAGE] = Nearest(PICTURES)
        if needs.joints:
            parts["joint_states"] = self._joints
        if needs.end_effector is not None:
            parts["end_effector_pose"] = Poses()
        if needs.ground_truth:
            parts["ground_truth"] = Nearest(STATES)
        self._join = Assembler(self._window, parts, needs.layout.make, more)
        self._subscribe(needs)

    def _subscribe(self, needs: Needs) -> None:
        wanted = frozenset(needs.joint_names)
        self._film(needs.main, self._join.image, qos.IMAGE_SUB)
        if needs.wrist is not None:
            self._film(needs.wrist, self._joined(WRIST_IMAGE), qos.PART_SUB)
        for role, camera in needs.more.items():
            self._film(camera, self._joined(f"{role}_image"), qos.PART_SUB)
        self._listen_to_joints(needs, wanted)
        if needs.end_effector is not None:
            take = self._part("end_effector_pose", convert.pose_of)
            if needs.end_effector:
                self._frames = FramePoses(self._node, self._frame_id, needs.end_effector, take)
            else:
                self._listen(PoseStamped, "end_effector_pose", take, qos.STATE_SUB)
        if needs.ground_truth:
            take = self._part("ground_truth", convert.poses_of)
            self._listen(NamedPoses, "ground_truth", take, qos.STATE)
        space = self._control.limits.space
        if space.kind is ActionKind.END_EFFECTOR_POSE:
            for place in range(0, len(space.motion), 6):
                places = space.motion[place : place + 6]
                self._listen_to_pose(space.names[places[0]].removesuffix("x"), places)
        self._listen(String, "instruction", self._on_instruction, qos.LATCHED, raw=True)
        # A writer that is VOLATILE does not match that reader; its stop must count all the same.
        self._listen(String, "instruction", self._on_stop, qos.STOP, raw=True)
        self._listen(EpisodeStatus, "bridge/episode", self._on_episode, qos.EVERY_CHANGE)

    def _window(self) -> PairingWindow:
        limits = self._control.limits
        return PairingWindow(self._slop_ns or limits.period_ns // 2, limits.max_age_ns)

    def close(self) -> None:
        for subscription in self._open:
            self._node.destroy_subscription(subscription)
        self._open.clear()
        if self._frames is not None:
            self._frames.close()
            self._frames = None

    def _film(self, camera: Camera, put: Put, profile: QoSProfile) -> None:
        """Serialized: damaged bytes of an image would end the process below rclpy."""
        kind, topic = image_topic(self._node, camera.topic, camera.transport)
        read = self._decompressed if kind is CompressedImage else self._pixels
        self._listen(kind, topic, self._stream(read, put), profile, raw=True)

    def _listen(
        self,
        kind: Any,
        topic: str,
        callback: Callable[[Any], None],
        profile: QoSProfile,
        raw: bool = False,
    ) -> None:
        if raw:
            subscription = self._node.create_subscription(kind, topic, callback, profile, raw=True)
        else:
            drop = self._control.drop
            subscription = listen(self._node, kind, topic, callback, profile, refuse=drop)
        self._open.append(subscription)

    def _pixels(self, raw: bytes) -> tuple[int, Any]:
        image = read_image(raw)
        return image.stamp_ns, image_of(image, self._most)

    def _decompressed(self, raw: bytes) -> tuple[int, Any]:
        image = read_compressed(raw)
        return image.stamp_ns, decompressed(image, self._most)

    def _stream(self, read: Read, put: Put) -> Callable[[Any], None]:
        """A callback that validates one stream and offers the observation it completes."""

        def callback(message: Any) -> None:
            received = moment(self._clock)
            try:
                stamp_ns, content = read(message)
                observation = put(Stamped(stamp_ns, received, content))
            except BadMessage as error:
                self._control.drop(str(error))
                return
            for lost in self._join.lost():
                self._lose(lost, received.steady_ns)
            if observation is not None:
                self._tell_of_names()
                self._control.offer(observation)

        return callback

    def _part(self, name: str, read: Callable[[Any], Any]) -> Callable[[Any], None]:
        """A stream of messages with a header that is joined to images."""
        return self._stream(lambda m: (stamp_of(m.header.stamp), read(m)), self._joined(name))

    def _joined(self, name: str) -> Put:
        """Where parts of that name go."""

        def put(part: Stamped[Any]) -> Observation | None:
            if part.stamp_ns <= 0:
                raise BadMessage(f"the stamp of {name} is zero: its driver must fill header.stamp")
            return self._join.add(name, part)

        return put

    def _tell_of_names(self) -> None:
        """Once all that is wanted is there: what else is offered and left out."""
        joints = self._joints
        if len(joints.offered) == self._names_told:
            return
        self._names_told = len(joints.offered)
        if joints.extra:
            line = f"joint_states offers more than is wanted: {joints.wanted_and_offered}"
            self._node.get_logger().info(line)

    def _lose(self, lost: Lost, steady_ns: int) -> None:
        """Count an image without a partner. The log says it once a stream and kind, however soon
        another one was said; the status always."""
        kind = f"{lost.stream} {lost.kind}"
        last = self._lost_ns.get(kind)
        self._lost_ns[kind] = steady_ns
        if last is None or steady_ns - last > _SAY_AGAIN_NS:
            self._control.drop(lost.reason, kind)
            return
        with self._control.lock:
            self._control.counters.frames_dropped += 1
            self._control.counters.last_drop = lost.reason

    # ------------------------------------------------------------------ where the robot is

    def _listen_to_joints(self, needs: Needs, wanted: frozenset[str]) -> None:
        """As the robot's state in a frame, and as where a robot that is told joints is: what a
        first position to go to is measured from, what stale_policy 'hold' keeps, and what
        displacements are added to. One subscription: drivers say so hundreds of times a second."""
        space = self._control.limits.space
        takers: list[Callable[[JointState], None]] = []
        if space.kind.joints:
            moving = frozenset(space.names[i] for i in space.motion)
            takers.append(lambda m: self._on_measured_joints(m, moving))
        if needs.joints:
            takers.append(self._part("joint_states", lambda m: convert.joints_of(m, wanted)))

        def take(message: JointState) -> None:
            for taker in takers:
                taker(message)

        if takers:
            self._listen(JointState, "joint_states", take, qos.STATE_SUB)

    def _listen_to_pose(self, arm: str, places: Sequence[int]) -> None:
        """Where an end effector that is told poses is."""
        topic = f"{arm}measured_pose"

        def callback(message: PoseStamped) -> None:
            received, frame = moment(self._clock), message.header.frame_id
            try:
                if frame != self._frame_id:
                    raise BadMessage(f"{topic} is in {quoted(frame)}, not in '{self._frame_id}'")
                pose = convert.pose_action_of(message)
            except BadMessage as error:
                self._control.drop(str(error))
                return
            self._control.measure(pose, stamp_of(message.header.stamp), received, places)

        self._listen(PoseStamped, topic, callback, qos.STATE_SUB)

    def _on_measured_joints(self, message: JointState, wanted: frozenset[str]) -> None:
        received, space = moment(self._clock), self._control.limits.space
        try:
            names, positions = convert.joints_of(message, wanted)
            stamp_ns = stamp_of(message.header.stamp)
        except BadMessage as error:
            self._control.drop(str(error))
            return
        found = [(space.names.index(n), i) for i, n in enumerate(names) if n in wanted]
        if found:
            places, chosen = zip(*found, strict=True)
            self._control.measure(positions[list(chosen)], stamp_ns, received, places)

    def _on_instruction(self, serialized: bytes) -> None:
        log = self._node.get_logger()
        try:
            text = check_instruction(read_text(serialized))
        except ValueError as error:
            log.warning(f"instruction rejected, the task stays: {error}")
            return
        if self._control.set_instruction(text):
            log.info(f"instruction: '{text}'" if text else "instruction: stop")

    def _on_stop(self, serialized: bytes) -> None:
        """Obeys the empty text and nothing else."""
        with contextlib.suppress(ValueError):  # the other reader says so
            text = check_instruction(read_text(serialized))
            if not text and self._control.set_instruction(""):
                self._node.get_logger().info("instruction: stop")

    def _on_episode(self, message: EpisodeStatus) -> None:
        """Of a simulation; nobody publishes it on a robot."""
        if message.state == EpisodeStatus.STATE_RUNNING:
            self._control.episode_runs(message.episode, message.step)
        elif message.state in (EpisodeStatus.STATE_SUCCESS, EpisodeStatus.STATE_FAILURE):
            solved = message.state == EpisodeStatus.STATE_SUCCESS
            self._control.episode_over(message.episode, message.reason or "success", solved)
