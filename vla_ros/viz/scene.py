"""Messages of a run as facts for any viewer. Free of rclpy.

:class:`Reader` makes the facts of messages, with :class:`Scene` for what is where in three
dimensions; :mod:`vla_ros.viz.rerun` shows them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from vla_ros.core.clock import SECOND
from vla_ros.core.pixels import decompressed, image_of
from vla_ros.core.types import STAGES, CommandKind, Floats, Image, PolicyState
from vla_ros.data.replay import stamp_ns
from vla_ros.viz.robot_model import Robot, Shape, place_of, read
from vla_ros.viz.viewer.model import ARROW_RGB, BASE, BONES_RGB, ViewInstant, thing_shape
from vla_ros.viz.viewer.model import STATE_COLORS as COLORS

# The facts: the little that a viewer must know of a message.
#
# A path is a topic's name with what of it is meant, ``policy/action/numbers``; things in three
# dimensions stand under ``world``. Lengths are metres, durations seconds.


@dataclass(frozen=True, slots=True)
class SceneImage:
    """``image``: uint8 [height, width, 3], RGB."""

    path: str
    image: Image


@dataclass(frozen=True, slots=True)
class Numbers:
    """One value a name. NaN: nothing was measured, and a line ends here."""

    path: str
    names: tuple[str, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SceneState:
    """A state from now on; ``color`` as #rrggbb."""

    path: str
    word: str
    color: str


@dataclass(frozen=True, slots=True)
class Text:
    """One line of a log. ``level`` is rcl_interfaces/Log's: 20 information, 30
    warning, 40 error."""

    path: str
    text: str
    level: int = 20


@dataclass(frozen=True, slots=True)
class ScenePose:
    """The pose of an object: ``at`` float64 [4, 4] in the world's frame."""

    path: str
    at: Floats


@dataclass(frozen=True, slots=True)
class SceneSolid:
    """The shape of an object, from beginning to end; a ScenePose above its path moves it."""

    path: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Lines:
    """Pieces of lines, float64 [n, 2, 3], each with a head at its end where it is an ``arrow``.
    None of them: what was shown before is gone."""

    path: str
    ends: Floats
    color: tuple[int, int, int]
    arrow: bool = False


Fact: TypeAlias = SceneImage | Numbers | SceneState | Text | ScenePose | SceneSolid | Lines


# The tree of transforms: where each frame is in its root.
#
# As in tf2 without its buffer in time: the newest transform of each frame counts.


class FrameTree:
    """Newest transforms between frames. Not thread-safe."""

    def __init__(self) -> None:
        self._above: dict[str, tuple[str, Floats]] = {}

    def set(self, parent: str, child: str, at: Floats) -> None:
        """Set the child's pose in its parent, float64 [4, 4]; one that closes a ring is ignored."""
        if parent != child and child not in self._way(parent):
            self._above[child] = (parent, at)

    def __contains__(self, frame: str) -> bool:
        return frame in self._above

    def place(self, frame: str) -> Floats:
        """The pose in the root of its tree, float64 [4, 4]; a frame without a parent is a root."""
        at: Floats = np.eye(4)
        for name in self._way(frame):
            if name in self._above:
                at = self._above[name][1] @ at
        return at

    def below(self, frame: str) -> Iterator[str]:
        """The frame, where it has a transform, and all that hang on it."""
        for name in self._above:
            if frame in self._way(name):
                yield name

    def _way(self, frame: str) -> tuple[str, ...]:
        """From a frame up to its root."""
        way = [frame]
        while way[-1] in self._above:
            way.append(self._above[way[-1]][0])
        return tuple(way)


# The three-dimensional part: the arm by its description and joints, things by their poses, frames
# by their transforms, and an arrow where the commanded displacement leads.


WORLD = "world"
_NOTHING: Floats = np.zeros((0, 2, 3))


