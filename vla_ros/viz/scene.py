"""Messages as facts for a window. They may be rclpy's or those that rosbags reads from a bag: the
fields are the same. What a message is follows from its type, so any topic name will do; only text
(std_msgs/String) goes by the end of its topic's name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from vla_ros.core import STAGES, CommandKind, PolicyState
from vla_ros.pixels import decompressed, image_of
from vla_ros.timing import SECOND
from vla_ros.view.page import COLOURS
from vla_ros.windows.facts import Fact, Numbers, Picture, State, Text
from vla_ros.windows.scene import Scene

MAX_PIXELS = 7680 * 4320
_STANDARD = ("x", "y", "z", "rx", "ry", "rz", "gripper")  # of bags whose actions have no names
_KINDS = {
    CommandKind.POLICY: "#15803d",
    CommandKind.HELD: "#b45309",
    CommandKind.STOP: "#475569",
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
    """When, in ns of the ROS clock, what the message says was so; None: it does not say."""
    for holder in (message, getattr(message, "header", None)):
        time = getattr(holder, "stamp", None)
        if time is not None:
            return _ns(time) or None
    if getattr(message, "clock", None) is not None:
        return _ns(message.clock) or None
    transforms = getattr(message, "transforms", None)
    return _ns(transforms[0].header.stamp) or None if transforms else None


class Reader:
    """Remembers what the next message is to be read with: the robot, its frames, its state. Not
    thread-safe."""

    def __init__(self) -> None:
        self._scene = Scene()
        self._said: dict[str, str] = {}  # what is only told when it changes, by path
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
        """Types of messages that something is shown of."""
        return frozenset(self._read)

    def read(self, topic: str, kind: str, message: Any) -> Iterator[Fact]:
        """What a message on ``topic`` shows. BadMessage, ValueError: it is malformed."""
        return self._read[kind](topic.strip("/"), message)

    # ------------------------------------------------------------------ pictures, the robot

    def _image(self, path: str, message: Any) -> Iterator[Fact]:
        if hasattr(message, "format"):
            yield Picture(path.removesuffix("/compressed"), decompressed(message, MAX_PIXELS))
        else:
            yield Picture(path, image_of(message, MAX_PIXELS))

    def _joints(self, path: str, message: Any) -> Iterator[Fact]:
        joints = dict(zip(message.name, map(float, message.position), strict=False))
        if joints:
            yield Numbers(path, tuple(joints), tuple(joints.values()))
        yield from self._scene.joints(joints)

    def _pose(self, path: str, message: Any) -> Iterator[Fact]:
        p = message.pose.position
        yield Numbers(path, ("x", "y", "z"), (float(p.x), float(p.y), float(p.z)))
        yield from self._scene.pose(path, message)

    # ------------------------------------------------------------------ words

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
        if self._said.get(key) != text:
            self._said[key] = text
            yield Text(path, text, level)

    # ------------------------------------------------------------------ the policy

    def _command(self, path: str, message: Any) -> Iterator[Fact]:
        kind = CommandKind(int(message.kind))
        yield State(f"{path}/kind", kind.name, _KINDS[kind])
        values = tuple(map(float, message.action))
        names = tuple(getattr(message, "names", ())) or _STANDARD
        if len(names) == len(values):
            yield Numbers(f"{path}/numbers", names, values)
        observed = _ns(message.observation_stamp)
        age = (_ns(message.header.stamp) - observed) / SECOND if observed else math.nan
        yield Numbers(f"{path}/age", ("observation age [s]",), (age,))
        if kind is CommandKind.POLICY:
            staleness = float(getattr(message, "staleness_s", math.nan))
            yield Numbers(f"{path}/staleness", ("staleness [s]",), (staleness,))
            spent = tuple(_stage(message.stages, stage) for stage in STAGES)
            yield Numbers(f"{path}/stages", tuple(f"{stage} [s]" for stage in STAGES), spent)
        yield from self._scene.commanded(message, values)

    def _chunk(self, path: str, message: Any) -> Iterator[Fact]:
        names = ("actions", "target passes", "draft passes")
        counts = (message.length, message.target_passes, message.draft_passes)
        yield Numbers(f"{path}/counts", names, tuple(map(float, counts)))

    def _status(self, path: str, message: Any) -> Iterator[Fact]:
        self._scene.control_rate_hz = float(message.control_rate_hz)
        state = PolicyState(int(message.state))
        yield State(f"{path}/state", state.name, COLOURS[state])
        limit = getattr(message, "max_age_s", None)
        limit = float(message.max_age_ms) / 1e3 if limit is None else float(limit)
        yield Numbers(f"{path}/limit", ("max_age_s",), (limit,))
        names = ("missed_deadlines", "frames_dropped", "actions_blocked", "worker_restarts",
                 "graphs_captured")  # fmt: skip
        # A bag may be of before the last of them.
        counts = tuple(float(getattr(message, name, 0)) for name in names)
        yield Numbers(f"{path}/counts", names, counts)
        if len(message.acceptance):
            places = tuple(f"token {i}" for i in range(len(message.acceptance)))
            yield Numbers(f"{path}/acceptance", places, tuple(map(float, message.acceptance)))
        level = 20 if state in (PolicyState.WAITING, PolicyState.RUNNING) else 30
        text = f"{state.name}: {message.reason}"
        yield from self._change(path, text, level, f"{path}/reason")

    def _latency(self, path: str, message: Any) -> Iterator[Fact]:
        for name in _LATENCIES:
            found = _percentiles(message, name)
            if found is not None and found.count:
                values = (float(found.p50), float(found.p95), float(found.max))
                yield Numbers(f"{path}/{name}", tuple(f"{name} {p} [s]" for p in _SHOWN), values)

    def _report(self, path: str, message: Any) -> Iterator[Fact]:
        names = ("command_rate_hz", "action_rate_hz", "camera_rate_hz")
        rates = tuple(float(getattr(message, name)) for name in names)
        yield Numbers(f"{path}/rates", names, rates)
        for name in ("age_at_publish", "age_at_arrival", "staleness", "period_error"):
            found = _percentiles(message, name)
            if found is not None and found.count:
                values = (float(found.p50), float(found.p95), float(found.max))
                yield Numbers(
                    f"{path}/{name}_seen", tuple(f"{name} {p} [s]" for p in _SHOWN), values
                )
        for problem in message.problems:
            yield from self._change(f"{path}/{problem}", str(problem), 30, f"{path}/problems")

    def _episode(self, path: str, message: Any) -> Iterator[Fact]:
        word, colour = _EPISODES.get(int(message.state), ("UNKNOWN", "#6b7280"))
        yield State(f"{path}/state", word, colour)
        text = f"episode {message.episode}, {message.task}: {word} {message.reason}".rstrip()
        level = 30 if word == "FAILURE" else 20
        yield from self._change(path, text, level, f"{path}/told")


_SHOWN = ("p50", "p95", "max")


def _percentiles(message: Any, name: str) -> Any:
    """In seconds; bags of the first release have milliseconds only, of which nothing is shown."""
    return getattr(message, f"{name}_s", None)


def _stage(stages: Any, name: str) -> float:
    seconds = getattr(stages, f"{name}_s", None)
    return float(getattr(stages, name)) / 1e3 if seconds is None else float(seconds)


def _ns(time: Any) -> int:
    return int(time.sec) * SECOND + int(time.nanosec)
