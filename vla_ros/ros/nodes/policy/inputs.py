"""The policy node's inputs: messages validated, parts joined to frames."""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped, TransformStamped
from rclpy.lifecycle import LifecycleNode
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.time import Time
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from vla_ros.core.action_space import ActionKind
from vla_ros.core.clock import MS, SECOND, Clock, Moment, moment
from vla_ros.core.pixels import BadMessage, decompressed, quoted, resized
from vla_ros.core.types import Floats, Observation, PolicyState, Pose
from vla_ros.core.urdf import read_joints
from vla_ros.core.video import VIDEOS, VideoDecoder, codec_of, need_av
from vla_ros.msg import EpisodeStatus, NamedPoses
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import stamp_of
from vla_ros.ros.common.images import is_converted, pixels_of
from vla_ros.ros.common.listening import listen
from vla_ros.ros.common.serialized import (
    read_compressed,
    read_ffmpeg,
    read_foxglove,
    read_image,
    read_text,
)
from vla_ros.ros.common.spin import every
from vla_ros.ros.common.writers import StreamWriters
from vla_ros.ros.nodes.policy.cameras import Camera, CameraReader
from vla_ros.ros.nodes.policy.instructions import Instructions
from vla_ros.ros.nodes.policy.needs import FrameStreams, gripper_ends_of
from vla_ros.ros.nodes.policy.outputs import NAMESPACE, arms_of
from vla_ros.runtime import safety
from vla_ros.runtime.control.control import Control
from vla_ros.runtime.control.joints import (
    JointIntake,
    Joints,
    OutlierFilter,
    opening_of,
    pose_reaches,
    speeds_of,
)
from vla_ros.runtime.control.observation import (
    IMAGE_BYTES,
    IMAGES,
    STATES,
    WRIST_IMAGE,
    Assembler,
    JoinedStream,
    LostImage,
    Nearest,
    PairingWindow,
    Poses,
    StreamMessage,
    other_clock,
)
from vla_ros.runtime.safety import Limits

Put = Callable[[StreamMessage[Any]], Observation | None]
Read = Callable[[bytes], tuple[int, Any]]  # serialized image -> its stamp in ns, its content
ReadPart = Callable[[Any, Mapping[str, Any], Moment], Any]  # a message, its info -> its content
MODEL = 2.0  # times the speed of robot_description: readings have noise
_FIGURES = re.compile(r"-?\d+(\.\d+)?(?![\w'])")
_MOST_CAUSES = 256
_LOG_AGAIN_NS = 60 * SECOND  # a stream that was in order for so long is news when it fails
_POLL_S = 0.01  # how often the newest transform is read

# Messages


def joints_of(
    message: JointState, wanted: frozenset[str] = frozenset()
) -> tuple[tuple[str, ...], Floats]:
    """Joint names and positions, float64 [n], in the message's own order. Raises
    :class:`BadMessage`. With ``wanted`` names the message must name its joints, and only those must
    be finite.
    """
    names, positions = tuple(message.name), np.asarray(message.position, dtype=np.float64)
    most = 1024 if wanted else 64
    if positions.size > most:
        raise BadMessage(f"joint state has {positions.size} positions, at most {most}")
    if not wanted:
        if not np.isfinite(positions).all():
            raise BadMessage("joint state has positions that are not finite")
        return names, positions
    if len(names) != positions.size:
        raise BadMessage(f"joint state has {len(names)} names for {positions.size} positions")
    for name, position in zip(names, positions, strict=True):
        if name in wanted and not np.isfinite(position):
            raise BadMessage(f"the position of joint {quoted(name)} is not finite")
    return names, positions


def poses_of(message: NamedPoses) -> dict[str, Pose]:
    """Ground truth by name. Raises :class:`BadMessage`."""
    if len(message.names) != len(message.poses):
        raise BadMessage(f"{len(message.names)} names for {len(message.poses)} poses")
    poses = {
        name: Pose(
            (pose.position.x, pose.position.y, pose.position.z),
            (pose.orientation.x, pose.orientation.y, pose.orientation.z, pose.orientation.w),
        )
        for name, pose in zip(message.names, message.poses, strict=True)
    }
    for name, pose in poses.items():
        if not np.isfinite((*pose.position, *pose.quaternion)).all():
            raise BadMessage(f"the pose of {quoted(name)} is not finite")
    return poses


