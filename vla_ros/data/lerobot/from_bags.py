"""A bag as rows: every command with the images, the state and the instruction that belong to it.

Judged first, from the stamps alone; images are read from the disk as they are needed.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.core.clock import SECOND
from vla_ros.core.pixels import BadMessage, decompressed, image_of
from vla_ros.core.types import CommandKind, Image, Instruction
from vla_ros.data.bag_frames import COMPRESSED, IMAGE, TopicRoles, header_stamp, pick
from vla_ros.data.bags import Bag, BagError, BagMessage, BagTopic
from vla_ros.data.lerobot.dataset import (
    ACTION,
    ACTION_OBSERVATION_AGE,
    ANSWERED,
    DELAY,
    INTERVENTION,
    OBSERVATION_AGE,
    POLICY_ACTION,
    STATE,
    Columns,
    DatasetColumn,
    DatasetRow,
)
from vla_ros.data.lerobot.wire import Array
from vla_ros.data.replay import stamp_ns

# Which images belong to a command, and where an episode ends: pure functions over stamps.
#
# A row is what a policy could have known when it said an action. A command of ours says what it
# rests on: the capture of its observation, when it was due, the newest image its node had taken in.
# Of a stranger's command only its arrival is known: then it gets images that had arrived before it.


#: what a command's row shows: the image of the moment it was made for, the one it rests on, or the
#: newest that its node had taken in when it was published
DUE, OBSERVATION, NEWEST = "due", "observation", "newest"
PAIRINGS = (DUE, OBSERVATION, NEWEST)


@dataclass(frozen=True, slots=True)
class RecordedCommand:
    """A command by its times, in ns. ``said_ns``: its publication; ``at_ns``: when it was recorded.

    ``observed_ns``, ``latest_ns``, ``due_ns`` and ``received_ns`` are 0 where nobody says them.
    ``observed_ns`` is the stamp of the oldest image that it rests on, ``latest_ns`` that of the
    newest observation its node had by then, ``due_ns`` the moment that it was made for.
    """

    said_ns: int
    at_ns: int
    observed_ns: int = 0
    latest_ns: int = 0
    due_ns: int = 0
    received_ns: int = 0

    def moment_ns(self, pairing: str) -> int:
        """The moment that its row shows; 0: only its arrival is known.

        What was due later than anything the node had seen is shown with what it had seen.
        """
        if not self.observed_ns:
            return 0
        latest = max(self.latest_ns, self.observed_ns)
        if pairing == NEWEST:
            return latest
        if pairing == OBSERVATION or not self.due_ns:
            return self.observed_ns
        return min(max(self.due_ns, self.observed_ns), latest)


class Stamps:
    """When the messages of one stream were captured and when they arrived, in ns.

    Numbers of messages are their places in ``captured`` and ``arrived``, as they were recorded.
    """

    def __init__(self, captured: Sequence[int], arrived: Sequence[int]) -> None:
        self._order = sorted(range(len(captured)), key=captured.__getitem__)
        self._captured = [captured[i] for i in self._order]
        by_arrival = sorted(range(len(arrived)), key=arrived.__getitem__)
        self._arrived = [arrived[i] for i in by_arrival]
        self._newest: list[int] = []  # of those that had arrived: the one captured last
        for i in by_arrival:
            before = self._newest[-1] if self._newest else i
            self._newest.append(i if captured[i] >= captured[before] else before)
        self._stamps = captured

    def __len__(self) -> int:
        return len(self._order)

    def stamp(self, number: int) -> int:
        """Capture of a message."""
        return self._stamps[number]

    def captured_by(self, moment_ns: int) -> int | None:
        """The newest that was captured at ``moment_ns`` or before."""
        place = bisect.bisect_right(self._captured, moment_ns) - 1
        return self._order[place] if place >= 0 else None

    def captured_after(self, moment_ns: int) -> int | None:
        """The oldest that was captured later."""
        place = bisect.bisect_right(self._captured, moment_ns)
        return self._order[place] if place < len(self._order) else None

    def arrived_by(self, at_ns: int) -> int | None:
        """The newest, by capture, of those that had been recorded by then."""
        place = bisect.bisect_right(self._arrived, at_ns) - 1
        return self._newest[place] if place >= 0 else None


@dataclass(frozen=True, slots=True)
class PairedImages:
    """Number of each camera's image. Or ``lacking``: why there is none, in words."""

    images: Mapping[str, int] = field(default_factory=dict)
    lacking: str = ""


