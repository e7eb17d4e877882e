"""The frames of a bag: judged first, then read one by one.

:func:`scan` reads every stamp and says in one line why a bag cannot be replayed;
:func:`read_frames` yields each frame with what belongs to it, by the stamps of capture.
Images are read from the disk as they are needed, everything else is held in memory.
"""

from __future__ import annotations

import bisect
import struct
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vla_ros.core.clock import MS, SECOND
from vla_ros.core.video import VIDEOS
from vla_ros.data.bag_video import COMPRESSED, IMAGE
from vla_ros.data.bags import Bag, BagError, BagMessage, BagTopic

# Roles of topics: by the usual name, by the type, or as the user gives them.


#: role → the types that its topic may have. Roles are the names of the graph.
ROLES: dict[str, tuple[str, ...]] = {
    "image": (IMAGE, COMPRESSED),
    "wrist_image": (IMAGE, COMPRESSED),
    "joint_states": ("sensor_msgs/msg/JointState",),
    "ground_truth": ("vla_ros/msg/NamedPoses",),
    "instruction": ("std_msgs/msg/String",),
    "policy/action": ("vla_ros/msg/ActionCommand",),
    "policy/action_chunk": ("vla_ros/msg/ActionChunk",),
    "policy/status": ("vla_ros/msg/PolicyStatus",),
}


@dataclass(frozen=True, slots=True)
class TopicRoles:
    """The topics of a bag by role. A role that the bag does not have is not in it."""

    topics: Mapping[str, BagTopic]

    def name(self, role: str) -> str | None:
        """The topic of a role."""
        topic = self.topics.get(role)
        return topic.name if topic else None

    @property
    def compressed(self) -> bool:
        """Whether the camera's images are compressed."""
        return self.topics["image"].kind == COMPRESSED


def parse_remaps(
    items: Iterable[str], roles: Mapping[str, tuple[str, ...]] = ROLES
) -> dict[str, str]:
    """Turn ["image=/camera/color", ...] into {"image": "/camera/color"}. BagError."""
    found = {}
    for item in items:
        role, equals, topic = item.replace(":=", "=").partition("=")
        if not (role and equals and topic):
            raise BagError(f"-r {item}: write ROLE=TOPIC, such as image=/camera/image_raw")
        if role not in roles:
            raise BagError(f"-r {item}: no role {role!r}; there are {', '.join(roles)}")
        found[role] = topic if topic.startswith("/") else f"/{topic}"
    return found


def pick(
    topics: Iterable[BagTopic],
    remaps: Mapping[str, str],
    roles: Mapping[str, tuple[str, ...]] = ROLES,
) -> TopicRoles:
    """The topic of every role: the one given, else the one of the usual name, else the only
    one whose name ends so, and for the camera the only one of its type.

    BagError: no camera, several that may be it, or a topic given that is not there or not of
    the right type.
    """
    there = {topic.name: topic for topic in topics if topic.count}
    found: dict[str, BagTopic] = {}
    for role, kinds in roles.items():
        if role in remaps:
            found[role] = _given(role, remaps[role], kinds, there)
            continue
        fitting = [topic for topic in there.values() if topic.kind in kinds]
        topic = _usual(role, fitting)
        if topic is not None:
            found[role] = topic
    if "image" not in found:
        taken = {topic.name for topic in found.values()}
        found["image"] = _only_camera([t for t in there.values() if t.name not in taken], there)
    if roles is ROLES:  # one node subscribes to them all
        _check_transport(found)
    return TopicRoles(found)


def _given(role: str, name: str, kinds: tuple[str, ...], there: Mapping[str, BagTopic]) -> BagTopic:
    if name not in there:
        raise BagError(f"the bag has no topic {name} for {role}; it has {_list(there)}")
    topic = there[name]
    if topic.kind not in kinds:
        raise BagError(f"{name} is a {topic.kind}; {role} must be {' or '.join(kinds)}")
    return topic


def _usual(role: str, fitting: list[BagTopic]) -> BagTopic | None:
    for ending in (role, *(f"{role}/{one}" for one in ("compressed", *VIDEOS))):
        exact = [topic for topic in fitting if topic.name == f"/{ending}"]
        others = [topic for topic in fitting if topic.name.endswith(f"/{ending}")]
        if exact or len(others) == 1:
            return (exact or others)[0]
    return None


def _only_camera(free: list[BagTopic], there: Mapping[str, BagTopic]) -> BagTopic:
    cameras = [topic for topic in free if topic.kind in ROLES["image"]]
    if not cameras:
        raise BagError(f"the bag has no camera images; it has {_list(there)}")
    if len(cameras) > 1:
        names = ", ".join(topic.name for topic in cameras)
        raise BagError(f"several cameras ({names}): choose one with -r image=TOPIC")
    return cameras[0]


