"""What a bag holds, stream by stream: numbers, cameras, states, chunks, instructions, episodes."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vla_ros.core.clock import SECOND
from vla_ros.core.pixels import BadMessage, decompressed, image_of, resized
from vla_ros.core.types import Image, Instruction
from vla_ros.data.bag_frames import COMPRESSED, IMAGE, TopicRoles, header_stamp
from vla_ros.data.bags import Bag, BagError, BagMessage, BagTopic
from vla_ros.data.lerobot.pairing import Stamps
from vla_ros.data.lerobot.wire import Array
from vla_ros.data.replay import Chunk, read_chunks

COMMAND = "vla_ros/msg/ActionCommand"
_JOINTS = "sensor_msgs/msg/JointState"
_POSE = "geometry_msgs/msg/PoseStamped"
_TWIST, _TWIST_STAMPED = "geometry_msgs/msg/Twist", "geometry_msgs/msg/TwistStamped"
_TRAJECTORY = "trajectory_msgs/msg/JointTrajectory"
_ARRAYS = ("std_msgs/msg/Float64MultiArray", "std_msgs/msg/Float32MultiArray")
ACTIONS = (COMMAND, *_ARRAYS, _TWIST, _TWIST_STAMPED, _JOINTS, _TRAJECTORY)
JOINT_STATES, POSES = (_JOINTS, *_ARRAYS), (_POSE,)
_LEAP = 0.3  # of a joint, in rad; jitter of one in degrees is less
UNSTAMPED = (*_ARRAYS, _TWIST)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a message: ``values`` float64 [D], a name each."""

    names: tuple[str, ...]
    values: Array


def numbers_of(kind: str, content: Any) -> Numbers:
    """The numbers of any message. BagError: a type that is not understood, or names and values that
    do not belong together."""
    if kind == COMMAND:
        names, values = content.names, content.action
    elif kind == _JOINTS:
        names, values = content.name, content.position
    elif kind == _TRAJECTORY:
        point = content.points[0] if content.points else None
        names, values = content.joint_names, point.positions if point else ()
    elif kind == _POSE:
        at, turn = content.pose.position, content.pose.orientation
        names = ("x", "y", "z", "qx", "qy", "qz", "qw")
        values = (at.x, at.y, at.z, turn.x, turn.y, turn.z, turn.w)
    elif kind in (_TWIST, _TWIST_STAMPED):
        twist = content.twist if kind == _TWIST_STAMPED else content
        names = ("vx", "vy", "vz", "wx", "wy", "wz")
        values = (
            twist.linear.x, twist.linear.y, twist.linear.z,
            twist.angular.x, twist.angular.y, twist.angular.z,
        )  # fmt: skip
    elif kind in _ARRAYS:
        values = content.data
        names = tuple(f"value_{i}" for i in range(len(values)))
    else:
        raise BagError(f"{kind} has no numbers that are understood")
    array = np.array(values, dtype=np.float64)
    if len(names) != len(array):
        raise BagError(f"a {kind} has {len(names)} names and {len(array)} values")
    return Numbers(tuple(map(str, names)), array)


_MOST_PIXELS = 64_000_000
ROLES: dict[str, tuple[str, ...]] = {
    "image": (IMAGE, COMPRESSED),
    "wrist_image": (IMAGE, COMPRESSED),
    "joint_states": JOINT_STATES,
    "end_effector_pose": POSES,
    "instruction": ("std_msgs/msg/String",),
    "policy/action": ACTIONS,
    "policy/action_chunk": ("vla_ros/msg/ActionChunk",),
    "policy/status": ("vla_ros/msg/PolicyStatus",),
    "bridge/episode": ("vla_ros/msg/EpisodeStatus",),
}


@dataclass(slots=True)
class _Readings:
    """Messages of the same names: when they were captured and arrived, in ns, and values [D]."""

    captured: list[int] = field(default_factory=list)
    arrived: list[int] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)


