"""Images and vision on a device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.engine import tiny_config
from support.gpu import DEVICES
from vla_ros.engine.families.evo1 import square_of
from vla_ros.engine.io.images.preprocessor import Preprocessor
from vla_ros.engine.models.preparation import padded_square

GPU_ONLY = pytest.mark.parametrize("device", [DEVICES[1]])
SHAPES = ((480, 640), (300, 200), (32, 32), (40, 32))


def picture(shape: tuple[int, int]) -> np.ndarray:
    random = np.random.default_rng(shape[0])
    return random.integers(0, 256, (*shape, 3), dtype=np.uint8)


@pytest.mark.parametrize("crop", [False, True])
@pytest.mark.parametrize("preprocessing", ["default", "libero"])
def test_pictures_are_resized_on_the_device_as_pillow_does_it(
    preprocessing: str, crop: bool, device: str
) -> None:
    config = tiny_config(towers="fused")
    here = Preprocessor(config, torch.device("cpu"), torch.float32, crop, preprocessing, "cpu")
    where = torch.device(device)
    there = Preprocessor(config, where, torch.float32, crop, preprocessing, "device")
    for shape in SHAPES:
        image = picture(shape)
        for one, other, tower in zip(here(image), there(image), config.towers, strict=True):
            assert other.device == where
            levels = (one - other.cpu()).abs() * torch.tensor(tower.std).view(3, 1, 1) * 255
            assert levels.max() < (0.01 if preprocessing == "default" else 1.01)


@GPU_ONLY
def test_a_flow_policys_pictures_are_those_of_the_cpu(device: str) -> None:
    where = torch.device(device)
    for shape in SHAPES:
        image = picture(shape)
        for centered in (False, True):
            one, other = (
                padded_square(image, 32, centered),
                padded_square(image, 32, centered, where),
            )
            torch.testing.assert_close(one, other.cpu(), atol=1e-4, rtol=0)
        one, other = square_of(image, 32), square_of(image, 32, where)
        assert (one - other.cpu()).abs().max() < 1.01 / 255


def test_a_picture_may_be_written_over_while_it_goes_up(device: str) -> None:
    """Many large ones in a row, so that transfers wait for each other."""
    prepare = Preprocessor(
        tiny_config(), torch.device(device), torch.float32, False, image_steps="device"
    )
    image, seen = np.zeros((480, 640, 3), np.uint8), []
    for value in range(64):
        image[:] = value
        seen.append(prepare(image)[0])
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in
                 (tiny_config().towers[0].mean, tiny_config().towers[0].std))  # fmt: skip
    for value, pixels in enumerate(seen):
        wanted = ((value / 255 - mean) / std).expand(3, 32, 32)
        torch.testing.assert_close(pixels[0].cpu(), wanted, atol=1e-4, rtol=0)