def _check_transport(found: Mapping[str, BagTopic]) -> None:
    wrist = found.get("wrist_image")
    if wrist is not None and wrist.kind != found["image"].kind:
        raise BagError(
            f"{found['image'].name} is a {found['image'].kind} and {wrist.name} a {wrist.kind}:"
            " both cameras must be raw or both compressed"
        )


def _list(there: Mapping[str, BagTopic]) -> str:
    names = [f"{topic.name} ({topic.kind})" for topic in there.values()]
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(names[:12]) + more


# The messages that belong to a frame beside the camera's: found by their stamps of capture.


@dataclass(frozen=True, slots=True)
class FramePart:
    """One serialized message of a frame, and what it is of: "image", "joint_states", ..."""

    role: str
    stamp_ns: int
    data: bytes


def header_stamp(bag: Bag, message: BagMessage) -> int:
    """The stamp of a message that begins with a header, read without the rest of it.

    BagError: the message is shorter than a header.
    """
    if len(message.data) < 12:
        raise BagError(f"{bag.path}: a message on {message.topic} is cut short")
    order = "<" if message.data[1] & 1 else ">"
    sec, nanosec = struct.unpack_from(f"{order}iI", message.data, 4)
    return int(sec) * SECOND + int(nanosec)


def restamped(data: bytes, stamp_ns: int) -> bytes:
    """The message with another stamp in its header."""
    out = bytearray(data)
    struct.pack_into(f"{'<' if data[1] & 1 else '>'}iI", out, 4, *divmod(stamp_ns, SECOND))
    return bytes(out)


def require(picked: TopicRoles, needs: Sequence[str]) -> None:
    """BagError: the bag has no topic for something that the policy needs."""
    for role in needs:
        if picked.name(role) is None:
            raise BagError(
                f"the policy needs {role}, which the bag lacks: name its topic with -r"
                f" {role}=TOPIC, or choose another policy"
            )


def lookup(bag: Bag, picked: TopicRoles, role: str) -> HeldMessages | StreamedImages:
    """A finder of frames' companions. BagError: the bag has no topic of this role."""
    require(picked, [role])
    name = picked.topics[role].name
    return (
        StreamedImages(bag, role, name) if role == "wrist_image" else HeldMessages(bag, role, name)
    )


class HeldMessages:
    """Small messages, all in memory, in any order."""

    def __init__(self, bag: Bag, role: str, name: str) -> None:
        self._role = role
        found = {header_stamp(bag, m): m.data for m in bag.messages([name])}
        self._stamps = sorted(found)
        self._data = found

    def nearest(self, stamp: int, slop_ns: int) -> FramePart | None:
        i = bisect.bisect_left(self._stamps, stamp)
        near = self._stamps[max(0, i - 1) : i + 1]
        return _nearest(self._role, stamp, slop_ns, [(s, self._data[s]) for s in near])


class StreamedImages:
    """Images, read along with the frames; ``nearest`` takes stamps in their order."""

    def __init__(self, bag: Bag, role: str, name: str) -> None:
        self._role = role
        self._messages = ((header_stamp(bag, m), m.data) for m in bag.messages([name]))
        self._near: deque[tuple[int, bytes]] = deque()

    def nearest(self, stamp: int, slop_ns: int) -> FramePart | None:
        while not self._near or self._near[-1][0] < stamp + slop_ns:
            following = next(self._messages, None)
            if following is None:
                break
            self._near.append(following)
        while self._near and self._near[0][0] < stamp - slop_ns:
            self._near.popleft()
        return _nearest(self._role, stamp, slop_ns, list(self._near))


def _nearest(
    role: str, stamp: int, slop_ns: int, near: list[tuple[int, bytes]]
) -> FramePart | None:
    if not near:
        return None
    best, data = min(near, key=lambda item: (abs(item[0] - stamp), item[0]))
    return FramePart(role, best, data) if abs(best - stamp) <= slop_ns else None


_LOOP_NS = SECOND  # further back than this is no late frame: time itself went back
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG")


