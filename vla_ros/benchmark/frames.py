"""The frames a benchmark plays: recorded ones, or a synthetic scene that drifts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vla_ros.core import Image


def load_frames(path: Path) -> list[Image]:
    """uint8 ``images`` [N, h, w, 3] of an .npz file, in order."""
    with np.load(path, allow_pickle=False) as archive:
        if "images" not in archive:
            raise ValueError(f"{path} has no array 'images': there is {', '.join(archive)}")
        images = archive["images"]
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
        raise ValueError(
            f"{path}: images are {images.dtype} {images.shape}, not uint8 [N, h, w, 3]"
        )
    return list(images)


def drifting_frames(count: int, seed: int = 0, side: int = 224) -> list[Image]:
    """A scene of coloured squares that move a pixel or two a frame, and rest now and then."""
    rng = np.random.default_rng(seed)
    colours = rng.integers(40, 255, (6, 3))
    places = rng.uniform(0.1, 0.9, (6, 2)) * side
    speed = rng.normal(0, 1.0, (6, 2))
    frames = []
    for number in range(count):
        if number % 20 < 12:  # moving for 12 frames, then at rest for 8
            places = np.clip(places + speed, 20, side - 20)
        frames.append(_draw(places, colours, side))
    return frames


def _draw(places: np.ndarray, colours: np.ndarray, side: int) -> Image:
    image = np.full((side, side, 3), 96, np.uint8)
    for (x, y), colour in zip(places.astype(int), colours, strict=True):
        image[max(y - 15, 0) : y + 15, max(x - 15, 0) : x + 15] = colour
    return image


def repeat_to(frames: Sequence[Image], count: int) -> list[Image]:
    """The first ``count`` frames, from the start again when there are fewer."""
    return [frames[i % len(frames)] for i in range(count)]
