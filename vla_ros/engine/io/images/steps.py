"""Images to squares in numpy and Pillow: every step by its definition, to the byte. No torch.

Three families of steps. Pillow's ``resize`` is two matrices of whole numbers, one an axis: each new
pixel is a weighted sum of old ones, in fixed point of 22 bits, rounded to a byte before the other
axis is done. Whoever takes the same whole numbers as weights gets the same bytes, if in the same
order, which is the horizontal axis first (:func:`pillow_resize`). Source: Pillow
``src/libImaging/Resample.c`` (``precompute_coeffs``, ``normalize_coeffs_8bpc``), for ``nearest``
``Geometry.c`` (``ImagingScaleAffine``).

The steps of the published LIBERO evaluation: OpenVLA and OpenVLA-OFT treat every camera alike: turn
the frame by 180 degrees, encode and decode it as JPEG, resize with Lanczos-3, for checkpoints
trained with crop augmentation cut the center out, then normalize as the checkpoint says. They turn
what OpenGL draws, the bottom row first. Here a frame is the image as a camera shows it, the top
row first; so what is left of the turn is a :func:`mirror`: these checkpoints know the world with
left and right exchanged. Sources: openvla ``experiments/robot/libero/libero_utils.py``
(``get_libero_image``, ``resize_image``) and ``experiments/robot/openvla_utils.py``
(``crop_and_resize``), openvla-oft ``resize_image_for_policy`` and ``center_crop_image``;
TensorFlow's ``scale_and_translate_op.cc``, ``crop_and_resize_op.cc`` and ``jpeg_mem.cc`` for what
the functions they call compute.

JPEG decoded as TensorFlow does by default: fast inverse DCT, smooth chroma. Pillow decodes with the
accurate DCT, or, in its draft mode, with the fast one and chroma samples repeated. So the planes
are taken from the draft mode, and what it leaves out is done here as libjpeg(-turbo) does it:
``h2v2_fancy_upsample`` (jdsample.c) and ``ycc_rgb_convert`` (jdcolor.c), in its integer arithmetic.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image as PILImage
from PIL import JpegImagePlugin

from vla_ros.core.types import Image

PRECISION = 22  # bits behind the point of a weight
BYTES = 3  # that a weight has

CROP_AREA = 0.9
JPEG_QUALITY = 95  # tf.image.encode_jpeg's default, with the chroma at half the resolution
LANCZOS_RADIUS = 3.0
_HALF = 1 << 15

Weights = npt.NDArray[np.int64]
_Float32s = npt.NDArray[np.float32]
_Ints = npt.NDArray[np.int32]


def refuse_unless_image(image: Image) -> None:
    """ValueError where it is no camera's uint8 [h, w, 3]."""
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or 0 in image.shape:
        raise ValueError(f"image is {image.dtype} {image.shape}: give uint8 [h, w, 3]")


@dataclass(frozen=True, slots=True)
class Padding:
    """Padding and cut that make a square of an image: ``left`` and ``top`` lines of padding at
    both ends, then scaled to ``high`` x ``wide``, of which the square at (``cut_top``,
    ``cut_left``) stays."""

    top: int
    left: int
    high: int
    wide: int
    cut_top: int
    cut_left: int


def placing(height: int, width: int, size: int, strategy: str) -> Padding:
    """The steps of :func:`~.preprocessor.fit`, which names the strategies."""
    top = left = 0
    if strategy == "letterbox":
        side = max(height, width)
        top, left = (side - height) // 2, (side - width) // 2
    high = wide = size
    if strategy != "resize-naive":
        high, wide = _short_side(height + 2 * top, width + 2 * left, size)
    # torchvision's center_crop, which rounds half to even
    return Padding(top, left, high, wide, round((high - size) / 2), round((wide - size) / 2))


def _short_side(high: int, wide: int, wanted: int) -> tuple[int, int]:
    """(height, width) with the short side as wanted, the long one cut to a whole number."""
    if wide <= high:
        return int(wanted * high / wide), wanted
    return wanted, int(wanted * wide / high)


