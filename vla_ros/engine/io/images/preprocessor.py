"""Camera image -> the pixels a vision tower wants.

Two kinds of preprocessing lead to the square that a tower takes: ``default`` resizes as the
checkpoint's own processor does (openvla ``processing_prismatic.py`` over torchvision), and
``libero`` as the published LIBERO evaluations do (:mod:`vla_ros.engine.io.images.steps`).
Mean, deviation, interpolation and strategy are the checkpoint's.

:class:`TorchSquares` makes the same squares in torch, on whatever device the pixels are. Resizing
is what Pillow does, to the bit: two products with its own whole numbers, and its rounding to bytes
between them. The steps of LIBERO's evaluation are those of :mod:`~.steps` in float32; sums in
another order may round a pixel to the next byte. Its JPEG round trip stays on the CPU, as libjpeg's
arithmetic is not torch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image as PILImage

from vla_ros.core.types import Image
from vla_ros.engine.io.config import ModelConfig, TowerConfig
from vla_ros.engine.io.images.steps import (
    BYTES,
    CROP_AREA,
    PRECISION,
    Padding,
    bytes_of,
    center_crop,
    lanczos_weights,
    libero_picture,
    libero_square,
    pillow_resize,
    pillow_weights,
    placing,
    refuse_unless_image,
    sample_points,
)
from vla_ros.engine.layers.devices import on_device, upload

Color = tuple[int, int, int]
_Square = tuple[int, Color, str]  # side, fill, interpolation
_HALF = 1 << (PRECISION - 1)


def fit(
    image: Image, size: int, strategy: str, fill: Color, interpolation: str = "bicubic"
) -> Image:
    """Make a uint8 image [size, size, 3] of an image [h, w, 3].

    ``resize-naive`` stretches; ``resize-crop`` scales the short side to ``size`` and cuts the
    middle out; ``letterbox`` first pads the short side with ``fill``, by the same whole number
    on both ends, so that an odd difference leaves one line to be cut again.
    """
    height, width = image.shape[:2]
    if (height, width) == (size, size):
        return image
    to = placing(height, width, size, strategy)
    resized = PILImage.fromarray(image)
    if to.top or to.left:
        padded = PILImage.new("RGB", (width + 2 * to.left, height + 2 * to.top), fill)
        padded.paste(resized, (to.left, to.top))
        resized = padded
    resized = pillow_resize(resized, to.wide, to.high, PILImage.Resampling[interpolation.upper()])
    left, top = to.cut_left, to.cut_top
    return np.asarray(resized.crop((left, top, left + size, top + size)))


def letterbox_fill(config: ModelConfig, tower: TowerConfig) -> Color:
    """The color of the padding: the checkpoint's one for all towers, else int(mean * 255).

    The family disagrees with itself. Its Hugging Face processor pads every tower with the last
    one's mean, its training code each with its own; a checkpoint with a preprocessor file is
    run as that processor runs it.
    """
    if config.fill is not None:
        return config.fill
    red, green, blue = (int(x * 255) for x in tower.mean)
    return red, green, blue


def resized_there(image_steps: str, device: torch.device) -> bool:
    """True where images are resized on the device."""
    return image_steps == "device" or (image_steps == "auto" and device.type == "cuda")


class Preprocessor:
    """uint8 RGB image -> one float tensor [1, 3, size, size] per tower, on the device.

    ``image_steps``: where an image is resized, "cpu" by Pillow, "device" in torch after the
    image went there as it came (:class:`TorchSquares`: the same pixels),
    "auto" on a GPU where there is one.
    """

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        dtype: torch.dtype,
        crop: bool,
        preprocessing: str = "default",
        image_steps: str = "auto",
    ) -> None:
        self._config, self._crop = config, crop
        self._libero = preprocessing == "libero"
        self._device, self._dtype = device, dtype
        there = resized_there(image_steps, device)
        self._squares = TorchSquares(device) if there else None
        where = device if there else torch.device("cpu")
        self._scales = [
            tuple(torch.tensor(values, device=where).view(3, 1, 1) for values in (t.mean, t.std))
            for t in config.towers
        ]

    def __call__(self, image: Image) -> tuple[torch.Tensor, ...]:
        """Resize, optionally center-crop, scale to [0, 1], normalize for every tower."""
        refuse_unless_image(image)
        make = self._pillow(image) if self._squares is None else self._torch(image, self._squares)
        out: list[torch.Tensor] = []
        made: dict[_Square, torch.Tensor] = {}  # towers that want the same share it
        for tower, (mean, std) in zip(self._config.towers, self._scales, strict=True):
            boxed = self._config.resize == "letterbox"
            fill = letterbox_fill(self._config, tower) if boxed else (0, 0, 0)
            wanted = (tower.image_size, fill, tower.interpolation)
            if wanted not in made:
                made[wanted] = make(wanted) / 255.0
            scaled = ((made[wanted] - mean) / std)[None].to(self._dtype)
            out.append(upload(scaled, self._device))
        return tuple(out)

    def _pillow(self, image: Image) -> Callable[[_Square], torch.Tensor]:
        def square(wanted: _Square) -> torch.Tensor:
            size, fill, interpolation = wanted
            if self._libero:
                made = libero_square(image, size)
            else:
                made = fit(image, size, self._config.resize, fill, interpolation)
            made = center_crop(made) if self._crop else made
            # A copy: the camera's buffer may be shared memory that is written again.
            return torch.from_numpy(made.copy()).permute(2, 0, 1).float()

        return square

    def _torch(self, image: Image, squares: TorchSquares) -> Callable[[_Square], torch.Tensor]:
        taken = libero_picture(image) if self._libero else image
        pixels = uploaded(taken, self._device).permute(2, 0, 1).float()

        def square(wanted: _Square) -> torch.Tensor:
            size, fill, interpolation = wanted
            if self._libero:
                made = squares.lanczos3(pixels, size)
            else:
                made = squares.fit(pixels, size, self._config.resize, fill, interpolation)
            return squares.center_crop(made) if self._crop else made

        return square


class TorchSquares:
    """Float images [3, h, w] of whole numbers -> squares [3, size, size] of whole numbers.

    Matrices are uploaded when a camera's size is first seen, and kept."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[Hashable, torch.Tensor] = {}

    def fit(
        self, image: torch.Tensor, size: int, strategy: str, fill: Color, interpolation: str
    ) -> torch.Tensor:
        """The square of :func:`fit`."""
        height, width = image.shape[1:]
        if (height, width) == (size, size):
            return image
        to = placing(height, width, size, strategy)
        if to.top or to.left:
            image = self._padded(image, to, fill)
        height, width = image.shape[1:]
        columns = self._cut(width, to.wide, to.cut_left, size, interpolation)
        rows = self._cut(height, to.high, to.cut_top, size, interpolation)
        return _down(_across(image, columns, to.cut_left, size), rows, to.cut_top, size)

    def lanczos3(self, image: torch.Tensor, size: int) -> torch.Tensor:
        """The square of :func:`.steps.lanczos3`."""
        height, width = image.shape[1:]
        if (height, width) == (size, size):
            return image
        rows, columns = (
            self._keep(("lanczos3", n, size), lambda n=n: lanczos_weights(n, size))  # type: ignore[misc]
            for n in (height, width)
        )
        return (rows @ image @ columns.T).round_().clamp_(0, 255)

    def center_crop(self, image: torch.Tensor) -> torch.Tensor:
        """The square of :func:`.steps.center_crop`."""
        (y0, y1, fy), (x0, x1, fx) = (self._samples(n) for n in image.shape[1:])
        # By a tensor: by a number, a GPU multiplies with what is nearly 1 / 255.
        source = image / self._keep("white", lambda: np.full(1, 255, np.float32))
        left, right = source[:, :, x0], source[:, :, x1]
        across = left + (right - left) * fx
        above, below = across[:, y0], across[:, y1]
        value = (above + (below - above) * fy[:, None]).clamp_(0, 1)
        return (value * 255.5).clamp_(max=255).floor_().float()

    def _padded(self, image: torch.Tensor, to: Padding, fill: Color) -> torch.Tensor:
        height, width = image.shape[1:]
        color = self._keep(("fill", fill), lambda: np.array(fill, np.float32)[:, None, None])
        padded = color.repeat(1, height + 2 * to.top, width + 2 * to.left)
        padded[:, to.top : to.top + height, to.left : to.left + width] = image
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
    image: torch.Tensor, columns: torch.Tensor | None, begin: int, size: int
) -> torch.Tensor:
    """[3, h, w] -> [3, h, size]: resized, or where nothing is to resize cut out."""
    if columns is None:
        return image[:, :, begin : begin + size]
    return _rounded((image @ columns.T).unflatten(2, (BYTES, size)), 2)