class Scene:
    """Not thread-safe. One robot: of two descriptions the later one counts."""

    def __init__(self) -> None:
        self.control_rate_hz = 0.0
        self._frames = FrameTree()
        self._robot: Robot | None = None
        self._urdf = ""
        self._now = ViewInstant(0)
        self._links: dict[str, Floats] = {}
        self._known: set[str] = set()
        self._arrow_shown = False

    def robot(self, urdf: str) -> Iterator[Fact]:
        """Its shapes, and their poses before the first joint position."""
        if urdf == self._urdf:
            return
        self._urdf = urdf
        try:
            self._robot = read(urdf)
        except ValueError as error:
            yield Text(f"{WORLD}/robot", f"no robot is shown: {error}", 30)
            return
        for link, shapes in self._robot.shapes.items():
            for index, shape in enumerate(shapes):
                yield SceneSolid(f"{WORLD}/robot/{link}/{index}", shape)
        yield from self._moved()

    def joints(self, joints: dict[str, float]) -> Iterator[Fact]:
        self._now = replace(self._now, joints={**self._now.joints, **joints})
        yield from self._moved()

    def _moved(self) -> Iterator[Fact]:
        if self._robot is None:
            return
        root = self._frames.place(self._robot.root)
        places = self._robot.places(self._now.joints)
        self._links = {link: root @ at for link, at in places.items()}
        for link, at in self._links.items():
            if self._robot.shapes.get(link):
                yield ScenePose(f"{WORLD}/robot/{link}", at)
        if not any(self._robot.shapes.values()):
            yield Lines(f"{WORLD}/robot", self._robot.bones(self._links), BONES_RGB)

    def transforms(self, message: Any) -> Iterator[Fact]:
        """Each frame that moved, and all that hang on it."""
        moved: dict[str, None] = {}
        for one in message.transforms:
            child = str(one.child_frame_id).strip("/")
            t, q = one.transform.translation, one.transform.rotation
            at = place_of((t.x, t.y, t.z), (q.x, q.y, q.z, q.w))
            if np.isfinite(at).all():
                self._frames.set(str(one.header.frame_id).strip("/"), child, at)
                moved |= dict.fromkeys(self._frames.below(child))
        for frame in moved:
            yield ScenePose(f"{WORLD}/tf/{frame}", self._frames.place(frame))

    def things(self, message: Any) -> Iterator[Fact]:
        """The hand and the objects of a vla_ros/NamedPoses."""
        above = self._frames.place(str(message.header.frame_id).strip("/"))
        poses = {
            str(name): above @ _matrix(pose)
            for name, pose in zip(message.names, message.poses, strict=False)
        }
        self._now = replace(self._now, poses={**self._now.poses, **poses})
        for name, at in ViewInstant(0, poses=poses).things().items():
            path = f"{WORLD}/things/{name}"
            if path not in self._known:
                self._known.add(path)
                yield SceneSolid(f"{path}/shape", thing_shape(name))
            yield ScenePose(path, at)

    def pose(self, path: str, message: Any) -> Iterator[Fact]:
        """A pose of its own; that of an end effector is where the arrow begins."""
        at = self._frames.place(str(message.header.frame_id).strip("/")) @ _matrix(message.pose)
        if path.split("/")[-1] == "end_effector_pose":
            self._now = replace(self._now, poses={**self._now.poses, "gripper": at})
        yield ScenePose(f"{WORLD}/poses/{path}", at)

    def commanded(self, message: Any, action: Sequence[float]) -> Iterator[Fact]:
        """An arrow of the displacement, repeated for half a second; nothing for other actions."""
        step = np.array(action[:3], np.float64)
        delta = int(message.action_space) == 0 and len(step) == 3
        known = step if delta and np.isfinite(step).all() else None
        base = self._links.get(BASE)
        arrow = replace(self._now, step=known).arrow(self.control_rate_hz, base)
        if arrow is not None:
            yield Lines(f"{WORLD}/commanded", arrow[None], ARROW_RGB, arrow=True)
        elif self._arrow_shown:
            yield Lines(f"{WORLD}/commanded", _NOTHING, ARROW_RGB, arrow=True)
        self._arrow_shown = arrow is not None


def _matrix(pose: Any) -> Floats:
    p, q = pose.position, pose.orientation
    return place_of((p.x, p.y, p.z), (q.x, q.y, q.z, q.w))


# Messages as facts for a window. They may be rclpy's or those that rosbags reads from a bag: the
# fields are the same. The type decides how a message is read, so any topic name will do; only text
# (std_msgs/String) goes by the end of its topic's name.


