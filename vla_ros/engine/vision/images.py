"""Camera image -> the pixels a vision tower wants.

Two kinds of preprocessing lead to the square that a tower takes: ``default`` resizes as the
checkpoint's own processor does (openvla ``processing_prismatic.py``: bicubic, letterbox), and
``libero`` as the published LIBERO evaluations do (:mod:`vla_ros.engine.vision.transforms`).
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image as PILImage

from vla_ros.core import Image
from vla_ros.engine.checkpoints.config import ModelConfig, TowerConfig
from vla_ros.engine.vision.transforms import centre_crop, libero_square

BICUBIC = PILImage.Resampling.BICUBIC


def fit(image: Image, size: int, strategy: str, fill: tuple[int, int, int]) -> Image:
    """Make a uint8 image [size, size, 3] of an image [h, w, 3].

    ``resize-naive`` stretches, ``letterbox`` pads to a square with ``fill`` first,
    ``resize-crop`` scales the short side and cuts the middle out.
    """
    height, width = image.shape[:2]
    if (height, width) == (size, size):
        return image
    picture = PILImage.fromarray(image)
    if strategy == "letterbox":
        side = max(height, width)
        square = PILImage.new("RGB", (side, side), fill)
        square.paste(picture, ((side - width) // 2, (side - height) // 2))
        picture = square
    elif strategy == "resize-crop":
        scale = size / min(height, width)
        wide, high = round(width * scale), round(height * scale)
        left, top = (wide - size) // 2, (high - size) // 2
        picture = picture.resize((wide, high), BICUBIC)
        picture = picture.crop((left, top, left + size, top + size))
    elif strategy != "resize-naive":
        raise ValueError(f"image_resize_strategy {strategy!r} is unknown")
    return np.asarray(picture.resize((size, size), BICUBIC))


def letterbox_fill(tower: TowerConfig) -> tuple[int, int, int]:
    """int(mean * 255) per channel, the colour of the family's padding."""
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
        out, square, pixels = [], None, torch.empty(0)
        for tower, (mean, std) in zip(self._config.towers, self._scales, strict=True):
            if square is None or self._config.resize == "letterbox":  # each has its own fill
                square = self._square(image, tower)
                # A copy: the camera's buffer may be shared memory that is written again.
                pixels = torch.from_numpy(square.copy()).permute(2, 0, 1).float() / 255.0
            out.append(((pixels - mean) / std)[None].to(self._device, self._dtype))
        return tuple(out)

    def _square(self, image: Image, tower: TowerConfig) -> Image:
        if self._libero:
            square = libero_square(image, tower.image_size)
        else:
            square = fit(image, tower.image_size, self._config.resize, letterbox_fill(tower))
        return centre_crop(square) if self._crop else square
