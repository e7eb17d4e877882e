"""A bag's video as images: what a topic of packets holds is read as sensor_msgs/Image.

Whoever reads a bag knows images alone. A packet that cannot be decoded (no key frame came yet, one
was lost) is left out, and counted in a line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vla_ros.core.clock import SECOND
from vla_ros.core.pixels import BadMessage
from vla_ros.core.video import VIDEOS, VideoDecoder, codec_of
from vla_ros.data.bag_writer import typestore

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
_MOST_PIXELS = 64_000_000
_VIDEOS = frozenset(VIDEOS.values())


def is_video(kind: str, first: Callable[[], bytes | None]) -> bool:
    """Whether messages of that type are video; ``first`` reads a topic's first message."""
    if kind != COMPRESSED:
        return kind in _VIDEOS
    data = first()
    if data is None:
        return False
    try:
        image: Any = typestore().deserialize_cdr(data, kind)
        return bool(codec_of(str(image.format)))
    except Exception:  # the parser raises whatever malformed bytes make it raise: said when read
        return False


class TopicVideo:
    """The packets of one topic, in their order. ``why`` the first was left out, of ``left``."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._decoder = VideoDecoder(_MOST_PIXELS)
        self.decoded = self.left = 0
        self.why = ""

    def image(self, data: bytes) -> bytes | None:
        """The serialized sensor_msgs/Image of a packet; None: it cannot be decoded."""
        try:
            content = typestore().deserialize_cdr(data, self._kind)
            made = self._made(content)
        except BadMessage as error:
            self.left += 1
            self.why = self.why or str(error)
            return None
        self.decoded += 1
        return bytes(typestore().serialize_cdr(made, IMAGE))

    def _made(self, content: Any) -> Any:
        types = typestore().types
        if self._kind == VIDEOS["foxglove"]:
            header: Any = types["std_msgs/msg/Header"](
                stamp=content.timestamp, frame_id=content.frame_id
            )
        else:
            header = content.header
        format_ = content.encoding if self._kind == VIDEOS["ffmpeg"] else content.format
        stamp_ns = header.stamp.sec * SECOND + header.stamp.nanosec
        pixels = self._decoder.put(stamp_ns, str(format_), content.data)
        assert pixels is not None
        height, width = pixels.shape[:2]
        return types[IMAGE](
            header=header,
            height=height,
            width=width,
            encoding="rgb8",
            is_bigendian=0,
            step=3 * width,
            data=np.ascontiguousarray(pixels).reshape(-1),
        )

    def note(self, topic: str) -> str:
        """A line about what was left out; "": nothing was."""
        if not self.left:
            return ""
        return f"{topic}: {self.left} of {self.left + self.decoded} packets left out: {self.why}"
