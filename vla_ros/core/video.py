"""A camera's H.264 or H.265 stream to pixels: one packet a frame, by PyAV.

A decoder holds state: a frame is made of the packet and of frames before it. After a lost packet
FFmpeg goes on and makes up what it lacks, so losses are looked for here, in the frame numbers of
the slices (ITU-T H.264, 7.3.3 and 7.4.3); of H.265 FFmpeg refuses them itself. From a loss on
nothing is decoded until the next key frame.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np

from vla_ros.core.pixels import BadMessage, quoted
from vla_ros.core.types import Image

#: image_transport's name of a transport of packets -> the type of its messages
VIDEOS = {
    "ffmpeg": "ffmpeg_image_transport_msgs/msg/FFMPEGPacket",
    "foxglove": "foxglove_msgs/msg/CompressedVideo",
}
_START = b"\0\0\1"
_H264, _H265 = "h264", "hevc"
_MOST_BYTES = 16 << 20  # of a packet; a key frame of 8 megapixels has 2 MB
_HEAD = 512  # bytes of a unit that are looked at
# Types of units: of H.264, and of H.265 (key frames: those that begin a sequence).
_SLICE, _KEY_SLICE, _SEQUENCE = 1, 5, 7
_KEYS_265, _OTHERS_265 = range(16, 24), 32
_LEAST_WRAP = 12  # a number of 4 bits is the same again after 16 frames
_NO_KEY = "no key frame has come yet"
_WITH_CHROMA = (44, 83, 86, 100, 110, 118, 122, 128, 134, 135, 138, 139, 144, 244)


class NoDecoder(BadMessage):
    """PyAV is not installed."""


def codec_of(format_: str) -> str:
    """FFmpeg's name of a packet's codec, from "h264", "libx264", "h264_nvenc;yuv420p;bgr8" and
    the like; "": it is no video that is decoded here."""
    name = format_.partition(";")[0].strip().lower()
    if "264" in name:
        return _H264
    return _H265 if "265" in name or "hevc" in name else ""


def need_av() -> Any:
    """PyAV. Raises :class:`NoDecoder`."""
    try:
        import av
    except ImportError as error:
        raise NoDecoder(f"video needs PyAV ({error}): pip install 'vla_ros[video]'") from None
    return av


class VideoDecoder:
    """Decoder of one camera's packets, in their order. Not thread-safe."""

    def __init__(self, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        self._codec = ""
        self._context: Any = None
        self._stream = _Stream()
        self._newest_ns = 0
        self._periods: deque[int] = deque(maxlen=_LEAST_WRAP)  # between the last packets, ns
        self._broken = _NO_KEY  # why nothing is decoded; "": it is

    def put(self, stamp_ns: int, format_: str, data: Any, convert: bool = True) -> Image | None:
        """Uint8 [height, width, 3] RGB of a packet, the frame of ``stamp_ns``; None where it is not
        to be converted. Every packet must be put.

        Raises :class:`BadMessage`: it cannot be decoded, or is made of a frame that was lost.
        """
        self._open(codec_of(format_), format_)
        packet = bytes(data)
        if len(packet) > _MOST_BYTES:
            raise self._lost(f"a packet of {len(packet):,} bytes, at most {_MOST_BYTES:,} are read")
        if not packet.startswith((_START, b"\0" + _START)):
            raise self._lost("a packet does not begin with a start code (Annex B)")
        try:
            key, why = self._stream.follow(packet, self._codec, self._max_pixels)
        except IndexError:
            raise self._lost("a packet is cut off") from None
        if why:
            raise self._lost(why)
        if self._broken and not key:
            raise self._lost(self._broken)
        since_ns, self._newest_ns = stamp_ns - self._newest_ns, stamp_ns
        if key:
            self._periods.clear()
        elif since_ns <= 0:
            raise self._lost("a packet is not newer than the one before it")
        elif self._periods and since_ns > _LEAST_WRAP * median(self._periods):
            raise self._lost("frames before a packet were lost")
        else:
            self._periods.append(since_ns)
        return self._decode(packet, stamp_ns, key, convert)

    def _open(self, codec: str, format_: str) -> None:
        if not codec:
            raise BadMessage(
                f"video, format {quoted(format_)}, is not decoded, only h264 and h265: let its"
                " encoder make one of them"
            )
        if codec == self._codec:
            return
        av = need_av()
        self._codec, self._stream, self._broken = codec, _Stream(), _NO_KEY
        self._context = context = av.CodecContext.create(codec, "r")
        context.options = {"max_pixels": str(self._max_pixels), "err_detect": "explode"}
        context.flags |= av.codec.context.Flags.low_delay  # a frame comes with its packet
        context.thread_type, context.thread_count = "SLICE", 1

    def _lost(self, why: str) -> BadMessage:
        """Begin anew with the next key frame; the first cause stays."""
        if self._broken in ("", _NO_KEY) or why.startswith("its "):
            self._broken = why
        if self._context is not None and self._context.is_open:
            self._context.flush_buffers()
        self._stream.last = None
        return BadMessage(f"video: {self._broken}: nothing is decoded before the next key frame")

    def _decode(self, packet: bytes, stamp_ns: int, key: bool, convert: bool) -> Image | None:
        av = need_av()
        given = av.Packet(packet)
        given.pts = stamp_ns
        try:
            frames = self._context.decode(given)
        except (av.error.FFmpegError, ValueError):
            raise self._lost("a packet is damaged, or made of a frame that was lost") from None
        if not frames or frames[-1].pts != stamp_ns:
            raise self._lost("its encoder reorders frames (B-frames): let it use none")
        if frames[-1].is_corrupt:
            raise self._lost("a packet is damaged")
        self._broken = ""
        return np.ascontiguousarray(frames[-1].to_ndarray(format="rgb24")) if convert else None


class _Stream:
    """What the heads of a stream's units say: where a key frame is, and, of H.264, which frame each
    follows. ``last``: number of the last reference frame."""

    def __init__(self) -> None:
        self.last: int | None = None
        self._bits = 0  # of a number; 0: no parameters of the sequence have come
        self._planes = False

    def follow(self, packet: bytes, codec: str, max_pixels: int) -> tuple[bool, str]:
        """Whether a packet is a key frame, and why its frame cannot be made. IndexError: it is cut
        off."""
        for unit in _units(packet):
            if codec == _H265:
                if (kind := unit[0] >> 1 & 63) < _OTHERS_265:
                    return kind in _KEYS_265, ""
                continue
            kind = unit[0] & 31
            if kind == _SEQUENCE:
                if why := self._sequence(_BitReader(unit[1:]), max_pixels):
                    return True, why
            elif kind in (_SLICE, _KEY_SLICE):
                key = kind == _KEY_SLICE
                return key, self._slice(_BitReader(unit[1:]), key, bool(unit[0] & 0x60))
        return False, ""

    def _slice(self, bits: _BitReader, key: bool, reference: bool) -> str:
        """Judge the first slice of a frame."""
        if not self._bits:
            return _NO_KEY
        for _ in range(3):  # first_mb_in_slice, slice_type, pic_parameter_set_id
            bits.golomb()
        if self._planes:
            bits.take(2)
        number = bits.take(self._bits)
        last = number if key else self.last
        if last is None:
            return ""  # nothing is decoded: the cause is known
        ahead = (number - last) % (1 << self._bits)
        self.last = number if reference else last
        return "frames before a packet were lost" if ahead > 1 else ""

    def _sequence(self, bits: _BitReader, max_pixels: int) -> str:
        """Read the parameters of a sequence as far as they are needed."""
        profile = bits.take(8)
        bits.take(16)  # constraints, level
        bits.golomb()  # seq_parameter_set_id
        self._planes = False
        if profile in _WITH_CHROMA:
            chroma = bits.golomb()
            self._planes = chroma == 3 and bool(bits.take(1))
            bits.golomb(), bits.golomb(), bits.take(1)  # depths, qpprime_y_zero_transform_bypass
            if bits.take(1):
                for number in range(12 if chroma == 3 else 8):
                    if bits.take(1):
                        _skip_scaling(bits, 16 if number < 6 else 64)
        self._bits = 4 + bits.golomb()
        order = bits.golomb()
        if order == 0:
            bits.golomb()
        elif order == 1:
            bits.take(1), bits.golomb(), bits.golomb()
            for _ in range(min(bits.golomb(), 255)):
                bits.golomb()
        bits.golomb()  # max_num_ref_frames
        if bits.take(1):
            return "its encoder makes layers of time, in which no loss is seen: let it use none"
        width, height = 16 * (bits.golomb() + 1), 16 * (bits.golomb() + 1) * (2 - bits.take(1))
        if width * height > max_pixels + 16 * (width + height):  # it is cropped from whole blocks
            return f"its images of {width}x{height} exceed max_image_pixels {max_pixels}"
        return ""


def _skip_scaling(bits: _BitReader, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.signed()) % 256
        last = following or last


def _units(packet: bytes) -> Iterator[bytes]:
    """The first bytes of each NAL unit, without those that keep start codes out."""
    at = packet.find(_START)
    while at >= 0:
        head = at + len(_START)
        at = packet.find(_START, head)
        unit = packet[head : min(at if at >= 0 else len(packet), head + _HEAD)]
        if unit:
            yield unit.replace(b"\0\0\3", b"\0\0")


class _BitReader:
    """Bits of a unit, the most significant first. IndexError: there are no more."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> int:
        value = 0
        for _ in range(count):
            byte = self._data[self._at >> 3]
            value = value << 1 | byte >> (7 - (self._at & 7)) & 1
            self._at += 1
        return value

    def golomb(self) -> int:
        """An unsigned number in Exp-Golomb code."""
        zeros = 0
        while not self.take(1):
            zeros += 1
        return (1 << zeros) - 1 + self.take(zeros)

    def signed(self) -> int:
        code = self.golomb()
        return (code + 1) // 2 if code & 1 else -(code // 2)
