"""Serialized images and texts, read here: pixels without a copy, texts as they were sent.

What is read is checked against the bytes that there are, and nothing raises but
:class:`BadMessage`. For all other messages see :mod:`vla_ros.ros.common.listening`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

from rosidl_parser.definition import (
    AbstractSequence,
    AbstractString,
    Array,
    BasicType,
    NamespacedType,
)

from vla_ros.core.clock import SECOND
from vla_ros.core.pixels import BadMessage, quoted

# Whether serialized bytes can be a message of some type, before native code reads them.
#
# Fast CDR (2.3.0) steps over padding without looking where the bytes end, so a message that is cut
# short before a string is read far behind its buffer: a segmentation fault that no ``except`` sees.
# What passes here ends inside the bytes that there are, whatever it says.
#
# Layout: OMG DDS-XTypes 1.3, section 7.4, plain CDR of version 1 and 2.


HEAD: Final = 4  # bytes of encapsulation; alignment counts from behind it
#: encapsulation -> byte order and the widest alignment
ENCAPSULATIONS: Final = {b"\0\0": (">", 8), b"\0\1": ("<", 8), b"\0\6": (">", 4), b"\0\7": ("<", 4)}
_SIZES = {
    "boolean": 1, "octet": 1, "char": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2,
    "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "float": 4, "double": 8,
}  # fmt: skip


class Bytes:
    """A message's body and how far it has been walked."""

    __slots__ = ("at", "body", "end", "order", "widest")

    def __init__(self, raw: bytes) -> None:
        order, self.widest = encapsulation(raw)
        self.order: Any = "little" if order == "<" else "big"
        self.body = memoryview(raw)[HEAD:]
        self.at, self.end = 0, len(self.body)

    def skip(self, size: int, count: int) -> None:
        """``count`` > 0 values of ``size`` bytes."""
        width = min(size, self.widest)
        self.at = -(-self.at // width) * width + size * count
        if self.at > self.end:
            raise self._short(self.at)

    def whole(self) -> int:
        """A uint32."""
        begin = (self.at + 3) & ~3  # aligned; a call of skip() would cost half as much again
        end = self.at = begin + 4
        if end > self.end:
            raise self._short(end)
        return int.from_bytes(self.body[begin:end], self.order)

    def _short(self, wanted: int) -> BadMessage:
        return BadMessage(f"cut short: {self.end} bytes where {wanted} would be needed")


_Walk = Callable[[Bytes], None]


def encapsulation(raw: bytes) -> tuple[str, int]:
    """Byte order of ``struct`` and the widest alignment. Raises :class:`BadMessage`."""
    found = ENCAPSULATIONS.get(bytes(raw[:2]))
    if len(raw) < HEAD or found is None:
        raise BadMessage(f"encapsulation 0x{bytes(raw[:HEAD]).hex()} is not plain CDR")
    return found


def check(raw: bytes, message_type: Any) -> None:
    """Raises :class:`BadMessage` where the bytes end before the message does."""
    _walk_of(message_type)(Bytes(raw))


@cache
def _walk_of(message_type: Any) -> _Walk:
    return _all([_of(slot) for slot in message_type.SLOT_TYPES] or [_basic(1)])


def _of(slot: Any) -> _Walk:
    if isinstance(slot, BasicType):
        return _basic(_SIZES[slot.typename])
    if isinstance(slot, AbstractString):
        return _string
    if isinstance(slot, NamespacedType):
        return _walk_of(getattr(import_module(".".join(slot.namespaces)), slot.name))
    if isinstance(slot, Array):
        return _repeated(slot.value_type, lambda _: int(slot.size))
    if isinstance(slot, AbstractSequence):
        return _repeated(slot.value_type, Bytes.whole)
    raise TypeError(f"no message of ours has a {type(slot).__name__}")  # wide strings


def _all(walks: list[_Walk]) -> _Walk:
    def walk(found: Bytes) -> None:
        for one in walks:
            one(found)

    return walk


def _basic(size: int) -> _Walk:
    return lambda found: found.skip(size, 1)


def _string(found: Bytes) -> None:
    length = found.whole()
    if length:
        found.skip(1, length)


def _repeated(value_type: Any, count_of: Callable[[Bytes], int]) -> _Walk:
    size = _SIZES[value_type.typename] if isinstance(value_type, BasicType) else 0
    one = _of(value_type)

    def walk(found: Bytes) -> None:
        count = count_of(found)
        if size and count:
            found.skip(size, count)
        elif count > found.end - found.at:  # each takes a byte at least: no loop without end
            raise BadMessage(f"cut short: {found.end - found.at} bytes for {count} elements")
        elif not size:
            for _ in range(count):
                one(found)

    return walk


@dataclass(frozen=True, slots=True)
class RawImage:
    """The fields of a sensor_msgs/Image, ``stamp_ns`` as its header has it; ``data`` is a view."""

    stamp_ns: int
    height: int
    width: int
    encoding: str
    is_bigendian: bool
    step: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class RawCompressedImage:
    """The fields of a sensor_msgs/CompressedImage, ``stamp_ns`` of its header."""

    stamp_ns: int
    format: str
    data: memoryview


def read_image(raw: bytes) -> RawImage:
    """A serialized sensor_msgs/Image. Raises :class:`BadMessage`."""
    reader = _Reader(raw)
    stamp_ns = reader.stamp()
    reader.text("frame_id")
    height, width = reader.whole(), reader.whole()
    encoding = reader.text("encoding")
    bigendian = reader.take(1, "is_bigendian") != b"\0"
    step, data = reader.whole(), reader.octets("data")
    return RawImage(stamp_ns, height, width, encoding, bigendian, step, data)


def read_compressed(raw: bytes) -> RawCompressedImage:
    """A serialized sensor_msgs/CompressedImage. Raises :class:`BadMessage`."""
    reader = _Reader(raw)
    stamp_ns = reader.stamp()
    reader.text("frame_id")
    return RawCompressedImage(stamp_ns, reader.text("format"), reader.octets("data"))


@dataclass(frozen=True, slots=True)
class RawPacket:
    """A packet of video, ``stamp_ns`` of its image; ``format`` names the codec."""

    stamp_ns: int
    format: str
    data: memoryview


def read_ffmpeg(raw: bytes) -> RawPacket:
    """A serialized ffmpeg_image_transport_msgs/FFMPEGPacket. Raises :class:`BadMessage`."""
    reader = _Reader(raw)
    stamp_ns = reader.stamp()
    reader.text("frame_id")
    reader.skip(4, 2)  # width, height
    encoding = reader.text("encoding")
    reader.skip(8, 1)  # pts
    reader.skip(1, 2)  # flags, is_bigendian
    return RawPacket(stamp_ns, encoding, reader.octets("data"))


def read_foxglove(raw: bytes) -> RawPacket:
    """A serialized foxglove_msgs/CompressedVideo. Raises :class:`BadMessage`."""
    reader = _Reader(raw)
    stamp_ns = reader.stamp()
    reader.text("frame_id")
    data = reader.octets("data")
    return RawPacket(stamp_ns, reader.text("format"), data)


def header_stamp(raw: bytes) -> int:
    """The stamp, in ns, of a serialized message that begins with a std_msgs/Header.

    Reads 12 bytes, so that watching a camera costs nothing for its pixels.
    Raises :class:`BadMessage`, also for a time before 1970 and for a second of nanoseconds.
    """
    sec, nanosec = _Reader(raw).seconds()
    if sec < 0 or nanosec >= SECOND:
        raise BadMessage(f"header stamp of {sec} s and {nanosec} ns is none")
    return sec * SECOND + nanosec


def read_text(raw: bytes) -> str:
    """The text of a serialized std_msgs/String. Raises :class:`BadMessage`.

    rclpy cuts a string at its first NUL and replaces what is no UTF-8, so what it hands over
    may read well although the sender said something else.
    """
    text = _Reader(raw).string("text")
    if not text or text[-1] != 0:
        raise BadMessage("text is cut short")
    return _decoded(text[:-1], "text")


class _Reader(Bytes):
    """Fields of one message, in order."""

    __slots__ = ()

    def take(self, count: int, name: str) -> memoryview:
        """The next bytes as they are."""
        found = self.body[self.at : self.at + count]
        if len(found) != count:
            raise BadMessage(f"{name} is cut short: {count} bytes are said, {len(found)} are there")
        self.at += count
        return found

    def stamp(self) -> int:
        """A builtin_interfaces/Time in ns."""
        sec, nanosec = self.seconds()
        return sec * SECOND + nanosec

    def seconds(self) -> tuple[int, int]:
        """A builtin_interfaces/Time: int32 seconds and uint32 nanoseconds."""
        sec, nanosec = self.whole(), self.whole()
        return sec - ((sec & 1 << 31) << 1), nanosec

    def octets(self, name: str) -> memoryview:
        """A sequence of uint8."""
        return self.take(self.whole(), name)

    def string(self, name: str) -> bytes:
        """A string's bytes, with the NUL that ends it; none at all is what some writers send."""
        return bytes(self.octets(name))

    def text(self, name: str) -> str:
        """A string. Nobody's ``frame_id`` is worth an image: what is no text is left as it is."""
        found = self.string(name)
        if found and found[-1] != 0:
            raise BadMessage(f"{name} {quoted(found.decode('utf-8', 'replace'))} does not end")
        return found[:-1].decode("utf-8", "replace")


def _decoded(text: bytes, name: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise BadMessage(f"{name} is not UTF-8: {error.reason} at byte {error.start}") from None