def _down(image: torch.Tensor, rows: torch.Tensor | None, begin: int, size: int) -> torch.Tensor:
    """[3, h, w] -> [3, size, w], likewise."""
    if rows is None:
        return image[:, begin : begin + size]
    return _rounded((rows @ image).unflatten(1, (BYTES, size)), 1)


def _rounded(parts: torch.Tensor, axis: int) -> torch.Tensor:
    """Sums of the three parts of weights -> bytes as float32, as Pillow's ``clip8`` makes them."""
    high, middle, low = parts.to(torch.int32).unbind(axis)
    whole = torch.add(low, torch.add(middle, high, alpha=256), alpha=256)
    return (whole.add_(_HALF) >> PRECISION).clamp_(0, 255).float()


def uploaded(image: Image, device: torch.device) -> torch.Tensor:
    """uint8 [h, w, 3] -> the same on the device, without waiting for the copy.

    The camera's buffer may be shared memory that is written again, so it is copied first; for a GPU
    into page-locked memory, from where the device fetches it by itself. That memory is torch's: it
    is handed out again when the transfer is over, not before.
    """
    cuda = device.type == "cuda"
    with on_device(device):
        held = torch.empty(image.shape, dtype=torch.uint8, pin_memory=cuda)
        np.copyto(held.numpy(), image)
        return held.to(device, non_blocking=True)


def stretched(
    image: Image, size: int, device: torch.device, levels: torch.Tensor | None = None
) -> torch.Tensor:
    """uint8 [h, w, 3] -> float32 [3, size, size] from 0 to 255, made on the device and there:
    stretched, bicubic with antialiasing, rounded to 256 values, as PIL does it. ``levels`` float32
    [256]: the values that bytes stand for."""
    refuse_unless_image(image)
    pixels = uploaded(image, device).permute(2, 0, 1)[None]
    pixels = pixels.float() if levels is None else levels[pixels.int()]
    if image.shape[:2] != (size, size):
        pixels = F.interpolate(
            pixels, (size, size), mode="bicubic", align_corners=False, antialias=True
        )
        pixels = pixels.clamp(0, 255).round()
    return pixels[0]