@dataclass(frozen=True, slots=True)
class FrameTime:
    """A frame by its capture and when it was recorded, both in ns."""

    stamp_ns: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class BagFrames:
    """The frames of a bag that can be shown, in the order of capture."""

    times: tuple[FrameTime, ...]
    repeated: int = 0
    late: int = 0

    @property
    def rate_hz(self) -> float:
        """Rate of the camera, by the median distance of two frames; 0 for a single one."""
        stamps = np.array([t.stamp_ns for t in self.times], dtype=np.int64)
        return float(SECOND / np.median(np.diff(stamps))) if len(stamps) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class BagFrame:
    """Messages that are shown together: the parts, the camera's image last.

    ``image_ns`` is the image's stamp; ``stamp_ns``, the older one of both cameras, is what the
    policy names the frame by.
    """

    index: int
    stamp_ns: int
    image_ns: int
    at_ns: int
    parts: tuple[FramePart, ...]


def scan(
    bag: Bag,
    picked: TopicRoles,
    encodings: Collection[str],
    max_gap_s: float,
    first: int = 0,
    last: int | None = None,
) -> BagFrames:
    """The frames ``first`` to ``last`` (counted from 0, ``last`` included) of the bag.

    BagError: time goes back (the bag loops, or the clock was set) or jumps ahead by more than
    ``max_gap_s``, stamps are zero, or the images are in an encoding that no policy reads.
    """
    name = picked.topics["image"].name
    times: list[FrameTime] = []
    repeated = late = 0
    newest = 0
    index = -1
    for message in bag.messages([name]):
        index += 1
        if index < first or (last is not None and index > last):
            continue
        if not times:
            _check_image(bag, picked, message, encodings)
        stamp = header_stamp(bag, message)
        if stamp <= 0:
            raise BagError(f"{name}: frame {index} has no stamp: the camera driver left it zero")
        step = stamp - newest if times else 1
        if step == 0:
            repeated += 1
        elif step < -_LOOP_NS:
            raise BagError(
                f"{name}: time goes back by {-step / SECOND:.1f} s at frame {index} (the bag loops,"
                f" or the clock was set): replay a part, such as --frames {first}:{index - 1}"
            )
        elif step < 0:
            late += 1
        elif times and step > max_gap_s * SECOND:
            raise BagError(
                f"{name}: time jumps ahead by {step / SECOND:.1f} s at frame {index}: replay a"
                f" part, such as --frames {first}:{index - 1}, or allow it with --max-gap"
            )
        else:
            newest = stamp
            times.append(FrameTime(stamp, message.stamp_ns))
    if not times:
        raise BagError(f"{name} has {index + 1} frames: none of them is in --frames")
    return BagFrames(tuple(times), repeated, late)


def _check_image(
    bag: Bag, picked: TopicRoles, message: BagMessage, encodings: Collection[str]
) -> None:
    content = bag.decode(message)
    if picked.compressed:
        if not bytes(content.data[:4]).startswith(_IMAGES):
            raise BagError(
                f"{message.topic}: compressed as {str(content.format)[:40]!r}: only JPEG and PNG"
                " can be read"
            )
        return
    if content.encoding not in encodings:
        raise BagError(
            f"{message.topic}: encoding {str(content.encoding)[:40]!r} is not supported, only"
            f" {', '.join(encodings)}"
        )
    if len(content.data) != content.step * content.height:
        raise BagError(
            f"{message.topic}: an image has {len(content.data)} bytes, its step x height is"
            f" {content.step * content.height}"
        )


def read_frames(
    bag: Bag, picked: TopicRoles, frames: BagFrames, needs: Sequence[str], slop_ns: int
) -> Iterator[BagFrame]:
    """Every frame with its companions ``needs``: of each role the message nearest in stamp, at
    most ``slop_ns`` away, as the policy node joins them. A frame that lacks one comes without.

    BagError: the bag has no message of a role at all.
    """
    lookups = [lookup(bag, picked, role) for role in needs]
    name = picked.topics["image"].name
    expected = iter(frames.times)
    due = next(expected)
    index = 0
    for message in bag.messages([name]):
        stamp = header_stamp(bag, message)
        if (stamp, message.stamp_ns) != (due.stamp_ns, due.at_ns):
            continue
        found = [one.nearest(stamp, slop_ns) for one in lookups]
        companions = [part for part in found if part is not None]
        oldest = min([stamp, *(p.stamp_ns for p in companions if p.role == "wrist_image")])
        parts = (*companions, FramePart("image", stamp, message.data))
        yield BagFrame(index, oldest, stamp, message.stamp_ns, parts)
        index += 1
        following = next(expected, None)
        if following is None:
            return
        due = following


def lacking(frame: BagFrame, needs: Sequence[str], slop_ns: int) -> str:
    """Why the policy cannot answer this frame; empty when it can."""
    there = {part.role for part in frame.parts}
    missing = [role for role in needs if role not in there]
    return f"no {' and no '.join(missing)} within {slop_ns / MS:.0f} ms" if missing else ""