def pose_of(message: PoseStamped) -> Pose:
    """A pose with a quaternion of length 1. Raises :class:`BadMessage`."""
    p, q = message.pose.position, message.pose.orientation
    position, quaternion = (p.x, p.y, p.z), (q.x, q.y, q.z, q.w)
    length = float(np.linalg.norm(quaternion))
    if not np.isfinite((*position, length)).all() or abs(length - 1.0) > 1e-3:
        raise BadMessage("end effector pose is not finite, or its quaternion not of length 1")
    return Pose(position, quaternion)


def pose_action_of(message: PoseStamped) -> Floats:
    """A measured pose as an arm's numbers of an action, float64 [6]: x y z in m, axis-angle in
    rad. Raises :class:`BadMessage`."""
    p, q = message.pose.position, message.pose.orientation
    vector, w = np.array([q.x, q.y, q.z]), float(q.w)
    norm, sine = float(np.hypot(np.linalg.norm(vector), w)), float(np.linalg.norm(vector))
    out = np.array([p.x, p.y, p.z, 0.0, 0.0, 0.0])
    if not np.isfinite(out).all() or not np.isfinite(norm) or abs(norm - 1.0) > 1e-3:
        raise BadMessage("measured pose is not finite, or its quaternion not of length 1")
    if sine > 1e-9:
        # The shorter way round: q and -q are the same rotation.
        sign = 1.0 if w >= 0.0 else -1.0
        out[3:6] = sign * vector / sine * 2.0 * np.arctan2(sine, abs(w))
    return out


def as_pose(transform: TransformStamped) -> PoseStamped:
    """Pose of the child frame in the header's frame."""
    out = PoseStamped(header=transform.header)
    moved, turned = transform.transform.translation, transform.transform.rotation
    out.pose.position.x, out.pose.position.y, out.pose.position.z = moved.x, moved.y, moved.z
    out.pose.orientation = turned
    return out


class FramePoses:
    """Poses of ``frame`` in ``base`` from tf2: ``callback`` gets each newer one, ``lacks`` the
    reason why there is none."""

    def __init__(
        self,
        node: Node,
        base: str,
        frame: str,
        callback: Callable[[PoseStamped], None],
        lacks: Callable[[str], None],
    ) -> None:
        tf2: Any = importlib.import_module("tf2_ros")
        self._node = node
        self._base, self._frame = base, frame
        self._callback, self._lacks = callback, lacks
        self._not_yet = tf2.TransformException
        self._buffer = tf2.Buffer(node=node)
        self._listener = tf2.TransformListener(self._buffer, node)
        self._timer = every(node, _POLL_S, self._poll)
        self._last = Time().to_msg()

    def close(self) -> None:
        self._node.destroy_timer(self._timer)
        self._listener.unregister()

    def _poll(self) -> None:
        try:
            transform = self._buffer.lookup_transform(self._base, self._frame, Time())
        except self._not_yet as error:
            self._lacks(f"tf2 knows no {self._frame!r} in {self._base!r}: {error}")
            return
        if transform.header.stamp != self._last:
            self._last = transform.header.stamp
            self._callback(as_pose(transform))


# Subscriptions


class NotWanted(Exception):
    """An image that is not decoded, since the loop takes no frames now."""


class PendingReading(Exception):
    """A reading that may yet be accepted with those that follow: no error."""


