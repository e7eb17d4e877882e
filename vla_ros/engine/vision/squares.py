"""The squares of :mod:`vla_ros.engine.vision.images` in torch, on whatever device the pixels are.

Resizing is what Pillow does, to the bit: two products with its own whole numbers, and its rounding
to bytes between them. The steps of LIBERO's evaluation are those of
:mod:`vla_ros.engine.vision.transforms` in float32; sums in another order may round a pixel to the
next byte. Its JPEG round trip stays on the CPU, as libjpeg's arithmetic is not torch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

import numpy as np
import torch

from vla_ros.engine.vision.resampling import (
    BYTES,
    PRECISION,
    Placing,
    bytes_of,
    pillow_weights,
    placing,
    vertical_first,
)
from vla_ros.engine.vision.transforms import CROP_AREA, lanczos_weights, sample_points

Colour = tuple[int, int, int]
_HALF = 1 << (PRECISION - 1)


class TorchSquares:
    """Float pictures [3, h, w] of whole numbers -> squares [3, size, size] of whole numbers.

    Matrices are uploaded when a camera's size is first seen, and kept."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[Hashable, torch.Tensor] = {}

    def fit(
        self, picture: torch.Tensor, size: int, strategy: str, fill: Colour, interpolation: str
    ) -> torch.Tensor:
        """See :func:`vla_ros.engine.vision.images.fit`."""
        height, width = picture.shape[1:]
        if (height, width) == (size, size):
            return picture
        to = placing(height, width, size, strategy)
        if to.top or to.left:
            picture = self._padded(picture, to, fill)
        height, width = picture.shape[1:]
        columns = self._cut(width, to.wide, to.cut_left, size, interpolation)
        rows = self._cut(height, to.high, to.cut_top, size, interpolation)
        steps = [
            lambda x: _across(x, columns, to.cut_left, size),
            lambda x: _down(x, rows, to.cut_top, size),
        ]
        if vertical_first(height, width, to.high, to.wide, interpolation):
            steps.reverse()
        return steps[1](steps[0](picture))

    def lanczos3(self, picture: torch.Tensor, size: int) -> torch.Tensor:
        """See :func:`vla_ros.engine.vision.transforms.lanczos3`."""
        height, width = picture.shape[1:]
        if (height, width) == (size, size):
            return picture
        rows, columns = (
            self._keep(("lanczos3", n, size), lambda n=n: lanczos_weights(n, size))  # type: ignore[misc]
            for n in (height, width)
        )
        return (rows @ picture @ columns.T).round_().clamp_(0, 255)

    def centre_crop(self, picture: torch.Tensor) -> torch.Tensor:
        """See :func:`vla_ros.engine.vision.transforms.centre_crop`."""
        (y0, y1, fy), (x0, x1, fx) = (self._samples(n) for n in picture.shape[1:])
        # By a tensor: by a number, a GPU multiplies with what is nearly 1 / 255.
        source = picture / self._keep("white", lambda: np.full(1, 255, np.float32))
        left, right = source[:, :, x0], source[:, :, x1]
        across = left + (right - left) * fx
        above, below = across[:, y0], across[:, y1]
        value = (above + (below - above) * fy[:, None]).clamp_(0, 1)
        return (value * 255.5).clamp_(max=255).floor_().float()

    def _padded(self, picture: torch.Tensor, to: Placing, fill: Colour) -> torch.Tensor:
        height, width = picture.shape[1:]
        colour = self._keep(("fill", fill), lambda: np.array(fill, np.float32)[:, None, None])
        padded = colour.repeat(1, height + 2 * to.top, width + 2 * to.left)
        padded[:, to.top : to.top + height, to.left : to.left + width] = picture
        return padded

    def _cut(
        self, length: int, size: int, begin: int, count: int, interpolation: str
    ) -> torch.Tensor | None:
        """The matrix [3 * count, length] of ``count`` of the new pixels; None: they are the old."""
        if length == size:
            return None

        def make() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
            parts = bytes_of(pillow_weights(length, size, interpolation)[begin : begin + count])
            return parts.reshape(-1, length)

        return self._keep((length, size, begin, count, interpolation), make)

    def _samples(self, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The two pixels that each new one lies between, and how far it is from the first."""
        points = sample_points(length, math.sqrt(CROP_AREA))
        low = np.floor(points).astype(np.int64)
        first = self._keep(("first", length), lambda: low)
        second = self._keep(("second", length), lambda: np.minimum(low + 1, length - 1))
        return first, second, self._keep(("share", length), lambda: points - low)  # in float64

    def _keep(
        self, key: Hashable, make: Callable[[], np.ndarray[tuple[int, ...], np.dtype[np.generic]]]
    ) -> torch.Tensor:
        if key not in self._kept:
            self._kept[key] = torch.from_numpy(make()).to(self._device)
        return self._kept[key]


def _across(
    picture: torch.Tensor, columns: torch.Tensor | None, begin: int, size: int
) -> torch.Tensor:
    """[3, h, w] -> [3, h, size]: resized, or where nothing is to resize cut out."""
    if columns is None:
        return picture[:, :, begin : begin + size]
    return _rounded((picture @ columns.T).unflatten(2, (BYTES, size)), 2)


def _down(picture: torch.Tensor, rows: torch.Tensor | None, begin: int, size: int) -> torch.Tensor:
    """[3, h, w] -> [3, size, w], likewise."""
    if rows is None:
        return picture[:, begin : begin + size]
    return _rounded((rows @ picture).unflatten(1, (BYTES, size)), 1)


def _rounded(parts: torch.Tensor, axis: int) -> torch.Tensor:
    """Sums of the three parts of weights -> bytes as float32, as Pillow's ``clip8`` makes them."""
    high, middle, low = parts.to(torch.int32).unbind(axis)
    whole = torch.add(low, torch.add(middle, high, alpha=256), alpha=256)
    return (whole.add_(_HALF) >> PRECISION).clamp_(0, 255).float()