class _Joined:
    """The readings of some names: the newest counts, whoever published it."""

    def __init__(self, names: Sequence[str], sources: Mapping[tuple[str, ...], _Readings]) -> None:
        captured, arrived = [], []
        self._values: list[Array] = []
        for own, readings in sources.items():
            columns = [own.index(name) for name in names]
            captured += readings.captured
            arrived += readings.arrived
            self._values += [values[columns] for values in readings.values]
        self._captured = captured
        self._stamps = Stamps(captured, arrived)

    def leaps(self) -> list[tuple[int, float, float]]:
        """Of each value: in how many readings it leaps and is back in the next one, and the first
        such leap, from and to."""
        order = np.argsort(self._captured, kind="stable")
        times = np.asarray(self._captured)[order]
        values = np.asarray(self._values)[order]
        if len(values) < 3:
            return []
        there, back = np.abs(np.diff(values, axis=0))[:-1], np.abs(np.diff(values, axis=0))[1:]
        least = np.maximum(_LEAP, 0.25 * np.ptp(values, axis=0))
        least = np.maximum(least, 10.0 * np.abs(values[2:] - values[:-2]))
        soon = (times[2:] - times[:-2] < SECOND // 2)[:, None]
        found = soon & (there > least) & (back > least)
        first = np.argmax(found, axis=0)
        return [
            (int(many), float(values[at, i]), float(values[at + 1, i]))
            for i, (many, at) in enumerate(zip(found.sum(axis=0), first, strict=True))
        ]

    def by(self, moment_ns: int, at_ns: int) -> Array | None:
        number = (
            self._stamps.captured_by(moment_ns) if moment_ns else self._stamps.arrived_by(at_ns)
        )
        return None if number is None else self._values[number]


class States:
    """One state topic: the values of all its publishers, joined by name as the policy node does.

    ``names`` [D]: of one publisher in its order; of several (an arm and its gripper) those of the
    publisher with the most names first, so that it does not matter who spoke first. BagError: a
    message that cannot be read.
    """

    def __init__(self, bag: Bag, topic: BagTopic) -> None:
        self._topic, self._kind = topic.name, topic.kind
        sources: dict[tuple[str, ...], _Readings] = {}
        for message in bag.messages([topic.name]):
            content = bag.decode(message)
            if topic.kind == _JOINTS and not len(content.position):
                continue  # velocities or efforts alone
            try:
                numbers = numbers_of(topic.kind, content)
            except BagError as error:
                raise BagError(f"{bag.path}: {topic.name}: {error}") from None
            if not len(numbers.values):
                continue
            stamp = 0 if topic.kind in UNSTAMPED else header_stamp(bag, message)
            own = sources.setdefault(numbers.names, _Readings())
            own.captured.append(stamp or message.stamp_ns)
            own.arrived.append(message.stamp_ns)
            own.values.append(numbers.values)
        sources = dict(sorted(sources.items(), key=lambda one: (-len(one[0]), one[0])))
        self.names = tuple(dict.fromkeys(name for names in sources for name in names))
        of_whom: dict[tuple[tuple[str, ...], ...], list[str]] = {}
        for name in self.names:
            of_whom.setdefault(tuple(own for own in sources if name in own), []).append(name)
        self._parts = [
            (
                [self.names.index(name) for name in names],
                _Joined(names, {own: sources[own] for own in owners}),
            )
            for owners, names in of_whom.items()
        ]

    @property
    def doubt(self) -> str:
        """A line about joints that leap and are back in the next reading, as with a second
        publisher, or a bus that reads 0 now and then; "" for none."""
        if self._kind != _JOINTS:
            return ""
        leaping = [
            (many, self.names[column], old, new)
            for columns, part in self._parts
            for column, (many, old, new) in zip(columns, part.leaps(), strict=False)
            if many
        ]
        if not leaping:
            return ""
        many, name, old, new = max(leaping)
        others = f" (and {len(leaping) - 1} joints more)" if len(leaping) > 1 else ""
        return (
            f"{self._topic}: joint {name!r} leaps and is back in {many} readings, as from {old:.3g}"
            f" to {new:.3g}{others}: two publishers, or wrong readings, and they are in the rows"
        )

    def by(self, moment_ns: int, at_ns: int) -> Array | None:
        """The newest values [D] captured by a moment, or (0) recorded by ``at_ns``; None: one was
        not there yet."""
        out = np.empty(len(self.names))
        for columns, part in self._parts:
            values = part.by(moment_ns, at_ns)
            if values is None:
                return None
            out[columns] = values
        return out if len(out) else None


class RecordedChunks:
    """Every chunk of the policy, whether or not anything of it was executed: before the gate, and
    while a person acts."""

    def __init__(self, bag: Bag, picked: TopicRoles, names: Sequence[str]) -> None:
        own = [c for c in read_chunks(bag, picked) if c.names == tuple(names)]
        self._chunks = sorted(own, key=lambda chunk: chunk.published_ns)
        self._times = [chunk.published_ns for chunk in self._chunks]
        self._by_observation = {chunk.observed_ns: chunk for chunk in self._chunks}

    def __len__(self) -> int:
        return len(self._chunks)

    def made_from(self, observed_ns: int) -> Chunk | None:
        """The chunk of this observation."""
        return self._by_observation.get(observed_ns)

    def newest(self, published_ns: int) -> Chunk | None:
        """The last chunk by then."""
        index = bisect.bisect_right(self._times, published_ns) - 1
        return self._chunks[index] if index >= 0 else None


def cameras_of(bag: Bag, picked: TopicRoles, more: Mapping[str, str]) -> dict[str, BagTopic]:
    """Topics of the cameras, by their names in the data set."""
    found = {"main": picked.topics["image"]}
    if (wrist := picked.topics.get("wrist_image")) is not None:
        found["wrist"] = wrist
    there = {topic.name: topic for topic in bag.topics}
    for name, topic in more.items():
        if topic not in there or there[topic].kind not in ROLES["image"]:
            images = [t.name for t in bag.topics if t.kind in ROLES["image"]]
            raise BagError(f"--camera {name}={topic}: the bag's cameras are {', '.join(images)}")
        found[name] = there[topic]
    return found


def stamps_of(bag: Bag, topic: BagTopic) -> Stamps:
    """The stamps of a camera. BagError: there is no way to follow them."""
    captured, arrived = [], []
    for message in bag.messages([topic.name]):
        captured.append(header_stamp(bag, message))
        arrived.append(message.stamp_ns)
    zero = sum(stamp <= 0 for stamp in captured)
    if zero:
        raise BagError(f"{topic.name}: {zero} images have no stamp: the camera driver left it zero")
    back = [i for i in range(1, len(captured)) if captured[i] < captured[i - 1] - SECOND]
    if back:
        raise BagError(
            f"{topic.name}: time goes back at image {back[0]} (a loop, or the clock was set):"
            " no image can be told from another of the same stamp"
        )
    return Stamps(captured, arrived)


class Images:
    """The images of one camera by their numbers, asked for nearly in order, brought to ``size``
    (height, width; 0 0: as they are); those that are asked for again are kept until then."""

    def __init__(
        self, bag: Bag, topic: BagTopic, wanted: Sequence[int], size: tuple[int, int]
    ) -> None:
        self._bag, self._topic, self._size = bag, topic, size
        self._left = Counter(wanted)
        self._messages = enumerate(bag.messages([topic.name]))
        self._kept: dict[int, Image] = {}

    def get(self, number: int) -> Image:
        while number not in self._kept:
            index, message = next(self._messages)
            if self._left[index]:
                self._kept[index] = self._decode(index, message)
        image = self._kept[number]
        self._left[number] -= 1
        if not self._left[number]:
            del self._kept[number]
        return image

    def _decode(self, index: int, message: BagMessage) -> Image:
        content = self._bag.decode(message)
        read = decompressed if self._topic.kind == COMPRESSED else image_of
        try:
            return resized(read(content, _MOST_PIXELS), *self._size)
        except BadMessage as error:
            raise BagError(f"{self._topic.name}: image {index}: {error}") from None


@dataclass(frozen=True, slots=True)
class Status:
    """A report of the simulation on its episode."""

    at_ns: int
    episode: int
    state: int
    instruction: str


def statuses_of(bag: Bag, picked: TopicRoles) -> list[Status]:
    """All of them, in the order of recording."""
    if (name := picked.name("bridge/episode")) is None:
        return []
    found = ((m.stamp_ns, bag.decode(m)) for m in bag.messages([name]))
    return [
        Status(at_ns, int(one.episode), int(one.state), str(one.instruction).strip())
        for at_ns, one in found
    ]


class Instructions:
    """Instructions by the hash that commands carry, and by when they were recorded."""

    def __init__(self, bag: Bag, picked: TopicRoles, statuses: Sequence[Status]) -> None:
        name = picked.name("instruction")
        own = bag.messages([name] if name else [])
        recorded = [(m.stamp_ns, str(bag.decode(m).data).strip()) for m in own]
        recorded += [(status.at_ns, status.instruction) for status in statuses]
        self._recorded = sorted(recorded, key=lambda one: one[0])
        self._by_digest = {Instruction(text, 0).digest: text for _, text in self._recorded if text}

    def of(self, digest: int, at_ns: int) -> str:
        """The instruction of a command, "" where none was recorded."""
        if digest in self._by_digest:
            return self._by_digest[digest]
        before = [text for recorded_ns, text in self._recorded if recorded_ns <= at_ns]
        return before[-1] if before else ""


def newest(statuses: Sequence[Status], at_ns: int) -> Status | None:
    """The last one by then."""
    before = [status for status in statuses if status.at_ns <= at_ns]
    return before[-1] if before else None
