"""Packets of H.264 and H.265 as encoders of cameras make them, and a camera's images in them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from vla_ros.core.types import Image

SIZE = (160, 120)


def shade(i: int) -> int:
    """Gray of image ``i``: no other of 50 has it."""
    return 5 * (i % 50)


def packets(
    count: int,
    codec: str = "libx264",
    key_every: int = 10,
    size: tuple[int, int] = SIZE,
    **more: str,
) -> list[bytes]:
    """One packet an image, each of its own gray with a red bar that moves."""
    import av

    context = av.CodecContext.create(codec, "w")
    context.width, context.height = size
    context.pix_fmt, context.time_base = "yuv420p", Fraction(1, 30)
    context.framerate, context.gop_size = 30, key_every
    options = {"preset": "ultrafast", "tune": "zerolatency", **more}
    context.max_b_frames = int(options.pop("b_frames", "0"))
    context.options = options
    found: list[bytes] = []
    for i in range(count):
        image = np.full((size[1], size[0], 3), shade(i), np.uint8)
        image[: size[1] // 2, 2 * (i % 50) : 2 * (i % 50) + 20] = (255, 0, 0)
        frame = av.VideoFrame.from_ndarray(image, "rgb24")
        frame.pts = i
        found += map(bytes, context.encode(frame))
    found += map(bytes, context.encode(None))
    return found


def shade_of(image: Image) -> int:
    """Gray of a decoded image, where no bar is."""
    return int(image[-5:, -5:].mean().round())
