"""The policy node's inputs: what a frame needs, messages validated, parts joined to frames."""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped, TransformStamped
from rclpy.clock import Clock as RosClock
from rclpy.clock import ClockType
from rclpy.lifecycle import LifecycleNode
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.time import Time
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from vla_ros.core.action_space import ActionKind
from vla_ros.core.clock import SECOND, Clock, Moment, moment
from vla_ros.core.pixels import YUV
from vla_ros.core.types import Floats, Observation, PolicyInfo, Pose
from vla_ros.msg import EpisodeStatus, NamedPoses
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import BadMessage, decompressed, image_of, quoted, stamp_of
from vla_ros.ros.common.listening import listen
from vla_ros.ros.common.serialized import read_compressed, read_image, read_text
from vla_ros.ros.nodes.policy.cameras import Camera, CameraReader
from vla_ros.runtime.control.control import Control
from vla_ros.runtime.control.goals import check_instruction
from vla_ros.runtime.control.observation import (
    LAYOUTS,
    PICTURE_BYTES,
    PICTURES,
    STATES,
    WRIST_IMAGE,
    Assembler,
    Joints,
    Lost,
    Nearest,
    PairingWindow,
    Part,
    Poses,
    ProprioLayout,
    Stamped,
)

Put = Callable[[Stamped[Any]], Observation | None]
Read = Callable[[Any], tuple[int, Any]]  # a message -> its stamp in ns, its content
_SAY_AGAIN_NS = 60 * SECOND  # a stream that was in order for so long is news when it fails
KEPT_S = 0.2  # between two readers' receipt of one message, at most
_LOOK_S = 0.01  # how often the newest transform is read

# ------------------------------------------------------------------------------ what a frame needs


@dataclass(frozen=True, slots=True)
class Needs:
    """The streams that a frame is joined from.

    ``joint_names`` pick and order the joints; empty: as the messages have them, ``size`` values
    (0: any number). ``more``: further cameras by role. ``end_effector``: the tf2 frame of it, ""
    for the topic, None for neither.
    """

    main: Camera
    wrist: Camera | None
    more: Mapping[str, Camera]
    joints: bool
    joint_names: tuple[str, ...]
    size: int
    layout: ProprioLayout
    end_effector: str | None
    ground_truth: bool


def needs_of(values: Mapping[str, Any], info: PolicyInfo) -> Needs:
    """Raises ValueError, in one line, where the parameters cannot give what the policy needs."""
    names = tuple(name for name in values["joint_names"] if name)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"joint_names has {', '.join(map(repr, twice))} more than once")
    layout = LAYOUTS[values["proprio_layout"]]
    _check_state(values, info, layout, len(names))
    wrist = values["use_wrist_image"] or info.cameras == 2
    return Needs(
        main=_camera(values, "main", "a policy looks through a main camera"),
        wrist=_camera(values, "wrist", _why_wrist(info)) if wrist else None,
        more={r: _camera(values, r, f"this checkpoint looks at {r}") for r in info.camera_roles},
        joints=values["use_joint_states"] or bool(names) or info.state_dim > 0,
        joint_names=names,
        size=info.state_dim,
        layout=layout,
        end_effector=values["end_effector_frame"] if layout.pose else None,
        ground_truth=info.name == "scripted",
    )


def _check_state(
    values: Mapping[str, Any], info: PolicyInfo, layout: ProprioLayout, joints: int
) -> None:
    name = values["proprio_layout"]
    if layout.joints and joints not in layout.joints:
        wanted = " or ".join(map(str, layout.joints))
        raise ValueError(
            f"proprio_layout {name} needs {wanted} joint_names, the gripper's fingers, not {joints}"
        )
    gives = layout.size or joints
    if info.state_dim and gives and gives != info.state_dim:
        raise ValueError(
            f"this checkpoint needs {info.state_dim} values of robot state, proprio_layout {name}"
            f" with {joints} joint_names gives {gives}"
        )
    if layout.pose and values["end_effector_frame"] and not tf2_is_there():
        raise ValueError(
            "end_effector_frame needs tf2_ros, which cannot be imported here: install it, or"
            " publish the pose on end_effector_pose"
        )