MAX_PIXELS = 7680 * 4320
_KINDS = {
    CommandKind.POLICY: "#15803d",
    CommandKind.HELD: "#b45309",
    CommandKind.STOP: "#475569",
    CommandKind.TAKEOVER: "#1d4ed8",
}
_EPISODES = {
    0: ("RESETTING", "#6b7280"),
    1: ("RUNNING", "#2563eb"),
    2: ("SUCCESS", "#15803d"),
    3: ("FAILURE", "#b91c1c"),
}
_LEVELS = {0: 20, 1: 30, 2: 40, 3: 40}  # of diagnostics, as those of the log
_LATENCIES = ("total", "inference", *STAGES, "tick_error")
_DESCRIPTION = "robot_description"


def stamp_of(message: Any) -> int | None:
    """Time of a message's content, in ns of the ROS clock; None: it has no stamp."""
    for holder in (message, getattr(message, "header", None)):
        time = getattr(holder, "stamp", None)
        if time is not None:
            return stamp_ns(time) or None
    if getattr(message, "clock", None) is not None:
        return stamp_ns(message.clock) or None
    transforms = getattr(message, "transforms", None)
    return stamp_ns(transforms[0].header.stamp) or None if transforms else None


class Reader:
    """Reads messages as facts; remembers the robot, its frames and its state. Not thread-safe."""

    def __init__(self) -> None:
        self._scene = Scene()
        self._last: dict[str, str] = {}  # texts that are facts only when they change, by path
        self._read: dict[str, Callable[[str, Any], Iterator[Fact]]] = {
            "sensor_msgs/msg/Image": self._image,
            "sensor_msgs/msg/CompressedImage": self._image,
            "sensor_msgs/msg/JointState": self._joints,
            "geometry_msgs/msg/PoseStamped": self._pose,
            "tf2_msgs/msg/TFMessage": lambda _, m: self._scene.transforms(m),
            "std_msgs/msg/String": self._text,
            "rcl_interfaces/msg/Log": self._log,
            "diagnostic_msgs/msg/DiagnosticArray": self._diagnostics,
            "vla_ros/msg/ActionCommand": self._command,
            "vla_ros/msg/ActionChunk": self._chunk,
            "vla_ros/msg/PolicyStatus": self._status,
            "vla_ros/msg/Latency": self._latency,
            "vla_ros/msg/MonitorReport": self._report,
            "vla_ros/msg/EpisodeStatus": self._episode,
            "vla_ros/msg/NamedPoses": lambda _, m: self._scene.things(m),
        }

    @property
    def kinds(self) -> frozenset[str]:
        """Types of messages that have facts."""
        return frozenset(self._read)

    def read(self, topic: str, kind: str, message: Any) -> Iterator[Fact]:
        """The facts of a message on ``topic``. BadMessage, ValueError: it is malformed."""
        return self._read[kind](topic.strip("/"), message)

    # Images, the robot

    def _image(self, path: str, message: Any) -> Iterator[Fact]:
        if hasattr(message, "format"):
            yield SceneImage(path.removesuffix("/compressed"), decompressed(message, MAX_PIXELS))
        else:
            yield SceneImage(path, image_of(message, MAX_PIXELS))

    def _joints(self, path: str, message: Any) -> Iterator[Fact]:
        joints = dict(zip(message.name, map(float, message.position), strict=False))
        if joints:
            yield Numbers(path, tuple(joints), tuple(joints.values()))
        yield from self._scene.joints(joints)

    def _pose(self, path: str, message: Any) -> Iterator[Fact]:
        p = message.pose.position
        yield Numbers(path, ("x", "y", "z"), (float(p.x), float(p.y), float(p.z)))
        yield from self._scene.pose(path, message)

    # Words

    def _text(self, path: str, message: Any) -> Iterator[Fact]:
        if path.split("/")[-1] == _DESCRIPTION:
            yield from self._scene.robot(message.data)
        else:
            yield Text(path, str(message.data) or "(the empty text: stop)")

    def _log(self, path: str, message: Any) -> Iterator[Fact]:
        yield Text(path, f"{message.name}: {message.msg}", int(message.level))

    def _diagnostics(self, path: str, message: Any) -> Iterator[Fact]:
        for one in message.status:
            level = (
                one.level
                if isinstance(one.level, int)
                else int.from_bytes(bytes(one.level), "little")
            )
            text = f"{one.name}: {one.message}"
            yield from self._change(f"{path}/{one.name}", text, _LEVELS.get(level, 30), path)

    def _change(self, key: str, text: str, level: int, path: str) -> Iterator[Fact]:
        if self._last.get(key) != text:
            self._last[key] = text
            yield Text(path, text, level)

    # The policy

    def _command(self, path: str, message: Any) -> Iterator[Fact]:
        kind = CommandKind(int(message.kind))
        yield SceneState(f"{path}/kind", kind.name, _KINDS[kind])
        values = tuple(map(float, message.action))
        names = tuple(message.names)
        if len(names) == len(values):
            yield Numbers(f"{path}/numbers", names, values)
        observed = stamp_ns(message.observation_stamp)
        age = (stamp_ns(message.header.stamp) - observed) / SECOND if observed else math.nan
        yield Numbers(f"{path}/age", ("observation age [s]",), (age,))
        corrected = stamp_ns(message.correction_stamp)
        if corrected:
            age = (stamp_ns(message.header.stamp) - corrected) / SECOND
            yield Numbers(f"{path}/correction_age", ("correction age [s]",), (age,))
        if kind is CommandKind.POLICY:
            staleness = float(message.staleness_s)
            yield Numbers(f"{path}/staleness", ("staleness [s]",), (staleness,))
            spent = tuple(float(getattr(message.stages, f"{stage}_s")) for stage in STAGES)
            yield Numbers(f"{path}/stages", tuple(f"{stage} [s]" for stage in STAGES), spent)
        yield from self._scene.commanded(message, values)

    def _chunk(self, path: str, message: Any) -> Iterator[Fact]:
        names = ("actions", "target passes", "draft passes")
        counts = (message.length, message.target_passes, message.draft_passes)
        yield Numbers(f"{path}/counts", names, tuple(map(float, counts)))

    def _status(self, path: str, message: Any) -> Iterator[Fact]:
        self._scene.control_rate_hz = float(message.control_rate_hz)
        state = PolicyState(int(message.state))
        yield SceneState(f"{path}/state", state.name, COLORS[state])
        yield Numbers(f"{path}/limit", ("max_age_s",), (float(message.max_age_s),))
        names = ("missed_deadlines", "frames_dropped", "actions_blocked", "worker_restarts",
                 "graphs_captured")  # fmt: skip
        counts = tuple(float(getattr(message, name)) for name in names)
        yield Numbers(f"{path}/counts", names, counts)
        if len(message.acceptance):
            tokens = tuple(f"token {i}" for i in range(len(message.acceptance)))
            yield Numbers(f"{path}/acceptance", tokens, tuple(map(float, message.acceptance)))
        level = (
            20 if state in (PolicyState.WAITING, PolicyState.RUNNING, PolicyState.TAKEOVER) else 30
        )
        text = f"{state.name}: {message.reason}"
        yield from self._change(path, text, level, f"{path}/reason")

    def _latency(self, path: str, message: Any) -> Iterator[Fact]:
        for name in _LATENCIES:
            found = getattr(message, f"{name}_s")
            if found.count:
                values = (float(found.p50), float(found.p95), float(found.max))
                yield Numbers(f"{path}/{name}", tuple(f"{name} {p} [s]" for p in _SHOWN), values)

    def _report(self, path: str, message: Any) -> Iterator[Fact]:
        names = ("command_rate_hz", "action_rate_hz", "camera_rate_hz")
        rates = tuple(float(getattr(message, name)) for name in names)
        yield Numbers(f"{path}/rates", names, rates)
        for name in ("age_at_publish", "age_at_arrival", "staleness", "period_error"):
            found = getattr(message, f"{name}_s")
            if found.count:
                values = (float(found.p50), float(found.p95), float(found.max))
                yield Numbers(
                    f"{path}/{name}_seen", tuple(f"{name} {p} [s]" for p in _SHOWN), values
                )
        for problem in message.problems:
            yield from self._change(f"{path}/{problem}", str(problem), 30, f"{path}/problems")

    def _episode(self, path: str, message: Any) -> Iterator[Fact]:
        word, color = _EPISODES.get(int(message.state), ("UNKNOWN", "#6b7280"))
        yield SceneState(f"{path}/state", word, color)
        text = f"episode {message.episode}, {message.task}: {word} {message.reason}".rstrip()
        level = 30 if word == "FAILURE" else 20
        yield from self._change(path, text, level, f"{path}/text")


_SHOWN = ("p50", "p95", "max")