class PolicyInputs:
    """The policy node's subscriptions, from construction until :meth:`close`. ``seen`` gets topic,
    stamp and receipt of every image of the main camera."""

    def __init__(
        self,
        node: LifecycleNode,
        values: Mapping[str, Any],
        clock: Clock,
        control: Control,
        needs: FrameStreams,
        seen: Callable[[str, int, Moment], None],
    ) -> None:
        self._node = node
        self._clock = clock
        self._control = control
        self._seen = seen
        self._frame_id = values["frame_id"]
        self._most = values["max_image_pixels"]
        self._slop_ns = round(values["pairing_slop_s"] * SECOND)
        trusting = self._lockstep = values["mode"] == "lockstep"
        on_change = [name for name in values["joints_on_change"] if name]
        self._intake = JointIntake(trusting, on_change)
        self._pose_filter = lambda: OutlierFilter(pose_reaches, trusting)
        control.loop.measured.intakes.append(self._intake)
        self._joints = Joints(needs.joint_names, needs.size, on_change, needs.middle)
        space = control.loop.limits.space
        self._arms = arms_of(values) if space.kind.joints else ()
        self._ends = gripper_ends_of(values, space)
        joints = space.names if space.kind.joints else ()
        self._moving = {name: i for i, name in enumerate(joints) if i in space.motion}
        self._indices = self._moving | {name: joints.index(name) for name in self._ends}
        control.loop.measured.lasting = frozenset(
            self._indices[name] for name in on_change if name in self._ends
        )
        self._turning = frozenset(name for name in values["continuous_joints"] if name)
        self._described: dict[str, float] = {}  # speeds of robot_description
        self._known: Limits | None = None  # limits that the intake's speeds are of
        self._frames: FramePoses | None = None
        self._names_logged = 0
        self._lost_ns: dict[str, int] = {}  # stream and cause -> steady time of its last loss
        self._open: list[Any] = []
        self._cameras: list[CameraReader] = []
        self._joining = threading.Lock()
        more = {f"{role}_image": role for role in needs.more}
        parts: dict[str, JoinedStream] = {name: Nearest(IMAGES, IMAGE_BYTES) for name in more}
        if needs.wrist is not None:
            parts[WRIST_IMAGE] = Nearest(IMAGES, IMAGE_BYTES)
        if needs.joints:
            parts["joint_states"] = self._joints
        if needs.end_effector is not None:
            parts["end_effector_pose"] = Poses(lambda: control.loop.instruction.epoch)
        if needs.ground_truth:
            parts["ground_truth"] = Nearest(STATES)
        self._join = Assembler(self._window, parts, needs.layout.make, more)
        self._subscribe(needs)
        self._instructions = Instructions(node, clock, control)

    def _subscribe(self, needs: FrameStreams) -> None:
        self._read_camera("image", needs.main, self._join.image)
        if needs.wrist is not None:
            self._read_camera(WRIST_IMAGE, needs.wrist, self._joined(WRIST_IMAGE))
        for role, camera in needs.more.items():
            self._read_camera(f"{role}_image", camera, self._joined(f"{role}_image"))
        if needs.joints or self._indices:
            self._listen_to_joints(needs)
        if needs.end_effector is not None:
            take = self._part("end_effector_pose", self._pose_reader("end_effector_pose"))
            if needs.end_effector:
                frame = needs.end_effector
                self._frames = FramePoses(self._node, self._frame_id, frame, take, self._no_pose)
            else:
                self._listen(PoseStamped, "end_effector_pose", take, qos.STATE_SUB)
        if needs.ground_truth:
            take = self._part("ground_truth", lambda message, *_: poses_of(message))
            self._listen(NamedPoses, "ground_truth", take, qos.STATE)
        space = self._control.loop.limits.space
        planned = self._control.loop.outputs.plans and not space.kind.joints
        if planned or space.kind is ActionKind.END_EFFECTOR_POSE:
            for first in range(0, len(space.motion), 6):
                arm = space.motion[first : first + 6]
                self._listen_to_pose(space.names[arm[0]].removesuffix("x"), arm)
        self._listen(EpisodeStatus, "bridge/episode", self._on_episode, qos.EVERY_CHANGE)

    @property
    def turning(self) -> frozenset[str]:
        """Joints that turn without end, by parameter and robot_description."""
        return self._turning

    def _no_pose(self, reason: str) -> None:
        with self._control.lock:
            steady_ns = self._clock.steady_ns()
            self._control.supply.refused("end_effector_pose", reason, steady_ns)

    def _window(self) -> PairingWindow:
        limits = self._control.loop.limits
        # In lock-step a state of the step before is none of this one, however fast the steps are.
        longest_ns = max(limits.period_ns, 0 if self._lockstep else limits.action_period_ns)
        return PairingWindow(self._slop_ns or longest_ns // 2, limits.max_age_ns)

    def close(self) -> None:
        self._instructions.close()
        for subscription in self._open:
            self._node.destroy_subscription(subscription)
        self._open.clear()
        for camera in self._cameras:
            camera.close()
        self._cameras.clear()
        if self._frames is not None:
            self._frames.close()
            self._frames = None

    def _read_camera(self, name: str, camera: Camera, put: Put) -> None:
        """Subscribe to a camera's serialized images: damaged bytes would end the process below
        rclpy. The newest image counts of the main camera alone: of images that are joined to
        others an older one may be the one that fits."""
        supply, main = self._control.supply, name == "image"
        if camera.transport in VIDEOS:
            need_av()
        if any(camera.resize):
            size = "x".join(map(str, camera.resize))
            self._node.get_logger().info(
                f"{name}: images are brought to {size} (height x width) by the nearest pixel, as"
                " its data set's were (image_resize)"
            )
        read = self._pixels if camera.transport == "raw" else self._decoder(camera.transport)
        take = self._stream(name, read, put, camera.resize)

        def on_receipt(stamp_ns: int, received: Moment) -> None:
            supply.received(name, received.steady_ns)
            if main:
                self._seen(reader.topic, stamp_ns, received)

        def offered(writers: int) -> None:
            if main:
                supply.topic, supply.writers = reader.topic, writers

        reader = CameraReader(
            self._node,
            camera,
            self._clock,
            take,
            self._lossy,
            main,
            on_receipt,
            lambda reason: self._refuse(name, reason),
            offered,
        )
        if main:
            supply.topic = reader.topic
        self._cameras.append(reader)

    def _lossy(self, line: str) -> None:
        self._node.get_logger().warning(line)
        with self._control.lock:
            counters = self._control.loop.counters
            counters.last_drop = counters.last_drop or line

    def _listen(
        self,
        kind: Any,
        topic: str,
        callback: Callable[..., None],
        profile: QoSProfile,
        raw: bool = False,
    ) -> None:
        """Subscribe ``callback(bytes)`` where it is ``raw``, else ``callback(message, info)``."""
        if raw:
            subscription = self._node.create_subscription(kind, topic, callback, profile, raw=True)
        else:
            subscription = listen(
                self._node,
                kind,
                topic,
                callback,
                profile,
                refuse=lambda reason: self._refuse(topic, reason),
                with_info=True,
            )
        self._open.append(subscription)

    def _pixels(self, raw: bytes) -> tuple[int, Any]:
        image = read_image(raw)
        if is_converted(image.encoding) and not self._control.wants_frames:
            raise NotWanted
        return image.stamp_ns, pixels_of(image, self._most)

    def _decoder(self, transport: str) -> Read:
        """Reader of one camera's compressed images, or of its packets of video, each of which it
        needs."""
        video = VideoDecoder(self._most)
        parse = {"ffmpeg": read_ffmpeg, "foxglove": read_foxglove}.get(transport, read_compressed)

        def read(raw: bytes) -> tuple[int, Any]:
            given, wanted = parse(raw), self._control.wants_frames
            if transport in VIDEOS or codec_of(given.format):
                image = video.put(given.stamp_ns, given.format, given.data, wanted)
            else:
                image = decompressed(given, self._most) if wanted else None
            if image is None:
                raise NotWanted
            return given.stamp_ns, image

        return read

    def _stream(
        self, name: str, read: Read, put: Put, size: tuple[int, int]
    ) -> Callable[..., None]:
        """Callback that validates a camera's images, brings them to ``size`` and offers the
        observation that one completes. Called from the node's executor, and from the threads that
        decode images."""

        def callback(message: bytes, received: Moment) -> None:
            try:
                stamp_ns, content = read(message)
                content = resized(content, *size)
            except NotWanted:
                self._control.pass_over()
                return
            except BadMessage as error:
                self._refuse(name, str(error))
                return
            with self._joining:
                self._join_in(name, StreamMessage(stamp_ns, received, content), put)

        return callback

    def _refuse(self, stream: str, reason: str, cause: str = "") -> None:
        """Count a message that cannot be used. The log has one line a ``cause``, by default the
        reason without its figures; the status counts all."""
        steady_ns = self._clock.steady_ns()
        with self._control.lock:
            self._control.supply.refused(stream, reason, steady_ns)
        self._count(reason, f"{stream} {cause or _FIGURES.sub('', reason)}", steady_ns)

    def _count(self, reason: str, kind: str, steady_ns: int) -> None:
        last = self._lost_ns.get(kind)
        if len(self._lost_ns) >= _MOST_CAUSES:
            self._lost_ns.clear()
        self._lost_ns[kind] = steady_ns
        if last is None or steady_ns - last > _LOG_AGAIN_NS:
            self._control.drop(reason, kind)
            return
        with self._control.lock:
            self._control.loop.counters.frames_dropped += 1
            self._control.loop.counters.last_drop = reason

    def _check_stamp(self, stream: str, stamp_ns: int, received: Moment) -> None:
        """Raises BadMessage for a stamp of zero, or in the future: a message that is older than it
        looks would be joined as if it were fresh."""
        limits, simulated = self._control.loop.limits, self._control.clock_watch.sim_time
        if stamp_ns <= 0:
            raise BadMessage(f"the stamp of {stream} is zero: its driver must fill header.stamp")
        ahead_ns = stamp_ns - received.now_ns
        if ahead_ns > (limits.period_ns if simulated else limits.clock_tolerance_ns):
            if cause := other_clock(stamp_ns, received.now_ns, simulated):
                raise BadMessage(f"{stream} is stamped in the future: {cause}")
            whose = "/clock" if simulated else "this machine's clock"
            remedy = "" if simulated else ", or raise stamp_tolerance_s"
            raise BadMessage(
                f"{stream} is stamped {ahead_ns / MS:.0f} ms ahead of {whose}:"
                f" synchronize the clocks{remedy}"
            )

    def _join_in(self, name: str, part: StreamMessage[Any], put: Put) -> None:
        try:
            observation = put(part)
        except BadMessage as error:
            self._refuse(name, str(error))
            return
        for lost in self._join.lost():
            self._lose(lost, part.received.steady_ns)
        if observation is not None:
            self._log_extra_names()
            self._control.offer(observation)

    def _part(self, name: str, read: ReadPart) -> Callable[..., None]:
        """Callback of a stream of messages with a header that is joined to images."""
        put = self._joined(name)

        def callback(message: Any, info: Mapping[str, Any] = MappingProxyType({})) -> None:
            received = moment(self._clock)
            self._control.supply.received(name, received.steady_ns)
            stamp_ns = stamp_of(message.header.stamp)
            try:
                self._check_stamp(name, stamp_ns, received)
                content = read(message, info, received)
            except PendingReading:
                return
            except BadMessage as error:
                self._refuse(name, str(error))
                return
            with self._joining:
                self._join_in(name, StreamMessage(stamp_ns, received, content), put)

        return callback

    def _joined(self, name: str) -> Put:
        """Function that joins the parts of that name."""

        def put(part: StreamMessage[Any]) -> Observation | None:
            self._check_stamp(name, part.stamp_ns, part.received)
            return self._join.add(name, part)

        return put

    def _log_extra_names(self) -> None:
        """Log, once all joints are there that are used, which others are offered and left out."""
        joints = self._joints
        if len(joints.offered) == self._names_logged:
            return
        self._names_logged = len(joints.offered)
        if joints.extra:
            line = f"joint_states offers more than is wanted: {joints.wanted_and_offered}"
            self._node.get_logger().info(line)

    def _lose(self, lost: LostImage, steady_ns: int) -> None:
        """Count an image without a partner. The log has one line a stream and kind, however soon
        another one had its own; the status counts all."""
        with self._control.lock:
            self._control.supply.lost(lost, steady_ns)
        self._count(lost.reason, f"{lost.stream} {lost.kind}", steady_ns)

    # Where the robot is

    def _listen_to_joints(self, needs: FrameStreams) -> None:
        """Subscribe to joint states: the robot's state in a frame, and the measured positions of a
        robot that is commanded in joints, from which a first command is limited, which stale_action
        'hold' keeps, and to which displacements are added. One subscription a topic: drivers
        publish hundreds of times a second. Arms that have topics of their own may have drivers of
        their own."""
        whole = needs.joints and not needs.joint_names
        wanted = frozenset({*needs.joint_names, *self._indices})
        prefixes = list(dict.fromkeys(("", *self._arms)))
        writers = StreamWriters(self._node, *(prefix + "joint_states" for prefix in prefixes))
        put = self._joined("joint_states") if needs.joints else None

        def take(space: str, message: JointState, info: Mapping[str, Any]) -> None:
            if not len(message.position):  # a base's wheels report velocities alone
                return
            received, stamp_ns = moment(self._clock), stamp_of(message.header.stamp)
            self._control.supply.received("joint_states", received.steady_ns)
            try:
                own = frozenset(n.removeprefix(space) for n in wanted if n.startswith(space))
                names, positions = joints_of(message, frozenset() if whole else own)
                names = tuple(space + name for name in names)
                self._check_stamp("joint_states", stamp_ns, received)
            except BadMessage as error:
                self._refuse("joint_states", str(error))
                self._unmeasured(self._moving.values(), str(error), received)
                return
            keys = names
            if whole and len(set(names)) != len(positions):
                keys = tuple(map(str, range(len(positions))))
            used = [i for i, key in enumerate(keys) if whole or key in wanted]
            contested = writers.contested((keys[i] for i in used), info, received.steady_ns)
            used = [i for i in used if keys[i] not in contested]
            accepted = np.full(len(positions), np.nan)
            accepted[used], held = self._accept(stamp_ns, [keys[i] for i in used], positions[used])
            self._refuse_joints(contested, "two writers", received)
            self._refuse_joints(held, "held back", received)
            self._measure(keys, accepted, stamp_ns, received)
            if put is not None:
                with self._joining:
                    part = StreamMessage(stamp_ns, received, (names, accepted))
                    self._join_in("joint_states", part, put)

        for arm in prefixes:
            space = arm if arm.endswith(NAMESPACE) else ""  # its driver's names are without it
            self._listen(JointState, f"{arm}joint_states", partial(take, space), qos.STATE_SUB)
        self._turn_without_end()
        self._listen(String, "robot_description", self._on_description, qos.LATCHED, raw=True)

    def _refuse_joints(self, why: Mapping[str, str], cause: str, received: Moment) -> None:
        """Refuse joints of one message, by a reason each; "": no error yet."""
        named = {name: reason for name, reason in why.items() if reason}
        if not named:
            return
        reason, more = next(iter(named.values())), len(named) - 1
        reason += f" (and {more} joints more)" if more else ""
        self._refuse("joint_states", reason, cause)
        indices = [self._moving[name] for name in named if name in self._moving]
        self._unmeasured(indices, reason, received)

    def _accept(
        self, stamp_ns: int, names: Sequence[str], positions: Floats
    ) -> tuple[Floats, Mapping[str, str]]:
        """Plausible positions, NaN for the others, and why those are held back."""
        with self._control.lock:  # the intake is reset with it held
            if self._known is not self._control.loop.limits:
                self._known = self._control.loop.limits
                self._intake.speeds = speeds_of(self._known, self._described)
            found = self._intake.take(stamp_ns, names, positions)
            for line in found.jumps:
                self._control.loop.sink.warn(_FIGURES.sub("", line), line)
        return found.positions, found.held

    def _measure(
        self, names: Sequence[str], positions: Floats, stamp_ns: int, received: Moment
    ) -> None:
        """Take the measured positions of the action's joints, and the openings of its grippers."""
        found: dict[int, float] = {}
        for name, position in zip(names, positions.tolist(), strict=True):
            if name in self._indices and math.isfinite(position):
                if (ends := self._ends.get(name)) is not None:
                    opening = opening_of(position, ends)
                    if opening is None:
                        continue
                    position = opening
                found[self._indices[name]] = position
        if found:
            values = np.array(list(found.values()))
            self._control.measure(values, stamp_ns, received, list(found))

    def _unmeasured(self, indices: Collection[int], reason: str, received: Moment) -> None:
        """Hold the robot, whose measurement was refused, unless another one is fresh."""
        control = self._control
        with control.lock:
            if control.loop.measured.has(indices, received, control.loop.limits.max_age_ns):
                return
            control.supply.unmeasured(reason, received.steady_ns)
            if control.loop.safety.state is PolicyState.RUNNING:
                control.loop.become(safety.hold(control.loop.safety, reason, received.steady_ns))
            elif control.loop.safety.state is PolicyState.HOLD:
                control.loop.become(replace(control.loop.safety, fresh=0))

    def _on_description(self, serialized: bytes) -> None:
        """Read from robot_description which joints turn without end, and how fast joints move."""
        try:
            described = read_joints(read_text(serialized))
        except ValueError as error:
            self._node.get_logger().warning(f"robot_description is not read: {error}")
            return
        self._described = {n: MODEL * j.velocity for n, j in described.items() if j.velocity}
        self._turning |= {name for name, joint in described.items() if joint.continuous}
        self._known = None
        self._turn_without_end()

    def _turn_without_end(self) -> None:
        self._joints.turning = self._turning
        with self._control.lock:
            self._intake.turning = self._turning
            self._control.set_turning(self._turning)

    def _pose_reader(self, topic: str) -> ReadPart:
        """Reader of the poses of one frame. Raises BadMessage, or PendingReading, for one that is
        not to be used."""
        filtered, writers = self._pose_filter(), StreamWriters(self._node, topic)
        self._control.loop.measured.intakes.append(filtered)

        def read(message: PoseStamped, info: Mapping[str, Any], received: Moment) -> Pose:
            pose, stamp_ns = pose_of(message), stamp_of(message.header.stamp)
            if (why := writers.contested([""], info, received.steady_ns).get("")) is not None:
                raise BadMessage(why) if why else PendingReading
            with self._control.lock:
                last = filtered.last
                accepted, agreed = filtered.take(stamp_ns, pose), filtered.agreed
                contradicts = filtered.contradicts
                if accepted and agreed and last is not None:
                    moved = math.dist(pose.position, last.value.position)
                    line = f"{topic} jumped by {moved:.3f} m: {agreed} readings agree"
                    self._control.loop.sink.warn(topic, line)
            if accepted:
                return pose
            if last is not None:
                moved = math.dist(pose.position, last.value.position)
                apart_ms = abs(stamp_ns - last.stamp_ns) / MS
                raise BadMessage(
                    f"{topic} is {moved:.3f} m and {apart_ms:.0f} ms from the pose before:"
                    " nothing moves so fast"
                )
            if contradicts:
                raise BadMessage(f"the poses on {topic} contradict each other")
            raise PendingReading

        return read

    def _listen_to_pose(self, arm: str, indices: Sequence[int]) -> None:
        """Subscribe to the measured pose of an end effector that is commanded in poses, or by
        plans of them."""
        topic = f"{arm}measured_pose"
        read = self._pose_reader(topic)

        def callback(message: PoseStamped, info: Mapping[str, Any]) -> None:
            received, frame = moment(self._clock), message.header.frame_id
            stamp_ns = stamp_of(message.header.stamp)
            try:
                if frame != self._frame_id:
                    raise BadMessage(f"{topic} is in {quoted(frame)}, not in '{self._frame_id}'")
                values = pose_action_of(message)
                self._check_stamp(topic, stamp_ns, received)
                read(message, info, received)
            except PendingReading:
                return
            except BadMessage as error:
                self._refuse(topic, str(error))
                self._unmeasured(indices, str(error), received)
                return
            self._control.measure(values, stamp_ns, received, indices)

        self._listen(PoseStamped, topic, callback, qos.STATE_SUB)

    def _on_episode(self, message: EpisodeStatus, _: Mapping[str, Any]) -> None:
        """Follow the episodes of a simulation; a robot has none."""
        if message.state == EpisodeStatus.STATE_RUNNING:
            self._control.episode_runs(message.episode, message.step)
        elif message.state in (EpisodeStatus.STATE_SUCCESS, EpisodeStatus.STATE_FAILURE):
            solved = message.state == EpisodeStatus.STATE_SUCCESS
            self._control.episode_over(message.episode, message.reason or "success", solved)
