"""Serialized images and texts, read here: pixels without a copy, texts as they were sent.

What is read is checked against the bytes that there are, and nothing raises but
:class:`BadMessage`. For all other messages see :mod:`vla_ros.nodes.common.listening`.
"""

from __future__ import annotations

from dataclasses import dataclass

from vla_ros.nodes.common.structure import Bytes
from vla_ros.pixels import BadMessage, quoted
from vla_ros.timing import SECOND


@dataclass(frozen=True, slots=True)
class RawImage:
    """The fields of a sensor_msgs/Image, ``stamp_ns`` as its header has it; ``data`` is a view."""

    stamp_ns: int
    height: int
    width: int
    encoding: str
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
    reader.take(1, "is_bigendian")
    step = reader.whole()
    return RawImage(stamp_ns, height, width, encoding, step, reader.octets("data"))


def read_compressed(raw: bytes) -> RawCompressedImage:
    """A serialized sensor_msgs/CompressedImage. Raises :class:`BadMessage`."""
    reader = _Reader(raw)
    stamp_ns = reader.stamp()
    reader.text("frame_id")
    return RawCompressedImage(stamp_ns, reader.text("format"), reader.octets("data"))


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
        """A string. Nobody's ``frame_id`` is worth a picture: what is no text is left as it is."""
        found = self.string(name)
        if found and found[-1] != 0:
            raise BadMessage(f"{name} {quoted(found.decode('utf-8', 'replace'))} does not end")
        return found[:-1].decode("utf-8", "replace")


def _decoded(text: bytes, name: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise BadMessage(f"{name} is not UTF-8: {error.reason} at byte {error.start}") from None