def pair(
    told: RecordedCommand,
    cameras: Mapping[str, Stamps],
    pairing: str,
    max_age_s: float,
    slop_s: float,
) -> PairedImages:
    """The images of a command: none that was captured after the moment its row shows.

    One exception, which the policy node makes too: a frame of several cameras is named by its
    oldest image, so beside an image of exactly that stamp another camera's may be up to ``slop_s``
    younger, if the frame was complete by then.
    """
    moment = told.moment_ns(pairing)
    found: dict[str, int] = {}
    for name, stamps in cameras.items():
        number = stamps.captured_by(moment) if moment else stamps.arrived_by(told.at_ns)
        if number is None:
            return PairedImages(lacking=f"no {name} before it")
        found[name] = number
    if moment and any(cameras[name].stamp(i) == moment for name, i in found.items()):
        limit = min(moment + round(slop_s * SECOND), told.received_ns or moment, told.said_ns)
        found = {name: _partner(cameras[name], i, moment, limit) for name, i in found.items()}
    reference = moment or told.said_ns
    for name, i in found.items():
        if reference - cameras[name].stamp(i) > max_age_s * SECOND:
            return PairedImages(lacking=f"no {name} younger than {max_age_s:g} s")
    return PairedImages(found)


def _partner(stamps: Stamps, number: int, moment_ns: int, limit_ns: int) -> int:
    """The image nearest to the moment, the one before it or the one after it up to the limit."""
    after = stamps.captured_after(moment_ns)
    if after is None or stamps.stamp(after) > limit_ns:
        return number
    nearer = stamps.stamp(after) - moment_ns < moment_ns - stamps.stamp(number)
    return after if nearer else number


@dataclass(frozen=True, slots=True)
class Mark:
    """What tells episodes apart, of one command: -1 and "" where nobody says it."""

    said_ns: int
    epoch: int = -1
    episode: int = -1
    task: str = ""


def episodes(marks: Sequence[Mark], max_gap_s: float) -> Iterator[int]:
    """Number of each command's episode, from 0. Another begins with another instruction, policy's
    epoch (a reset) or simulation's episode, and where time jumps: ahead by more than ``max_gap_s``,
    or back."""
    number = 0
    before: Mark | None = None
    for mark in marks:
        if before is not None:
            step = mark.said_ns - before.said_ns
            same = (mark.epoch, mark.episode, mark.task) == (
                before.epoch,
                before.episode,
                before.task,
            )
            if not same or step < 0 or step > max_gap_s * SECOND:
                number += 1
        before = mark
        yield number


def said(dropped: Counter[str]) -> list[str]:
    """What was left out, one line a reason, the most frequent first."""
    return [f"{count} commands left out: {why}" for why, count in dropped.most_common()]


# The numbers of a message, whatever it is: a command, a state, of this package or another's.


COMMAND = "vla_ros/msg/ActionCommand"
_JOINTS = "sensor_msgs/msg/JointState"
_POSE = "geometry_msgs/msg/PoseStamped"
_TWIST, _TWIST_STAMPED = "geometry_msgs/msg/Twist", "geometry_msgs/msg/TwistStamped"
_TRAJECTORY = "trajectory_msgs/msg/JointTrajectory"
_ARRAYS = ("std_msgs/msg/Float64MultiArray", "std_msgs/msg/Float32MultiArray")
ACTIONS = (COMMAND, *_ARRAYS, _TWIST, _TWIST_STAMPED, _JOINTS, _TRAJECTORY)
JOINT_STATES, POSES = (_JOINTS, *_ARRAYS), (_POSE,)
UNSTAMPED = (*_ARRAYS, _TWIST)


