"""Camera image -> the pixels a vision tower wants.

Two kinds of preprocessing lead to the square that a tower takes: ``default`` resizes as the
checkpoint's own processor does (openvla ``processing_prismatic.py`` over torchvision), and
``libero`` as the published LIBERO evaluations do (:mod:`vla_ros.engine.vision.transforms`).
Mean, deviation, interpolation and strategy are the checkpoint's.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image as PILImage

from vla_ros.core import Image
from vla_ros.engine.checkpoints.config import ModelConfig, TowerConfig
from vla_ros.engine.vision.transforms import centre_crop, libero_square

Colour = tuple[int, int, int]
_Square = tuple[int, Colour, str]  # side, fill, interpolation


def fit(
    image: Image, size: int, strategy: str, fill: Colour, interpolation: str = "bicubic"
) -> Image:
    """Make a uint8 image [size, size, 3] of an image [h, w, 3].

    ``resize-naive`` stretches; ``resize-crop`` scales the short side to ``size`` and cuts the
    middle out; ``letterbox`` first pads the short side with ``fill``, by the same whole number
    on both ends, so that an odd difference leaves one line to be cut again.
    """
    height, width = image.shape[:2]
    if (height, width) == (size, size):
        return image
    picture = PILImage.fromarray(image)
    if strategy == "letterbox":
        picture = _pad(picture, fill)
    if strategy == "resize-naive":
        wide, high = size, size
    else:
        wide, high = _short_side(picture.size, size)
    if picture.size != (wide, high):
        picture = picture.resize((wide, high), PILImage.Resampling[interpolation.upper()])
    # torchvision's center_crop, which rounds half to even
    left, top = round((wide - size) / 2), round((high - size) / 2)
    return np.asarray(picture.crop((left, top, left + size, top + size)))


def _pad(picture: PILImage.Image, fill: Colour) -> PILImage.Image:
    wide, high = picture.size
    side = max(wide, high)
    left, top = (side - wide) // 2, (side - high) // 2
    padded = PILImage.new("RGB", (wide + 2 * left, high + 2 * top), fill)
    padded.paste(picture, (left, top))
    return padded


def _short_side(size: tuple[int, int], wanted: int) -> tuple[int, int]:
    """(width, height) with the short side as wanted, the long one cut to a whole number."""
    wide, high = size
    if wide <= high:
        return wanted, int(wanted * high / wide)
    return int(wanted * wide / high), wanted


def letterbox_fill(config: ModelConfig, tower: TowerConfig) -> Colour:
    """The colour of the padding: the checkpoint's one for all towers, else int(mean * 255).

    The family disagrees with itself. Its Hugging Face processor pads every tower with the last
    one's mean, its training code each with its own; a checkpoint with a preprocessor file is
    run as that processor runs it.
    """
    if config.fill is not None:
        return config.fill
    red, green, blue = (int(x * 255) for x in tower.mean)
    return red, green, blue


class Preprocessor:
    """uint8 RGB image -> one float tensor [1, 3, size, size] per tower, on the device."""

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        dtype: torch.dtype,
        crop: bool,
        preprocessing: str = "default",
    ) -> None:
        self._config, self._crop = config, crop
        self._libero = preprocessing == "libero"
        self._device, self._dtype = device, dtype
        self._scales = [
            (torch.tensor(t.mean).view(3, 1, 1), torch.tensor(t.std).view(3, 1, 1))
            for t in config.towers
        ]

    def __call__(self, image: Image) -> tuple[torch.Tensor, ...]:
        """Resize, optionally centre-crop, scale to [0, 1], normalise for every tower."""
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise ValueError(f"image is {image.dtype} {image.shape}: give uint8 [h, w, 3]")
        out: list[torch.Tensor] = []
        made: dict[_Square, torch.Tensor] = {}  # towers that want the same share it
        for tower, (mean, std) in zip(self._config.towers, self._scales, strict=True):
            boxed = self._config.resize == "letterbox"
            fill = letterbox_fill(self._config, tower) if boxed else (0, 0, 0)
            wanted = (tower.image_size, fill, tower.interpolation)
            if wanted not in made:
                # A copy: the camera's buffer may be shared memory that is written again.
                square = torch.from_numpy(self._square(image, wanted).copy())
                made[wanted] = square.permute(2, 0, 1).float() / 255.0
            out.append(((made[wanted] - mean) / std)[None].to(self._device, self._dtype))
        return tuple(out)

    def _square(self, image: Image, wanted: _Square) -> Image:
        size, fill, interpolation = wanted
        if self._libero:
            square = libero_square(image, size)
        else:
            square = fit(image, size, self._config.resize, fill, interpolation)
        return centre_crop(square) if self._crop else square
