"""Image sequences as bytes: AVIF, so a still table costs nothing after the first frame.

Measured on the tabletop at 128 px, bytes a frame: PNG 14800, JPEG (quality 90) 4600, gzip along
time 5500, WebP (80) 1700, AVIF sequence (60) 670 with a mean error of 1.7 of 255, less than
WebP's. That is what lets 70,000 frames fit into 50 MB. Pillow >= 11.3 writes and reads them.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image as PILImage
from PIL import features

from vla_ros.core import Image
from vla_ros.errors import UserError

QUALITY = 60
_SPEED = 8  # 0 slow and small to 10


def encode(frames: Image) -> bytes:
    """uint8 [T, size, size, 3] -> one AVIF sequence (which carries the time of day)."""
    _need_avif()
    pictures = [PILImage.fromarray(frame) for frame in frames]
    stream = io.BytesIO()
    pictures[0].save(
        stream,
        "AVIF",
        save_all=True,
        append_images=pictures[1:],
        duration=50,
        quality=QUALITY,
        speed=_SPEED,
        subsampling="4:4:4",  # the colour is what the sentence names
        max_threads=1,
    )
    return stream.getvalue()


def decode(data: bytes) -> Image:
    """The frames [T, size, size, 3] of :func:`encode`, nearly."""
    _need_avif()
    with PILImage.open(io.BytesIO(data)) as sequence:
        count = getattr(sequence, "n_frames", 1)
        out = np.empty((count, sequence.height, sequence.width, 3), np.uint8)
        for number in range(count):
            sequence.seek(number)
            out[number] = np.asarray(sequence.convert("RGB"))
    return out


def _need_avif() -> None:
    if not features.check("avif"):
        raise UserError("this Pillow has no AVIF: pip install 'Pillow>=11.3'")
