"""JPEG decoded as TensorFlow does by default: fast inverse DCT, smooth chroma.

Pillow decodes with the accurate DCT, or, in its draft mode, with the fast one and chroma
samples repeated. So the planes are taken from the draft mode, and what it leaves out is done
here as libjpeg(-turbo) does it: ``h2v2_fancy_upsample`` (jdsample.c) and ``ycc_rgb_convert``
(jdcolor.c), in its integer arithmetic.
"""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image as PILImage
from PIL import JpegImagePlugin

from vla_ros.core import Image

_Ints = npt.NDArray[np.int32]
_HALF = 1 << 15


def decode_fast(coded: io.BytesIO) -> Image:
    """The uint8 [h, w, 3] of a 4:2:0 JPEG stream; ValueError for any other."""
    with PILImage.open(coded, formats=["JPEG"]) as picture:
        assert isinstance(picture, JpegImagePlugin.JpegImageFile)
        if JpegImagePlugin.get_sampling(picture) != 2:
            raise ValueError("the JPEG's chroma is not 4:2:0")
        picture.draft("YCbCr", picture.size)
        picture.decoderconfig = (1, 1)  # whole size; draft: fast DCT, no smooth chroma
        planes = np.asarray(picture)
    height, width = planes.shape[:2]
    luma = planes[..., 0].astype(np.int32)
    blue, red = (
        _smooth(planes[::2, ::2, channel].astype(np.int32))[:height, :width] - 128
        for channel in (1, 2)
    )
    return _to_rgb(luma, blue, red)


def _smooth(small: _Ints) -> _Ints:
    """Twice the size, each sample 9/16, 3/16, 3/16, 1/16 of the four around it."""
    padded = np.pad(small, 1, mode="edge")
    middle = 3 * padded[1:-1]
    high = np.empty((2 * len(small), padded.shape[1]), np.int32)
    high[::2], high[1::2] = middle + padded[:-2], middle + padded[2:]
    middle = 3 * high[:, 1:-1]
    out = np.empty((len(high), 2 * small.shape[1]), np.int32)
    out[:, ::2] = (middle + high[:, :-2] + 8) >> 4
    out[:, 1::2] = (middle + high[:, 2:] + 7) >> 4
    return out


def _to_rgb(luma: _Ints, blue: _Ints, red: _Ints) -> Image:
    green = (-_fixed(0.34414) * blue - _fixed(0.71414) * red + _HALF) >> 16
    out = np.stack(
        (
            luma + ((_fixed(1.402) * red + _HALF) >> 16),
            luma + green,
            luma + ((_fixed(1.772) * blue + _HALF) >> 16),
        ),
        axis=-1,
    )
    return np.clip(out, 0, 255).astype(np.uint8)


def _fixed(factor: float) -> int:
    return int(factor * 65536 + 0.5)