@dataclass(frozen=True, slots=True)
class Numbers:
    """``values`` float64 [D], a name each."""

    names: tuple[str, ...]
    values: Array

    def ordered(self, names: Sequence[str]) -> Array | None:
        """The same in another order; None: one of ``names`` is not among them."""
        if tuple(names) == self.names:
            return self.values
        if not set(names) <= set(self.names):
            return None
        return self.values[[self.names.index(name) for name in names]]


def numbers_of(kind: str, content: Any) -> Numbers:
    """BagError: a type that is not understood, or names and values that do not belong together."""
    if kind == COMMAND:
        names, values = content.names, content.action
    elif kind == _JOINTS:
        names, values = content.name, content.position
    elif kind == _TRAJECTORY:
        point = content.points[0] if content.points else None
        names, values = content.joint_names, point.positions if point else ()
    elif kind == _POSE:
        place, turn = content.pose.position, content.pose.orientation
        names = ("x", "y", "z", "qx", "qy", "qz", "qw")
        values = (place.x, place.y, place.z, turn.x, turn.y, turn.z, turn.w)
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


# What a bag holds, stream by stream: cameras, states, instructions, a simulation's episodes.


_MOST_PIXELS = 64_000_000
ROLES: dict[str, tuple[str, ...]] = {
    "image": (IMAGE, COMPRESSED),
    "wrist_image": (IMAGE, COMPRESSED),
    "joint_states": JOINT_STATES,
    "end_effector_pose": POSES,
    "instruction": ("std_msgs/msg/String",),
    "policy/action": ACTIONS,
    "policy/action_chunk": ("vla_ros/msg/ActionChunk",),
    "bridge/episode": ("vla_ros/msg/EpisodeStatus",),
}


class States:
    """One state topic: the newest value by a moment."""

    def __init__(self, bag: Bag, topic: BagTopic) -> None:
        captured, arrived, self._values = [], [], []
        self.names: tuple[str, ...] = ()
        for message in bag.messages([topic.name]):
            numbers = numbers_of(topic.kind, bag.decode(message))
            self.names = self.names or numbers.names
            values = numbers.ordered(self.names)
            if values is None or not len(values):
                continue  # of another publisher on the topic
            stamp = 0 if topic.kind in UNSTAMPED else header_stamp(bag, message)
            captured.append(stamp or message.stamp_ns)
            arrived.append(message.stamp_ns)
            self._values.append(values)
        self._stamps = Stamps(captured, arrived)

    def by(self, moment_ns: int, at_ns: int) -> Array | None:
        number = (
            self._stamps.captured_by(moment_ns) if moment_ns else self._stamps.arrived_by(at_ns)
        )
        return None if number is None else self._values[number]


@dataclass(frozen=True, slots=True)
class RecordedInference:
    """One inference of the policy: ``rows`` [C, D], the first due at ``due_ns``."""

    said_ns: int
    observed_ns: int
    due_ns: int
    period_ns: int
    digest: int
    rows: Array

    def row(self, moment_ns: int) -> Array:
        """The action that is due at that moment, or the one nearest to it."""
        place = round((moment_ns - self.due_ns) / self.period_ns) if self.period_ns else 0
        return self.rows[min(max(place, 0), len(self.rows) - 1)]


class RecordedInferences:
    """What the policy said, inference by inference, whether or not anything of it was executed:
    before the gate, and while a person acts."""

    def __init__(self, bag: Bag, topic: BagTopic, names: Sequence[str]) -> None:
        found = []
        for message in bag.messages([topic.name]):
            content = bag.decode(message)
            if list(content.names) != list(names):
                continue  # of another action space than the commands are
            observed, period = stamp_ns(content.observation_stamp), round(content.period_s * SECOND)
            due = observed + int(content.conditioning_delay) * period
            rows = np.array(content.actions, np.float64).reshape(-1, len(names))
            said = stamp_ns(content.header.stamp)
            found.append(
                RecordedInference(said, observed, due, period, int(content.instruction_hash), rows)
            )
        self._said = sorted(found, key=lambda one: one.said_ns)
        self._times = [one.said_ns for one in self._said]
        self._by_observation = {one.observed_ns: one for one in self._said}

    def __len__(self) -> int:
        return len(self._said)

    def of(self, command: _Command, max_age_s: float) -> tuple[Array, int] | None:
        """What the policy said for the moment of a command, and how long it took to, in ns: the
        chunk that the command is of; else the newest on its instruction, up to ``max_age_s``
        old."""
        told = command.told
        made = self._by_observation.get(told.observed_ns)
        if made is not None and not command.person and command.index < len(made.rows):
            return made.rows[command.index], made.said_ns - made.observed_ns
        place = bisect.bisect_right(self._times, told.said_ns) - 1
        newest = self._said[place] if place >= 0 else None
        if newest is None or newest.digest != command.digest:
            return None
        if told.said_ns - newest.observed_ns > max_age_s * SECOND:
            return None
        return newest.row(told.said_ns), newest.said_ns - newest.observed_ns


