"""Camera image -> the pixels a vision tower wants.

Two kinds of preprocessing lead to the square that a tower takes: ``default`` resizes as the
checkpoint's own processor does (openvla ``processing_prismatic.py`` over torchvision), and
``libero`` as the published LIBERO evaluations do (:mod:`vla_ros.engine.vision.transforms`).
Mean, deviation, interpolation and strategy are the checkpoint's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from PIL import Image as PILImage

from vla_ros.core import Image
from vla_ros.engine.checkpoints.config import ModelConfig, TowerConfig
from vla_ros.engine.vision.resampling import Placing, placing
from vla_ros.engine.vision.squares import Colour, TorchSquares
from vla_ros.engine.vision.transforms import centre_crop, libero_picture, libero_square
from vla_ros.engine.vision.upload import uploaded

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
    to = placing(height, width, size, strategy)
    if to.top or to.left:
        picture = _padded(picture, to, fill)
    if picture.size != (to.wide, to.high):
        picture = picture.resize((to.wide, to.high), PILImage.Resampling[interpolation.upper()])
    left, top = to.cut_left, to.cut_top
    return np.asarray(picture.crop((left, top, left + size, top + size)))


def _padded(picture: PILImage.Image, to: Placing, fill: Colour) -> PILImage.Image:
    wide, high = picture.size
    padded = PILImage.new("RGB", (wide + 2 * to.left, high + 2 * to.top), fill)
    padded.paste(picture, (to.left, to.top))
    return padded


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


def resized_there(image_steps: str, device: torch.device) -> bool:
    """Whether pictures are resized on the device."""
    return image_steps == "device" or (image_steps == "auto" and device.type == "cuda")


class Preprocessor:
    """uint8 RGB image -> one float tensor [1, 3, size, size] per tower, on the device.

    ``image_steps`` says where a picture is resized: "cpu" by Pillow, "device" in torch after the
    picture went there as it came (:mod:`vla_ros.engine.vision.squares`: the same pixels), "auto" on
    a GPU where there is one.
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
        """Resize, optionally centre-crop, scale to [0, 1], normalise for every tower."""
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise ValueError(f"image is {image.dtype} {image.shape}: give uint8 [h, w, 3]")
        make = self._pillow(image) if self._squares is None else self._torch(image, self._squares)
        out: list[torch.Tensor] = []
        made: dict[_Square, torch.Tensor] = {}  # towers that want the same share it
        for tower, (mean, std) in zip(self._config.towers, self._scales, strict=True):
            boxed = self._config.resize == "letterbox"
            fill = letterbox_fill(self._config, tower) if boxed else (0, 0, 0)
            wanted = (tower.image_size, fill, tower.interpolation)
            if wanted not in made:
                made[wanted] = make(wanted) / 255.0
            out.append(((made[wanted] - mean) / std)[None].to(self._device, self._dtype))
        return tuple(out)

    def _pillow(self, image: Image) -> Callable[[_Square], torch.Tensor]:
        def square(wanted: _Square) -> torch.Tensor:
            size, fill, interpolation = wanted
            if self._libero:
                made = libero_square(image, size)
            else:
                made = fit(image, size, self._config.resize, fill, interpolation)
            made = centre_crop(made) if self._crop else made
            # A copy: the camera's buffer may be shared memory that is written again.
            return torch.from_numpy(made.copy()).permute(2, 0, 1).float()

        return square

    def _torch(self, image: Image, squares: TorchSquares) -> Callable[[_Square], torch.Tensor]:
        taken = libero_picture(image) if self._libero else image
        picture = uploaded(taken, self._device).permute(2, 0, 1).float()

        def square(wanted: _Square) -> torch.Tensor:
            size, fill, interpolation = wanted
            if self._libero:
                made = squares.lanczos3(picture, size)
            else:
                made = squares.fit(picture, size, self._config.resize, fill, interpolation)
            return squares.centre_crop(made) if self._crop else made

        return square