def _camera(values: Mapping[str, Any], role: str, why: str) -> Camera:
    topic, transport = values[f"cameras.{role}.topic"], values[f"cameras.{role}.transport"]
    if not topic:
        raise ValueError(f"cameras.{role}.topic is empty, and {why}: name the camera's topic")
    return Camera(
        topic,
        values["image_transport"] if transport == "auto" else transport,
        values[f"cameras.{role}.reliability"],
    )


def _why_wrist(info: PolicyInfo) -> str:
    if info.cameras == 2:
        return "this checkpoint looks through two cameras, main and wrist"
    return "use_wrist_image is on"


def tf2_is_there() -> bool:
    """Whether tf2_ros can be imported."""
    return importlib.util.find_spec("tf2_ros") is not None


# ------------------------------------------------------------------------------ messages


def joints_of(
    message: JointState, wanted: frozenset[str] = frozenset()
) -> tuple[tuple[str, ...], Floats]:
    """Names and positions, float64 [n], in the message's own order. Raises :class:`BadMessage`.

    With ``wanted`` names the message must name its joints, and only those must be finite.
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
    """Where the child frame is, in the header's frame."""
    out = PoseStamped(header=transform.header)
    moved, turned = transform.transform.translation, transform.transform.rotation
    out.pose.position.x, out.pose.position.y, out.pose.position.z = moved.x, moved.y, moved.z
    out.pose.orientation = turned
    return out


class FramePoses:
    """Calls back with the pose of ``frame`` in ``base`` whenever the tree has a newer one, or with
    why it has none."""

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
        steady = RosClock(clock_type=ClockType.STEADY_TIME)
        self._timer = node.create_timer(_LOOK_S, self._look, clock=steady)
        self._last = Time().to_msg()

    def close(self) -> None:
        self._node.destroy_timer(self._timer)
        self._listener.unregister()

    def _look(self) -> None:
        try:
            transform = self._buffer.lookup_transform(self._base, self._frame, Time())
        except self._not_yet as error:
            self._lacks(f"tf2 knows no {self._frame!r} in {self._base!r}: {error}")
            return
        if transform.header.stamp != self._last:
            self._last = transform.header.stamp
            self._callback(as_pose(transform))


# ------------------------------------------------------------------------------ subscriptions


class NotWanted(Exception):
    """A picture that nobody would act on: it is not decoded."""


