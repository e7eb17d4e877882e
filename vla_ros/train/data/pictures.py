"""Augmented images, and where things are in them: a pure function of (frames, seed, step)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from vla_ros.engine.checkpoints.config import TowerConfig
from vla_ros.train.data.frames import Frames
from vla_ros.train.data.places import patch_labels

_LIGHT = 0.1  # largest relative change of brightness and contrast
_GRAIN = 0.01  # standard deviation of pixel noise, of 1


@dataclass(frozen=True, slots=True)
class Drawn:
    """``pixels`` [B, images, 3, s, s] normalised; ``centres`` [B, images, objects, 2] of what is
    in them; ``patches`` int64 [B, patches], labels of the patch loss."""

    pixels: torch.Tensor
    centres: torch.Tensor
    patches: torch.Tensor


class Pictures:
    """Of ``frames``, as ``tower`` wants them; ``shift``: largest shift in pixels."""

    def __init__(
        self, frames: Frames, tower: TowerConfig, seed: int, shift: int, device: torch.device
    ) -> None:
        self._frames, self._seed, self._shift, self._device = frames, seed, shift, device
        self._side, self._patch = tower.image_size // tower.patch, tower.patch
        self._mean = torch.tensor(tower.mean, device=device).view(3, 1, 1)
        self._std = torch.tensor(tower.std, device=device).view(3, 1, 1)

    @property
    def side(self) -> int:
        """Patches a side."""
        return self._side

    @property
    def patch(self) -> int:
        """Pixels a side of a patch."""
        return self._patch

    def __call__(self, index: torch.Tensor, draw: torch.Generator, step: int) -> Drawn:
        """The images ``index`` int64 [B] (see Frames.shows); ``draw`` is advanced."""
        size = len(index)
        span = 2 * self._shift + 1
        shift = torch.randint(span, (size, 2), generator=draw) - self._shift
        light = torch.rand(size, 2, generator=draw) * 2 - 1
        there, moved = index.to(self._device), shift.to(self._device)
        pixels = self._pixels(there, moved, light.to(self._device), step)
        centres = self._frames.pixels[there] - moved[:, None, None, [1, 0]]
        return Drawn(pixels, centres, patch_labels(centres, self._side, self._patch))

    def _pixels(
        self, index: torch.Tensor, shift: torch.Tensor, light: torch.Tensor, step: int
    ) -> torch.Tensor:
        """Shifted (edges repeat), relit, grainy and normalised images."""
        images = self._frames.images
        size = images.shape[2]
        along = torch.arange(size, device=self._device)
        y = (along + shift[:, :1]).clamp(0, size - 1)
        x = (along + shift[:, 1:]).clamp(0, size - 1)
        cameras = torch.arange(images.shape[1], device=self._device)[None, :, None, None]
        shifted = images[index[:, None, None, None], cameras, y[:, None, :, None], x[:, None, None]]
        pixels = shifted.permute(0, 1, 4, 2, 3).float() / 255.0
        if self._shift:  # augmentation is on
            brightness, contrast = (_LIGHT * light).T[..., None, None, None, None]
            pixels = (pixels - 0.5) * (1 + contrast) + 0.5 + brightness
            noise = torch.Generator(self._device).manual_seed(mixed(self._seed, step))
            grain = torch.randn(pixels.shape, generator=noise, device=self._device)
            pixels = (pixels + _GRAIN * grain).clamp(0, 1)
        return (pixels - self._mean) / self._std


def mixed(seed: int, step: int) -> int:
    """A seed of a step. torch's CPU generator reads 32 bits of it, so no simple shift does."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1)[0])
