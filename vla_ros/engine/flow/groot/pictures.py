"""Pictures as GR00T N1.6 and N1.7 want them: padded to a square, shrunk, its middle, grown again.

Sources: NVIDIA/Isaac-GR00T ``image_augmentations.py`` (the transform of evaluation, by way of
albumentations) and OpenCV 4 ``resize.cpp`` for INTER_AREA, whose whole numbers are computed here:
shrinking is the mean over an area in float32, growing is linear in steps of 1 / 2048.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image as PILImage

from vla_ros.core import Image

Pixels = npt.NDArray[np.uint8]
_STEPS = 2048  # of OpenCV's weights between two pixels


@dataclass(frozen=True, slots=True)
class Framing:
    """A picture becomes a square of ``side`` pixels, of which the middle ``share`` stays and is
    brought to ``side`` again."""

    side: int
    share: float = 1.0


def framed(image: Image, framing: Framing, final: int = 0) -> torch.Tensor:
    """uint8 [h, w, 3] -> float32 [3, s, s] in [-1, 1].

    s is the framing's side, or ``final``: N1.6 brings the framed square to a multiple of 28 pixels
    with Pillow's bicubic (``fetch_image`` of its ``processing_eagle3_vl.py``).
    """
    check_image(image)
    square = resized(letterboxed(np.asarray(image)), framing.side)
    kept = max(1, int(framing.side * framing.share))
    begin = (framing.side - kept) // 2
    middle = square[begin : begin + kept, begin : begin + kept]
    whole = np.ascontiguousarray(resized(middle, framing.side))
    if final not in (0, framing.side):
        whole = np.array(PILImage.fromarray(whole).resize((final, final)))
    return scaled(torch.from_numpy(whole).permute(2, 0, 1))


def scaled(pixels: torch.Tensor) -> torch.Tensor:
    """uint8 -> float32 in [-1, 1], in one step, as the authors' image processors do it."""
    return (pixels.float() - 127.5) / 127.5


def check_image(image: Image) -> None:
    """ValueError for what is no picture."""
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or 0 in image.shape:
        raise ValueError(f"image is {image.dtype} {image.shape}: give uint8 [h, w, 3]")


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
    """OpenCV's INTER_AREA from one square to another."""
    source = len(image)
    if source == side:
        return image
    if source < side:
        return _grown(image, side)
    if source % side == 0:
        return _by_whole_blocks(image, source // side)
    places, weights = _area(source, side)
    rows: Any = 0.0
    for tap in range(places.shape[1]):
        rows = rows + image[:, places[:, tap]] * weights[:, tap, None]
    out: Any = 0.0
    for tap in range(places.shape[1]):
        out = out + rows[places[:, tap]] * weights[:, tap, None, None]
    return np.clip(np.rint(out), 0, 255).astype(np.uint8)


def _by_whole_blocks(image: Pixels, by: int) -> Pixels:
    side = len(image) // by
    sums = image.astype(np.int32).reshape(side, by, side, by, 3).sum((1, 3))
    if by == 2:  # a shortcut of OpenCV's that rounds halves up, and not to even
        return ((sums + 2) >> 2).astype(np.uint8)
    means = sums.astype(np.float32) * np.float32(1.0 / by**2)
    return np.clip(np.rint(means), 0, 255).astype(np.uint8)


@lru_cache(maxsize=8)
def _area(source: int, side: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """What each pixel of the smaller picture takes of the larger one, along an axis: places and
    weights [side, taps]."""
    scale = source / side
    taps = math.ceil(scale) + 2
    places = np.zeros((side, taps), np.int64)
    weights = np.zeros((side, taps), np.float32)
    for to in range(side):
        begin = to * scale
        end, cell = begin + scale, min(scale, source - begin)
        last = min(math.floor(end), source - 1)
        first = min(math.ceil(begin), last)
        found: list[tuple[int, float]] = []
        if first - begin > 1e-3:
            found.append((first - 1, (first - begin) / cell))
        found += [(place, 1.0 / cell) for place in range(first, last)]
        if end - last > 1e-3:
            found.append((last, min(end - last, 1.0, cell) / cell))
        for tap, (place, weight) in enumerate(found):
            places[to, tap], weights[to, tap] = place, weight
    return places, weights


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
    low = np.floor(to * (source / side)).astype(np.int64)
    rest = ((to + 1) - (low + 1) * (side / source)).astype(np.float32)
    rest = np.where(rest <= 0, np.float32(0), rest - np.floor(rest)).astype(np.float32)
    last = low >= source - 1
    rest[last], low[last] = 0.0, source - 1
    shares = np.stack([np.float32(1) - rest, rest]) * np.float32(_STEPS)
    return low, np.rint(shares).astype(np.int32)