class PolicyInputs:
    """Open from construction until :meth:`close`. ``seen`` is told of every picture of the main
    camera: its topic, its stamp, when it came."""

    def __init__(
        self,
        node: LifecycleNode,
        values: Mapping[str, Any],
        clock: Clock,
        control: Control,
        needs: Needs,
        seen: Callable[[str, int, Moment], None],
    ) -> None:
        self._node = node
        self._clock = clock
        self._control = control
        self._seen = seen
        self._frame_id = values["frame_id"]
        self._most = values["max_image_pixels"]
        self._slop_ns = round(values["pairing_slop_s"] * SECOND)
        self._joints = Joints(needs.joint_names, needs.size)
        self._frames: FramePoses | None = None
        self._names_told = 0
        self._lost_ns: dict[str, int] = {}  # stream and kind -> steady time of its last loss
        self._kept: bytes | None = None  # an instruction that was said before we listened, perhaps
        self._heard_ns = 0  # when the last one was said to us
        steady = RosClock(clock_type=ClockType.STEADY_TIME)
        self._when_kept = node.create_timer(KEPT_S, self._obey_kept, clock=steady)
        self._when_kept.cancel()
        self._open: list[Any] = []
        self._cameras: list[CameraReader] = []
        self._joining = threading.Lock()
        more = {f"{role}_image": role for role in needs.more}
        parts: dict[str, Part] = {name: Nearest(PICTURES, PICTURE_BYTES) for name in more}
        if needs.wrist is not None:
            parts[WRIST_IMAGE] = Nearest(PICTURES, PICTURE_BYTES)
        if needs.joints:
            parts["joint_states"] = self._joints
        if needs.end_effector is not None:
            parts["end_effector_pose"] = Poses(lambda: control.instruction.epoch)
        if needs.ground_truth:
            parts["ground_truth"] = Nearest(STATES)
        self._join = Assembler(self._window, parts, needs.layout.make, more)
        self._subscribe(needs)

    def _subscribe(self, needs: Needs) -> None:
        wanted = frozenset(needs.joint_names)
        self._film("image", needs.main, self._join.image)
        if needs.wrist is not None:
            self._film(WRIST_IMAGE, needs.wrist, self._joined(WRIST_IMAGE))
        for role, camera in needs.more.items():
            self._film(f"{role}_image", camera, self._joined(f"{role}_image"))
        self._listen_to_joints(needs, wanted)
        if needs.end_effector is not None:
            take = self._part("end_effector_pose", pose_of)
            if needs.end_effector:
                frame = needs.end_effector
                self._frames = FramePoses(self._node, self._frame_id, frame, take, self._no_pose)
            else:
                self._listen(PoseStamped, "end_effector_pose", take, qos.STATE_SUB)
        if needs.ground_truth:
            take = self._part("ground_truth", poses_of)
            self._listen(NamedPoses, "ground_truth", take, qos.STATE)
        space = self._control.limits.space
        if space.kind is ActionKind.END_EFFECTOR_POSE:
            for place in range(0, len(space.motion), 6):
                places = space.motion[place : place + 6]
                self._listen_to_pose(space.names[places[0]].removesuffix("x"), places)
        self._listen(String, "instruction", self._on_instruction, qos.SAID, raw=True)
        self._listen(String, "instruction", self._on_kept_instruction, qos.LATCHED, raw=True)
        self._listen(EpisodeStatus, "bridge/episode", self._on_episode, qos.EVERY_CHANGE)

    def _no_pose(self, reason: str) -> None:
        with self._control.lock:
            steady_ns = self._clock.steady_ns()
            self._control.supply.refused("end_effector_pose", reason, steady_ns)

    def _window(self) -> PairingWindow:
        limits = self._control.limits
        return PairingWindow(self._slop_ns or limits.period_ns // 2, limits.max_age_ns)

    def close(self) -> None:
        self._node.destroy_timer(self._when_kept)
        for subscription in self._open:
            self._node.destroy_subscription(subscription)
        self._open.clear()
        for camera in self._cameras:
            camera.close()
        self._cameras.clear()
        if self._frames is not None:
            self._frames.close()
            self._frames = None

    def _film(self, name: str, camera: Camera, put: Put) -> None:
        """Serialized: damaged bytes of an image would end the process below rclpy. The newest
        picture counts of the main camera alone: of pictures that are joined to others an older one
        may be the one that fits."""
        supply, main = self._control.supply, name == "image"
        read = self._pixels if camera.transport == "raw" else self._decompressed
        take = self._stream(name, read, put)

        def heard(stamp_ns: int, received: Moment) -> None:
            supply.heard(name, received.steady_ns)
            if main:
                self._seen(reader.topic, stamp_ns, received)

        def offered(writers: int) -> None:
            if main:
                supply.topic, supply.writers = reader.topic, writers

        reader = CameraReader(
            self._node, camera, self._clock, take, self._lossy, main, heard, offered
        )
        if main:
            supply.topic = reader.topic
        self._cameras.append(reader)

    def _lossy(self, line: str) -> None:
        self._node.get_logger().warning(line)
        with self._control.lock:
            self._control.counters.last_drop = self._control.counters.last_drop or line

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
        if image.encoding in YUV and not self._control.wants_frames:
            raise NotWanted
        return image.stamp_ns, image_of(image, self._most)

    def _decompressed(self, raw: bytes) -> tuple[int, Any]:
        image = read_compressed(raw)
        if not self._control.wants_frames:
            raise NotWanted
        return image.stamp_ns, decompressed(image, self._most)

    def _stream(self, name: str, read: Read, put: Put) -> Callable[..., None]:
        """A callback that validates one stream and offers the observation it completes. From the
        node's executor, and from the threads that decode pictures."""

        def callback(message: Any, received: Moment | None = None) -> None:
            if received is None:
                received = moment(self._clock)
                self._control.supply.heard(name, received.steady_ns)
            try:
                stamp_ns, content = read(message)
            except NotWanted:
                self._control.pass_over()
                return
            except BadMessage as error:
                self._control.drop(str(error), stream=name)
                return
            with self._joining:
                self._join_in(name, Stamped(stamp_ns, received, content), put)

        return callback

    def _join_in(self, name: str, part: Stamped[Any], put: Put) -> None:
        try:
            observation = put(part)
        except BadMessage as error:
            self._control.drop(str(error), stream=name)
            return
        for lost in self._join.lost():
            self._lose(lost, part.received.steady_ns)
        if observation is not None:
            self._tell_of_names()
            self._control.offer(observation)

    def _part(self, name: str, read: Callable[[Any], Any]) -> Callable[[Any], None]:
        """A stream of messages with a header that is joined to images."""
        stamped = lambda m: (stamp_of(m.header.stamp), read(m))  # noqa: E731
        return self._stream(name, stamped, self._joined(name))

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
        """Count an image without a partner. The log has one line a stream and kind, however soon
        another one had its own; the status counts all."""
        with self._control.lock:
            self._control.supply.lost(lost, steady_ns)
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
        displacements are added to. One subscription: drivers publish hundreds of times a second."""
        space = self._control.limits.space
        takers: list[Callable[[JointState], None]] = []
        if space.kind.joints:
            moving = frozenset(space.names[i] for i in space.motion)
            takers.append(lambda m: self._on_measured_joints(m, moving))
        if needs.joints:
            takers.append(self._part("joint_states", lambda m: joints_of(m, wanted)))

        def take(message: JointState) -> None:
            for taker in takers:
                taker(message)

        if takers:
            self._listen(JointState, "joint_states", take, qos.STATE_SUB)

    def _listen_to_pose(self, arm: str, places: Sequence[int]) -> None:
        """The measured pose of an end effector that is commanded in poses."""
        topic = f"{arm}measured_pose"

        def callback(message: PoseStamped) -> None:
            received, frame = moment(self._clock), message.header.frame_id
            try:
                if frame != self._frame_id:
                    raise BadMessage(f"{topic} is in {quoted(frame)}, not in '{self._frame_id}'")
                pose = pose_action_of(message)
            except BadMessage as error:
                self._control.drop(str(error))
                return
            self._control.measure(pose, stamp_of(message.header.stamp), received, places)

        self._listen(PoseStamped, topic, callback, qos.STATE_SUB)

    def _on_measured_joints(self, message: JointState, wanted: frozenset[str]) -> None:
        received, space = moment(self._clock), self._control.limits.space
        try:
            names, positions = joints_of(message, wanted)
            stamp_ns = stamp_of(message.header.stamp)
        except BadMessage as error:
            self._control.drop(str(error))
            return
        found = [(space.names.index(n), i) for i, n in enumerate(names) if n in wanted]
        if found:
            places, chosen = zip(*found, strict=True)
            self._control.measure(positions[list(chosen)], stamp_ns, received, places)

    def _on_instruction(self, serialized: bytes) -> None:
        """Every word of every writer, in the order in which each has said its own."""
        self._kept = None  # what is said now outweighs what was said before
        self._heard_ns = self._clock.steady_ns()
        self._obey(serialized)

    def _on_kept_instruction(self, serialized: bytes) -> None:
        """The last word of a writer that keeps it for those who come late. This reader hears what
        is said now, too, before or after the other one: only what that one does not hear is news.
        """
        if self._clock.steady_ns() - self._heard_ns > KEPT_S * SECOND:
            self._kept = serialized
            self._when_kept.reset()

    def _obey_kept(self) -> None:
        self._when_kept.cancel()
        if self._kept is not None:
            self._obey(self._kept)
            self._kept = None

    def _obey(self, serialized: bytes) -> None:
        log = self._node.get_logger()
        try:
            text = check_instruction(read_text(serialized))
        except ValueError as error:
            self._control.ignore(f"instruction rejected, the task stays: {error}")
            return
        if self._control.set_instruction(text):
            log.info(f"instruction: '{text}'" if text else "instruction: stop")

    def _on_episode(self, message: EpisodeStatus) -> None:
        """Of a simulation; a robot has no episodes."""
        if message.state == EpisodeStatus.STATE_RUNNING:
            self._control.episode_runs(message.episode, message.step)
        elif message.state in (EpisodeStatus.STATE_SUCCESS, EpisodeStatus.STATE_FAILURE):
            solved = message.state == EpisodeStatus.STATE_SUCCESS
            self._control.episode_over(message.episode, message.reason or "success", solved)
