"""What a bag holds, stream by stream: cameras, states, sentences, a simulation's episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vla_ros.core import Image, Instruction
from vla_ros.lerobot_data.numbers import ACTIONS, JOINT_STATES, POSES, UNSTAMPED, numbers_of
from vla_ros.lerobot_data.pairing import Stamps
from vla_ros.lerobot_data.wire import Array
from vla_ros.pixels import BadMessage, decompressed, image_of
from vla_ros.replay.bag import Bag, BagMessage, BagTopic
from vla_ros.replay.errors import BagError
from vla_ros.replay.parts import header_stamp
from vla_ros.replay.topics import COMPRESSED, IMAGE, Picked
from vla_ros.timing import SECOND

_MOST_PIXELS = 64_000_000
ROLES: dict[str, tuple[str, ...]] = {
    "image": (IMAGE, COMPRESSED),
    "wrist_image": (IMAGE, COMPRESSED),
    "joint_states": JOINT_STATES,
    "end_effector_pose": POSES,
    "instruction": ("std_msgs/msg/String",),
    "policy/action": ACTIONS,
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


# ---------------------------------------------------------------------- cameras


def cameras_of(bag: Bag, picked: Picked, more: Mapping[str, str]) -> dict[str, BagTopic]:
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


# ---------------------------------------------------------------------- sentences and episodes


@dataclass(frozen=True, slots=True)
class Status:
    at_ns: int
    episode: int
    state: int
    instruction: str


@dataclass(frozen=True, slots=True)
class Tasks:
    """Sentences by the hash that commands carry, and by when they were recorded."""

    by_digest: Mapping[int, str]
    given: Sequence[tuple[int, str]]

    def sentence(self, digest: int, at_ns: int) -> str:
        if digest in self.by_digest:
            return self.by_digest[digest]
        before = [text for given_ns, text in self.given if given_ns <= at_ns]
        return before[-1] if before else ""


def tasks_of(bag: Bag, picked: Picked) -> Tasks:
    given: list[tuple[int, str]] = []
    if (name := picked.name("instruction")) is not None:
        for message in bag.messages([name]):
            given.append((message.stamp_ns, str(bag.decode(message).data).strip()))
    if (name := picked.name("bridge/episode")) is not None:
        for message in bag.messages([name]):
            given.append((message.stamp_ns, str(bag.decode(message).instruction).strip()))
    given.sort(key=lambda one: one[0])
    return Tasks({Instruction(text, 0).digest: text for _, text in given if text}, given)


def statuses_of(bag: Bag, picked: Picked) -> list[Status]:
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