# Cameras


def cameras_of(bag: Bag, picked: TopicRoles, more: Mapping[str, str]) -> dict[str, BagTopic]:
    """Name in the data set -> topic."""
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
    """The images of one camera by their numbers, asked for nearly in order; those that are asked
    for again are kept until then."""

    def __init__(self, bag: Bag, topic: BagTopic, wanted: Sequence[int]) -> None:
        self._bag, self._topic = bag, topic
        self._left = Counter(wanted)
        self._messages = enumerate(bag.messages([topic.name]))
        self._kept: dict[int, Image] = {}

    def get(self, number: int) -> Image:
        while number not in self._kept:
            place, message = next(self._messages)
            if self._left[place]:
                self._kept[place] = self._decode(place, message)
        image = self._kept[number]
        self._left[number] -= 1
        if not self._left[number]:
            del self._kept[number]
        return image

    def _decode(self, place: int, message: BagMessage) -> Image:
        content = self._bag.decode(message)
        read = decompressed if self._topic.kind == COMPRESSED else image_of
        try:
            return read(content, _MOST_PIXELS)
        except BadMessage as error:
            raise BagError(f"{self._topic.name}: image {place}: {error}") from None


# Instructions and episodes


@dataclass(frozen=True, slots=True)
class Status:
    at_ns: int
    episode: int
    state: int
    instruction: str


@dataclass(frozen=True, slots=True)
class Tasks:
    """Instructions by the hash that commands carry, and by when they were recorded."""

    by_digest: Mapping[int, str]
    given: Sequence[tuple[int, str]]

    def sentence(self, digest: int, at_ns: int) -> str:
        if digest in self.by_digest:
            return self.by_digest[digest]
        before = [text for given_ns, text in self.given if given_ns <= at_ns]
        return before[-1] if before else ""


def tasks_of(bag: Bag, picked: TopicRoles) -> Tasks:
    given: list[tuple[int, str]] = []
    if (name := picked.name("instruction")) is not None:
        for message in bag.messages([name]):
            given.append((message.stamp_ns, str(bag.decode(message).data).strip()))
    if (name := picked.name("bridge/episode")) is not None:
        for message in bag.messages([name]):
            given.append((message.stamp_ns, str(bag.decode(message).instruction).strip()))
    given.sort(key=lambda one: one[0])
    return Tasks({Instruction(text, 0).digest: text for _, text in given if text}, given)


def statuses_of(bag: Bag, picked: TopicRoles) -> list[Status]:
    if (name := picked.name("bridge/episode")) is None:
        return []
    found = []
    for message in bag.messages([name]):
        content = bag.decode(message)
        found.append(
            Status(message.stamp_ns, int(content.episode), int(content.state), content.instruction)
        )
    return found


def newest(statuses: Sequence[Status], at_ns: int) -> Status | None:
    before = [status for status in statuses if status.at_ns <= at_ns]
    return before[-1] if before else None


_STATES = ("joint_states", "end_effector_pose")
_RUNNING, _SUCCESS = 1, 2  # of EpisodeStatus