@lru_cache(maxsize=32)
def pillow_weights(length: int, size: int, interpolation: str) -> Weights:
    """Whole numbers [size, length]: what each of ``length`` pixels adds to each of ``size``, times
    2**22. ``interpolation`` is one of Pillow's names in small letters; ValueError for another."""
    if interpolation == "nearest":
        return _nearest(length, size)
    if interpolation not in _FILTERS:
        names = ", ".join(("nearest", *_FILTERS))
        raise ValueError(f"interpolation is {interpolation!r}: give one of {names}")
    support, curve = _FILTERS[interpolation]
    scale = length / size
    widened = max(scale, 1.0)
    weights = np.zeros((size, length), np.int64)
    for to in range(size):
        center = (to + 0.5) * scale
        begin = max(int(center - support * widened + 0.5), 0)
        end = min(int(center + support * widened + 0.5), length)
        found = [curve((at - center + 0.5) * (1.0 / widened)) for at in range(begin, end)]
        total = sum(found)
        for at, weight in enumerate(found, begin):
            share = weight / total if total else weight
            weights[to, at] = int(share * (1 << PRECISION) + math.copysign(0.5, share))
    return weights


def bytes_of(weights: Weights) -> npt.NDArray[np.float32]:
    """Weights [size, length] as float32 [3, size, length], whole numbers from -128 to 127, the
    highest first: weights = (a * 256 + b) * 256 + c.

    A sum of bytes times such parts is a whole number below 2**24 for up to 514 pixels that are not
    0, so float32, and even TF32 with its sums in float32, has it to the last bit in whatever order.
    """
    parts = []
    for _ in range(BYTES - 1):
        low = ((weights + 128) & 255) - 128
        parts.append(low)
        weights = (weights - low) >> 8
    return np.stack([weights, *reversed(parts)]).astype(np.float32)


def pillow_resize(picture: PILImage.Image, wide: int, high: int, kernel: int) -> PILImage.Image:
    """``picture`` at another size: its rows first, whatever Pillow is installed.

    An axis at a time, as every Pillow up to 12 did it and checkpoints were trained: 13.0 does the
    columns of some portrait images first, and other bytes come of it (up to 17 levels).
    """
    for size in ((wide, picture.height), (wide, high)):
        if picture.size != size:
            picture = picture.resize(size, PILImage.Resampling(kernel))
    return picture


def _nearest(length: int, size: int) -> Weights:
    steps = np.full(size, length / size)
    steps[0] = length / size * 0.5
    places = np.minimum(np.cumsum(steps).astype(np.int64), length - 1)
    weights = np.zeros((size, length), np.int64)
    weights[np.arange(size), places] = 1 << PRECISION
    return weights


def _box(x: float) -> float:
    return 1.0 if -0.5 < x <= 0.5 else 0.0


def _bilinear(x: float) -> float:
    return max(1.0 - abs(x), 0.0)


def _hamming(x: float) -> float:
    x = abs(x)
    if x == 0.0:
        return 1.0
    if x >= 1.0:
        return 0.0
    return math.sin(x * math.pi) / (x * math.pi) * (0.54 + 0.46 * math.cos(x * math.pi))


