"""GR00T's squares: letterbox, center crop and OpenCV's INTER_AREA in numpy, to the last bit.

N1.6 and N1.7 pad an image to a square, N1.5 stretches its middle: :class:`Framing`. Neither is one
of the resizes of :mod:`~vla_ros.engine.io.images.steps`: OpenCV's shrinking is a mean over areas in
float32, its growing has steps of 1 / 2048, and torchvision's is of float32 values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image as PILImage

from vla_ros.core.types import Image
from vla_ros.engine.io.images.steps import pillow_resize, refuse_unless_image

Pixels = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Framing:
    """The way in which an image becomes a square of ``side`` pixels.

    N1.6, N1.7: it is padded to a square and shrunk, its middle ``share`` stays and is brought to
    ``side`` again; ``final`` is the side that N1.6 brings it to then (0: it stays). N1.5 (not
    ``letterbox``): its middle ``share``, whatever its shape, is stretched to the square.
    ``squares``: of N1.7 without padding, whose network sees other shapes as they are: not built.
    """

    side: int
    share: float = 1.0
    final: int = 0
    letterbox: bool = True
    squares: bool = False


def framed(image: Image, framing: Framing) -> torch.Tensor:
    """uint8 [h, w, 3] -> float32 [3, s, s] in [-1, 1]. ValueError for what is no image, or is no
    square where it has to be one.

    Sources: ``image_augmentations.py`` (the transform of evaluation, by way of albumentations) and
    ``fetch_image`` of ``processing_eagle3_vl.py``, which brings N1.6's square to a multiple of 28
    pixels with Pillow's bicubic; n1.5 ``data/transform/video.py``.
    """
    refuse_unless_image(image)
    if framing.squares and image.shape[0] != image.shape[1]:
        height, width = image.shape[:2]
        raise ValueError(
            f"an image of {height} x {width} pixels: this checkpoint says letter_box_transform"
            " false, so its network would see another shape than a square, which is not built: set"
            " the camera to squares"
        )
    if not framing.letterbox:
        whole = _center_crop(image, framing)
    else:
        square = resized(letterboxed(np.asarray(image)), framing.side)
        kept = max(1, int(framing.side * framing.share))
        begin = (framing.side - kept) // 2
        middle = square[begin : begin + kept, begin : begin + kept]
        pixels = np.ascontiguousarray(resized(middle, framing.side))
        if framing.final not in (0, framing.side):
            side = framing.final
            brought = pillow_resize(
                PILImage.fromarray(pixels), side, side, PILImage.Resampling.BICUBIC
            )
            pixels = np.array(brought)
        whole = torch.from_numpy(pixels).permute(2, 0, 1)
    return (whole.float() - 127.5) / 127.5  # in one step, as the authors' image processors do it


def _center_crop(image: Image, framing: Framing) -> torch.Tensor:
    """torchvision's center crop and antialiased resize: uint8 [3, side, side]."""
    # A copy: the camera's buffer may be shared memory that is written again.
    pixels = torch.from_numpy(image.copy()).float() / 255.0
    height, width = image.shape[:2]
    rows, columns = max(1, int(height * framing.share)), max(1, int(width * framing.share))
    top, left = round((height - rows) / 2.0), round((width - columns) / 2.0)
    middle = pixels[top : top + rows, left : left + columns].permute(2, 0, 1)[None]
    size = (framing.side, framing.side)
    if (rows, columns) != size:
        middle = F.interpolate(middle, size, mode="bilinear", align_corners=False, antialias=True)
    return (middle[0] * 255).to(torch.uint8)


def letterboxed(image: Pixels) -> Pixels:
    """Black bars above and below, or left and right: [h, w, 3] -> [s, s, 3]."""
    height, width = image.shape[:2]
    side = max(height, width)
    if height == width:
        return image
    top, left = (side - height) // 2, (side - width) // 2
    out = np.zeros((side, side, 3), np.uint8)
    out[top : top + height, left : left + width] = image
    return out


def resized(image: Pixels, side: int) -> Pixels:
    """OpenCV's INTER_AREA from one square to another, to the last bit.

    Source: OpenCV 4 ``resize.cpp``, whose whole numbers are computed here: shrinking is the mean
    over an area in float32, growing is linear in steps of 1 / 2048.
    """
    source = len(image)
    if source == side:
        return image
    if source < side:
        return _grown(image, side)
    if source % side == 0:
        return _by_whole_blocks(image, source // side)
    indices, weights = _area(source, side)
    rows: Any = 0.0
    for tap in range(indices.shape[1]):
        rows = rows + image[:, indices[:, tap]] * weights[:, tap, None]
    out: Any = 0.0
    for tap in range(indices.shape[1]):
        out = out + rows[indices[:, tap]] * weights[:, tap, None, None]
    return np.clip(np.rint(out), 0, 255).astype(np.uint8)


def _by_whole_blocks(image: Pixels, by: int) -> Pixels:
    side = len(image) // by
    sums = image.astype(np.int32).reshape(side, by, side, by, 3).sum((1, 3))
    if by == 2:  # a shortcut of OpenCV's that rounds halves up, and not to even
        return ((sums + 2) >> 2).astype(np.uint8)
    means = sums.astype(np.float32) * np.float32(1.0 / by**2)
    return np.clip(np.rint(means), 0, 255).astype(np.uint8)


@lru_cache(maxsize=8)
def _area(source: int, side: int) -> tuple[npt.NDArray[np.int64], F32]:
    """The share of the larger image in each pixel of the smaller, along an axis: indices and
    weights [side, taps]."""
    scale = source / side
    taps = math.ceil(scale) + 2
    indices, weights = np.zeros((side, taps), np.int64), np.zeros((side, taps), np.float32)
    for to in range(side):
        begin = to * scale
        end, cell = begin + scale, min(scale, source - begin)
        last = min(math.floor(end), source - 1)
        first = min(math.ceil(begin), last)
        found: list[tuple[int, float]] = []
        if first - begin > 1e-3:
            found.append((first - 1, (first - begin) / cell))
        found += [(index, 1.0 / cell) for index in range(first, last)]
        if end - last > 1e-3:
            found.append((last, min(end - last, 1.0, cell) / cell))
        for tap, (index, weight) in enumerate(found):
            indices[to, tap], weights[to, tap] = index, weight
    return indices, weights


def _grown(image: Pixels, side: int) -> Pixels:
    low, shares = _linear(len(image), side)
    high = np.minimum(low + 1, len(image) - 1)
    x = image.astype(np.int32)
    rows = x[:, low] * shares[0, :, None] + x[:, high] * shares[1, :, None]
    above = (shares[0, :, None, None] * (rows[low] >> 4)) >> 16
    below = (shares[1, :, None, None] * (rows[high] >> 4)) >> 16
    return np.clip((above + below + 2) >> 2, 0, 255).astype(np.uint8)


@lru_cache(maxsize=8)
def _linear(source: int, side: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The lower of the two pixels each one lies between [side], and both shares [2, side] in
    steps of 1 / 2048."""
    to = np.arange(side)
    low = np.floor(to * (1.0 / (side / source))).astype(np.int64)  # OpenCV's scale, as it rounds
    rest = ((to + 1) - (low + 1) * (side / source)).astype(np.float32)
    rest = np.where(rest <= 0, np.float32(0), rest - np.floor(rest)).astype(np.float32)
    last = low >= source - 1
    rest[last], low[last] = 0.0, source - 1
    shares = np.stack([np.float32(1) - rest, rest]) * np.float32(2048)
    return low, np.rint(shares).astype(np.int32)