@dataclass(frozen=True, slots=True)
class BagOptions:
    """``remaps``: role -> topic. ``cameras``: name -> topic, beside those of the roles.
    ``instruction`` instead of the bag's own. ``fps`` 0: the bag's. The others are those of
    :func:`pair` and :func:`episodes`."""

    remaps: Mapping[str, str] = field(default_factory=dict)
    cameras: Mapping[str, str] = field(default_factory=dict)
    instruction: str | None = None
    fps: int = 0
    pairing: str = DUE
    max_age_s: float = 1.0
    max_gap_s: float = 10.0
    only_success: bool = False


@dataclass(frozen=True, slots=True)
class _Command:
    told: RecordedCommand
    epoch: int
    digest: int
    numbers: Numbers
    person: bool | None = None  # acted; None: nobody says who did
    index: int = 0  # in the chunk that it is of


@dataclass(frozen=True, slots=True)
class _Planned:
    """A row before its images are read: ``images`` are numbers of messages."""

    episode: int
    task: str
    images: Mapping[str, int]
    numbers: Mapping[str, Array]


class BagRows:
    """The rows of one bag. BagError: it has no images, no commands or no instruction, or stamps
    that cannot be followed. ``dropped``: commands that make no row, by the reason."""

    def __init__(self, bag: Bag, options: BagOptions) -> None:
        self._bag, self._options = bag, options
        self.dropped: Counter[str] = Counter()
        picked = pick(bag.topics, options.remaps, ROLES)
        self._cameras = cameras_of(bag, picked, options.cameras)
        if picked.name("policy/action") is None:
            raise BagError(
                f"{bag.path}: no actions: name their topic with -r policy/action=TOPIC; it has "
                + ", ".join(f"{t.name} ({t.kind})" for t in bag.topics[:12])
            )
        self._commands = self._read_commands(picked.topics["policy/action"])
        self._stamps = {name: stamps_of(bag, topic) for name, topic in self._cameras.items()}
        self._tasks, self._statuses = tasks_of(bag, picked), statuses_of(bag, picked)
        self._states = [
            States(bag, picked.topics[role]) for role in _STATES if picked.name(role) is not None
        ]
        self._answers: RecordedInferences | None = None
        if (chunks := picked.topics.get("policy/action_chunk")) is not None:
            self._answers = RecordedInferences(bag, chunks, self._commands[0].numbers.names) or None
        self.fps = options.fps or self._rate()
        self._planned = self._plan()

    def __len__(self) -> int:
        return len(self._planned)

    @property
    def episodes(self) -> int:
        return 1 + self._planned[-1].episode if self._planned else 0

    def columns(self) -> Columns:
        """Of its first row."""
        first = next(self.rows())
        sizes = {name: image.shape[:2] for name, image in first.images.items()}
        state = [name for one in self._states for name in one.names]
        numbers = [DatasetColumn(ACTION, self._commands[0].numbers.names)]
        numbers += [DatasetColumn(STATE, tuple(state))] if state else []
        numbers += [
            DatasetColumn(name, ("s",)) for name in (OBSERVATION_AGE, ACTION_OBSERVATION_AGE)
        ]
        if self._answers is not None:
            numbers += [
                DatasetColumn(POLICY_ACTION, numbers[0].names),
                DatasetColumn(DELAY, ("s",)),
            ]
            numbers.append(DatasetColumn(ANSWERED, (), "bool"))
        if self._commands[0].person is not None:
            numbers.append(DatasetColumn(INTERVENTION, (), "bool"))
        return Columns(self.fps, {n: (h, w) for n, (h, w) in sizes.items()}, tuple(numbers))

    def rows(self) -> Iterator[DatasetRow]:
        """Every row with its images. BagError: an image is damaged."""
        readers = {
            name: Images(self._bag, topic, [row.images[name] for row in self._planned])
            for name, topic in self._cameras.items()
        }
        for row in self._planned:
            images = {name: readers[name].get(number) for name, number in row.images.items()}
            yield DatasetRow(row.episode, row.task, images, row.numbers)

    # Judging

    def _read_commands(self, topic: BagTopic) -> list[_Command]:
        found = []
        for message in self._bag.messages([topic.name]):
            content = self._bag.decode(message)
            numbers = numbers_of(topic.kind, content)
            if topic.kind == COMMAND and not CommandKind(int(content.kind)).moves:
                self.dropped[f"{CommandKind(int(content.kind)).name}, which no policy said"] += 1
                continue
            if not np.isfinite(numbers.values).all():
                self.dropped["a number that is not finite"] += 1
                continue
            found.append(_command(self._bag, topic.kind, message, content, numbers))
        found = _joined(found)
        if not found:
            raise BagError(f"{self._bag.path}: {topic.name} has no command of a policy")
        names = found[0].numbers.names
        other = [one for one in found if one.numbers.names != names]
        if other:
            raise BagError(
                f"{self._bag.path}: {topic.name} has commands of {len(names)} numbers"
                f" ({' '.join(names)}) and of others ({' '.join(other[0].numbers.names)})"
            )
        return found

    def _rate(self) -> int:
        run = self._bag.run
        hz = float(run.parameters.get("policy", {}).get("control_rate_hz", 0.0)) if run else 0.0  # type: ignore[arg-type]
        if not hz:
            steps = np.diff([c.told.said_ns for c in self._commands])
            steps = steps[steps > 0]
            if not len(steps):
                raise BagError(f"{self._bag.path}: its rate cannot be told: give --fps")
            hz = float(SECOND / np.median(steps))
        return max(1, round(hz))

    def _plan(self) -> list[_Planned]:
        slop_s = 0.5 / self.fps
        kept: list[tuple[_Command, Mark, Mapping[str, int], Array]] = []
        for command in self._commands:
            mark, why = self._mark(command)
            if why:
                self.dropped[why] += 1
                continue
            told = command.told
            found = pair(told, self._stamps, self._options.pairing, self._options.max_age_s, slop_s)
            if found.lacking:
                self.dropped[found.lacking] += 1
                continue
            # The state of the moment that the image shows: not later than its newest image.
            shown = max(self._stamps[n].stamp(i) for n, i in found.images.items())
            moment = shown if told.moment_ns(self._options.pairing) else 0
            states = [
                state for one in self._states if (state := one.by(moment, told.at_ns)) is not None
            ]
            if len(states) < len(self._states):
                self.dropped["no state before it"] += 1
                continue
            kept.append((command, mark, found.images, np.concatenate(states) if states else _NONE))
        if not kept:
            why = "; ".join(f"{n} {reason}" for reason, n in self.dropped.most_common(3))
            raise BagError(f"{self._bag.path}: no command makes a row: {why}")
        numbers = episodes([mark for _, mark, _, _ in kept], self._options.max_gap_s)
        return [
            _Planned(number, mark.task, images, self._numbers(command, images, state))
            for number, (command, mark, images, state) in zip(numbers, kept, strict=True)
        ]

    def _mark(self, command: _Command) -> tuple[Mark, str]:
        """What tells its episode, and why it belongs to none, or ""."""
        told = command.told
        status = newest(self._statuses, told.at_ns)
        if self._statuses and (status is None or status.state != _RUNNING):
            return Mark(told.said_ns), "outside of the simulation's episodes"
        number = status.episode if status else -1
        if self._options.only_success and not self._succeeded(number):
            return Mark(told.said_ns), "its episode did not succeed"
        task = self._options.instruction
        if task is None:
            task = self._tasks.sentence(command.digest, told.at_ns)
        if not task:
            return Mark(told.said_ns), "no instruction: give one with --instruction"
        return Mark(told.said_ns, command.epoch, number, task), ""

    def _succeeded(self, episode: int) -> bool:
        return any(s.episode == episode and s.state == _SUCCESS for s in self._statuses)

    def _numbers(
        self, command: _Command, images: Mapping[str, int], state: Array
    ) -> dict[str, Array]:
        told = command.told
        oldest = min(self._stamps[name].stamp(i) for name, i in images.items())
        observed = told.observed_ns or oldest
        found = {
            ACTION: command.numbers.values,
            OBSERVATION_AGE: np.array([(told.said_ns - oldest) / SECOND]),
            ACTION_OBSERVATION_AGE: np.array([(told.said_ns - observed) / SECOND]),
        }
        if self._states:
            found[STATE] = state
        if self._answers is not None:
            answer = self._answers.of(command, self._options.max_age_s)
            # LeRobot's statistics take no NaN: without an answer what was done stands there.
            said, took = answer or (command.numbers.values, 0)
            found |= {POLICY_ACTION: said, DELAY: np.array([took / SECOND])}
        out = {name: values.astype(np.float32) for name, values in found.items()}
        if self._answers is not None:
            out[ANSWERED] = np.array([answer is not None])
        if command.person is not None:
            out[INTERVENTION] = np.array([command.person])
        return out


