"""One observation -> the pixels of the cameras that a model looks through."""

from __future__ import annotations

import torch

from vla_ros.core import Observation
from vla_ros.engine.vision.images import Preprocessor


def camera_pixels(
    preprocess: Preprocessor, observation: Observation, cameras: int
) -> tuple[torch.Tensor, ...]:
    """Pixels [cameras, 3, s, s] for every tower: the main image, then the wrist's.

    Raises ValueError when a second camera is needed and the observation has none.
    """
    views = [preprocess(observation.image)]
    if cameras == 2:
        if observation.wrist_image is None:
            raise ValueError("this checkpoint needs a wrist image, the observation has none")
        views.append(preprocess(observation.wrist_image))
    if len(views) == 1:
        return views[0]
    return tuple(torch.cat(per_tower) for per_tower in zip(*views, strict=True))
