"""The frames a benchmark plays: recorded ones, or a synthetic scene that drifts."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vla_ros.core import Image
from vla_ros.errors import UserError


def load_frames(path: Path) -> list[Image]:
    """uint8 ``images`` [N, h, w, 3] of an .npz file, in order. OSError, UserError."""
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise UserError(f"{path}: no .npz file, such as numpy.savez writes")
    try:
        with np.load(path, allow_pickle=False) as archive:
            if "images" not in archive:
                raise UserError(f"{path} has no array 'images': there is {', '.join(archive)}")
            images = archive["images"]
    except (ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8 or not len(images):
        found = f"images are {images.dtype} {images.shape}"
        raise UserError(f"{path}: {found}, not uint8 [N, h, w, 3] with N above 0")
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