_NONE: Array = np.empty(0)


def _command(bag: Bag, kind: str, message: BagMessage, content: Any, numbers: Numbers) -> _Command:
    at_ns = message.stamp_ns
    if kind != COMMAND:
        stamp = 0 if kind in UNSTAMPED else header_stamp(bag, message)
        return _Command(RecordedCommand(stamp or at_ns, at_ns), -1, 0, numbers)
    said_ns = stamp_ns(content.header.stamp)
    person = int(content.kind) == CommandKind.TAKEOVER  # who looked at the newest there was, or so
    observed = content.latest_observation_stamp if person else content.observation_stamp
    told = RecordedCommand(
        said_ns,
        at_ns,
        stamp_ns(observed),
        stamp_ns(content.latest_observation_stamp),
        0 if person else said_ns - round(float(content.staleness_s) * SECOND),  # when it was due
        stamp_ns(content.receive_stamp),
    )
    digest, index = int(content.instruction_hash), int(content.chunk_index)
    return _Command(told, int(content.epoch), digest, numbers, person, index)


def _joined(commands: Sequence[_Command]) -> list[_Command]:
    """Where a person gives the robot back the epoch is the next one, and the episode goes on."""
    out: list[_Command] = []
    back = 0  # epochs that began so
    before: _Command | None = None
    for command in commands:
        if before is not None and before.person and command.epoch == before.epoch + 1:
            back += 1
        before = command
        out.append(replace(command, epoch=command.epoch - back))
    return out


