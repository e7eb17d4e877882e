"""Pillow's ``resize`` as two matrices of whole numbers, one an axis. No torch.

An axis of Pillow's filter is a product: each of the new pixels is a weighted sum of old ones, in
fixed point of 22 bits, rounded to a byte before the other axis is done. Whoever takes the same
whole numbers as weights gets the same bytes, if in the same order: Pillow long did the horizontal
axis first, 13.0 often the vertical one (:func:`vertical_first` asks it).
Source: Pillow ``src/libImaging/Resample.c`` (``precompute_coeffs``, ``normalize_coeffs_8bpc``), for
``nearest`` ``Geometry.c`` (``ImagingScaleAffine``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image as PILImage

PRECISION = 22  # bits behind the point of a weight
BYTES = 3  # that a weight has
_TRIES, _PIXELS, _COLUMNS = 32, 20_000, 16  # pictures, pixels at least; columns of each

Weights = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Placing:
    """How a picture becomes a square: ``left`` and ``top`` lines of padding at both ends, then
    scaled to ``high`` x ``wide``, of which the square at (``cut_top``, ``cut_left``) stays."""

    top: int
    left: int
    high: int
    wide: int
    cut_top: int
    cut_left: int


def placing(height: int, width: int, size: int, strategy: str) -> Placing:
    """The steps of :func:`vla_ros.engine.vision.images.fit`, which names the strategies."""
    top = left = 0
    if strategy == "letterbox":
        side = max(height, width)
        top, left = (side - height) // 2, (side - width) // 2
    high = wide = size
    if strategy != "resize-naive":
        high, wide = _short_side(height + 2 * top, width + 2 * left, size)
    # torchvision's center_crop, which rounds half to even
    return Placing(top, left, high, wide, round((high - size) / 2), round((wide - size) / 2))


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
        centre = (to + 0.5) * scale
        begin = max(int(centre - support * widened + 0.5), 0)
        end = min(int(centre + support * widened + 0.5), length)
        found = [curve((at - centre + 0.5) * (1.0 / widened)) for at in range(begin, end)]
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


@lru_cache(maxsize=32)
def vertical_first(height: int, width: int, high: int, wide: int, interpolation: str) -> bool:
    """Whether the Pillow that is installed shrinks the columns of such pictures before the rows.

    Found by letting it resize noise, black and white and grey in turn, of which some columns are
    made in both orders: of black and white alone a short filter makes the same in either.
    """
    if height == high or width == wide or interpolation == "nearest":
        return False
    kernel = PILImage.Resampling[interpolation.upper()]
    # In float64, which is exact here, for numpy multiplies whole numbers slowly.
    rows = pillow_weights(height, high, interpolation).astype(np.float64)
    columns = pillow_weights(width, wide, interpolation).astype(np.float64)
    random, wrong = np.random.default_rng(0), (0, 0)
    # Of few pixels the order may make no difference.
    for turn in range(max(_TRIES, _PIXELS // (height * width))):
        levels, step = ((2, 255), (256, 1))[turn % 2]
        dots = random.integers(0, levels, (height, width), np.uint16).astype(np.uint8)
        dots *= np.uint8(step)
        # All three channels: a grey picture might be resized in another way.
        picture = PILImage.fromarray(np.repeat(dots[..., None], 3, axis=2))
        found = np.asarray(picture.resize((wide, high), kernel))[..., 0]
        for at in {wide * part // _COLUMNS for part in range(_COLUMNS)}:
            seen = np.flatnonzero(columns[at])
            near, weights = dots[:, seen].astype(np.float64), columns[at, seen]
            across = _bytes(rows @ _bytes(near @ weights)) != found[:, at]
            down = _bytes(_bytes(rows @ near) @ weights) != found[:, at]
            wrong = wrong[0] + int(across.sum()), wrong[1] + int(down.sum())
        if wrong[0] != wrong[1]:
            break
    return wrong[1] < wrong[0]


def _bytes(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.clip(np.floor(sums / (1 << PRECISION) + 0.5), 0, 255)


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


#: how far each reaches, in pixels of the smaller picture, and its curve
_FILTERS: dict[str, tuple[float, Callable[[float], float]]] = {
    "box": (0.5, _box),
    "bilinear": (1.0, _bilinear),
    "hamming": (1.0, _hamming),
    "bicubic": (2.0, _bicubic),
    "lanczos": (3.0, _lanczos),
}