def _bicubic(x: float) -> float:
    x = abs(x)
    if x < 1.0:
        return (1.5 * x - 2.5) * x * x + 1.0
    return (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5 if x < 2.0 else 0.0


def _sinc(x: float) -> float:
    return math.sin(x * math.pi) / (x * math.pi) if x else 1.0


def _lanczos(x: float) -> float:
    return _sinc(x) * _sinc(x / 3.0) if -3.0 <= x < 3.0 else 0.0


#: how far each reaches, in pixels of the smaller image, and its curve
_FILTERS: dict[str, tuple[float, Callable[[float], float]]] = {
    "box": (0.5, _box),
    "bilinear": (1.0, _bilinear),
    "hamming": (1.0, _hamming),
    "bicubic": (2.0, _bicubic),
    "lanczos": (3.0, _lanczos),
}


def mirror(image: Image) -> Image:
    """Exchange left and right."""
    return np.ascontiguousarray(image[:, ::-1])


def jpeg_round_trip(image: Image) -> Image:
    """An image after JPEG, to the bit as TensorFlow's functions by their defaults.

    Encoded: quality 95, chroma 4:2:0. Decoded: with the *fast* inverse transform, which
    TensorFlow takes by default and which differs from the accurate one by up to 10 levels.
    """
    coded = io.BytesIO()
    PILImage.fromarray(image).save(coded, "JPEG", quality=JPEG_QUALITY, subsampling="4:2:0")
    return decode_fast(coded)


def libero_picture(image: Image) -> Image:
    """A camera's image as the published LIBERO evaluations take it, before it is resized."""
    return jpeg_round_trip(mirror(image))


def libero_square(image: Image, size: int) -> Image:
    """A camera's image -> [size, size, 3] as the published LIBERO evaluations make it."""
    return lanczos3(libero_picture(image), size)


def lanczos3(image: Image, size: int) -> Image:
    """To [size, size, 3] as tf.image.resize(method="lanczos3", antialias=True), then rounded.

    The kernel is widened by the factor of reduction, its weights are made to sum to 1, and both
    passes are in float32 without rounding in between (Pillow's LANCZOS rounds there). An image
    of that size comes back as it is.
    """
    height, width = image.shape[:2]
    if (height, width) == (size, size):
        return image
    rows, columns = lanczos_weights(height, size), lanczos_weights(width, size)
    high = rows @ image.reshape(height, width * 3).astype(np.float32)
    wide = columns @ high.reshape(size, width, 3).transpose(1, 0, 2).reshape(width, size * 3)
    out = wide.reshape(size, size, 3).transpose(1, 0, 2)
    return np.clip(np.rint(out), 0, 255).astype(np.uint8)


@lru_cache(maxsize=16)
def lanczos_weights(length: int, size: int) -> _Float32s:
    """Float32 [size, length]: what each of ``length`` pixels adds to each of ``size``."""
    reduction = length / size
    widened = max(reduction, 1.0)
    centers = (np.arange(size) + 0.5) * reduction
    offsets = np.abs(np.arange(length) + 0.5 - centers[:, None]) / widened
    weights = np.where(
        offsets < LANCZOS_RADIUS, np.sinc(offsets) * np.sinc(offsets / LANCZOS_RADIUS), 0.0
    )
    weights /= weights.sum(axis=1, keepdims=True)
    return weights.astype(np.float32)


def center_crop(image: Image) -> Image:
    """Cut 90 % of the area (sides times sqrt 0.9) out of the middle and scale it back.

    Samples as tf.image.crop_and_resize does, bilinear between corner-aligned points, and goes
    back to integers as tf.image.convert_image_dtype does: the whole part of value * 255.5.
    """
    side = math.sqrt(CROP_AREA)
    rows, columns = sample_points(image.shape[0], side), sample_points(image.shape[1], side)
    y0, x0 = np.floor(rows).astype(int), np.floor(columns).astype(int)
    y1 = np.minimum(y0 + 1, image.shape[0] - 1)
    x1 = np.minimum(x0 + 1, image.shape[1] - 1)
    fy, fx = (rows - y0)[:, None, None], (columns - x0)[None, :, None]
    source = image.astype(np.float32) / np.float32(255)
    across = source[:, x0] + (source[:, x1] - source[:, x0]) * fx
    value = np.clip(across[y0] + (across[y1] - across[y0]) * fy, 0, 1)
    return np.minimum(value * np.float32(255.5), 255).astype(np.uint8)


def sample_points(length: int, side: float) -> _Float32s:
    """Float32 [length]: where in ``length`` pixels each of the middle ``side`` of them lies."""
    start = (1 - side) / 2 * (length - 1)
    return (start + np.arange(length) * side).astype(np.float32)


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