# Several bags as the rows of one data set.


class Bags:
    """Open bags, judged one by one. A context manager. BagError: one of them is no good, or they
    do not have the same columns. ``dropped``: commands that make no row, by the reason."""

    def __init__(self, paths: Sequence[Path], options: BagOptions) -> None:
        self._open = ExitStack()
        self.dropped: Counter[str] = Counter()
        self._notes: list[str] = []
        self._bags: list[BagRows] = []
        try:
            for path in paths:
                bag = self._open.enter_context(Bag(path))
                rows = BagRows(bag, options)
                self._bags.append(rows)
                self.dropped += rows.dropped
                self._notes += bag.notes
            self._columns = self._common(paths)
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> Bags:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.close()

    def __len__(self) -> int:
        return sum(map(len, self._bags))

    @property
    def episodes(self) -> int:
        return sum(bag.episodes for bag in self._bags)

    def columns(self) -> Columns:
        """Those that all of them have."""
        return self._columns

    def notes(self) -> list[str]:
        """What the user should know, one line each."""
        return [*self._notes, *said(self.dropped)]

    def rows(self) -> Iterator[DatasetRow]:
        """A bag after the other, their episodes counted through."""
        before = 0
        for bag in self._bags:
            for row in bag.rows():
                yield replace(row, episode=row.episode + before)
            before += bag.episodes

    def _common(self, paths: Sequence[Path]) -> Columns:
        found = [bag.columns() for bag in self._bags]
        for path, columns in zip(paths, found, strict=True):
            if columns != found[0]:
                raise BagError(
                    f"{path} does not fit {paths[0]}: {_words(columns)}, there {_words(found[0])};"
                    " --fps makes their rates one"
                )
        return found[0]


def _words(columns: Columns) -> str:
    cameras = [f"{name} {w}x{h}" for name, (h, w) in columns.cameras.items()]
    numbers = [f"{one.name} [{len(one.names)}]" for one in columns.numbers]
    return ", ".join([f"{columns.fps} fps", *cameras, *numbers])
