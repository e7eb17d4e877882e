"""The messages that belong to a frame beside the camera's: found by their stamps of capture."""

from __future__ import annotations

import bisect
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from vla_ros.replay.bag import Bag, BagMessage
from vla_ros.replay.errors import BagError
from vla_ros.replay.topics import Picked
from vla_ros.timing import SECOND


@dataclass(frozen=True, slots=True)
class Part:
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
    """The same message with another stamp in its header."""
    out = bytearray(data)
    struct.pack_into(f"{'<' if data[1] & 1 else '>'}iI", out, 4, *divmod(stamp_ns, SECOND))
    return bytes(out)


def require(picked: Picked, needs: Sequence[str]) -> None:
    """BagError: the bag has no topic for something that the policy needs."""
    for role in needs:
        if picked.name(role) is None:
            raise BagError(
                f"the policy needs {role}, which the bag lacks: name its topic with -r"
                f" {role}=TOPIC, or choose another policy"
            )


def lookup(bag: Bag, picked: Picked, role: str) -> Held | Streamed:
    """What finds the companion of a frame. BagError: the bag has no topic of this role."""
    require(picked, [role])
    name = picked.topics[role].name
    return Streamed(bag, role, name) if role == "wrist_image" else Held(bag, role, name)


class Held:
    """Small messages, all in memory, in any order."""

    def __init__(self, bag: Bag, role: str, name: str) -> None:
        self._role = role
        found = {header_stamp(bag, m): m.data for m in bag.messages([name])}
        self._stamps = sorted(found)
        self._data = found

    def nearest(self, stamp: int, slop_ns: int) -> Part | None:
        i = bisect.bisect_left(self._stamps, stamp)
        near = self._stamps[max(0, i - 1) : i + 1]
        return _nearest(self._role, stamp, slop_ns, [(s, self._data[s]) for s in near])


class Streamed:
    """Images, read along with the frames; ``nearest`` must be asked in the order of stamps."""

    def __init__(self, bag: Bag, role: str, name: str) -> None:
        self._role = role
        self._messages = ((header_stamp(bag, m), m.data) for m in bag.messages([name]))
        self._near: deque[tuple[int, bytes]] = deque()

    def nearest(self, stamp: int, slop_ns: int) -> Part | None:
        while not self._near or self._near[-1][0] < stamp + slop_ns:
            following = next(self._messages, None)
            if following is None:
                break
            self._near.append(following)
        while self._near and self._near[0][0] < stamp - slop_ns:
            self._near.popleft()
        return _nearest(self._role, stamp, slop_ns, list(self._near))


def _nearest(role: str, stamp: int, slop_ns: int, near: list[tuple[int, bytes]]) -> Part | None:
    if not near:
        return None
    best, data = min(near, key=lambda item: (abs(item[0] - stamp), item[0]))
    return Part(role, best, data) if abs(best - stamp) <= slop_ns else None
