"""Preprocessing: sizes, crops, padding, normalisation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image as PILImage

from support.engine import CPU, tiny_config
from vla_ros.engine.checkpoints.config import DINOV2_L, SIGLIP_SO400M
from vla_ros.engine.vision.images import Preprocessor, fit
from vla_ros.engine.vision.transforms import centre_crop

RNG = np.random.default_rng(0)
PHOTO = RNG.integers(0, 256, (48, 64, 3), dtype=np.uint8)


def test_resize_naive_is_pils_bicubic() -> None:
    wanted = np.asarray(PILImage.fromarray(PHOTO).resize((32, 32), PILImage.Resampling.BICUBIC))
    np.testing.assert_array_equal(fit(PHOTO, 32, "resize-naive", (0, 0, 0)), wanted)


def test_letterbox_pads_with_its_colour() -> None:
    out = fit(PHOTO, 64, "letterbox", (10, 20, 30))
    assert out.shape == (64, 64, 3)
    np.testing.assert_array_equal(out[0, 0], [10, 20, 30])
    np.testing.assert_array_equal(out[8:56], PHOTO)


def test_letterbox_pads_both_ends_alike_and_cuts_an_odd_line_again() -> None:
    """48 x 63: seven lines above and seven below make 62, which is scaled to 62 x 63 and cut."""
    photo = PHOTO[:, :63]
    out = fit(photo, 62, "letterbox", (10, 20, 30))
    padded = np.full((62, 63, 3), (10, 20, 30), np.uint8)
    padded[7:55] = photo
    np.testing.assert_array_equal(out, padded[:, :62])  # round(0.5) is 0


def test_resize_crop_cuts_the_long_side_to_a_whole_number() -> None:
    """torchvision: int(32 * 299 / 224) is 42 where rounding says 43."""
    photo = RNG.integers(0, 256, (224, 299, 3), dtype=np.uint8)
    scaled = PILImage.fromarray(photo).resize((42, 32), PILImage.Resampling.BICUBIC)
    np.testing.assert_array_equal(
        fit(photo, 32, "resize-crop", (0, 0, 0)), np.asarray(scaled)[:, 5:37]
    )


def test_the_interpolation_is_the_one_asked_for() -> None:
    for name in ("nearest", "bilinear", "lanczos"):
        kernel = PILImage.Resampling[name.upper()]
        wanted = np.asarray(PILImage.fromarray(PHOTO).resize((32, 32), kernel))
        np.testing.assert_array_equal(fit(PHOTO, 32, "resize-naive", (0, 0, 0), name), wanted)


def test_resize_crop_keeps_the_middle() -> None:
    out = fit(PHOTO, 48, "resize-crop", (0, 0, 0))
    np.testing.assert_array_equal(out, PHOTO[:, 8:56])


def test_the_centre_crop_samples_as_crop_and_resize_does() -> None:
    """Corner-aligned bilinear: on a linear ramp the result is a linear ramp of known ends."""
    ramp = np.repeat(np.linspace(0, 255, 101)[None, :, None], 101, axis=0)
    image = np.repeat(np.rint(ramp), 3, axis=2).astype(np.uint8)
    out = centre_crop(image)[50, :, 0].astype(float)
    margin = (1 - np.sqrt(0.9)) / 2
    wanted = 255 * np.linspace(margin, margin + np.sqrt(0.9) * 100 / 100, 101)
    assert np.abs(out - wanted).max() < 2.5
    assert centre_crop(PHOTO).shape == PHOTO.shape


def test_each_tower_gets_its_own_normalisation() -> None:
    towers = (replace(DINOV2_L, image_size=32), replace(SIGLIP_SO400M, image_size=32))
    config = replace(tiny_config(), towers=towers)
    white = np.full((32, 32, 3), 255, np.uint8)
    first, second = Preprocessor(config, CPU, torch.float32, False)(white)
    wanted = (1 - torch.tensor(DINOV2_L.mean)) / torch.tensor(DINOV2_L.std)
    torch.testing.assert_close(first[0, :, 0, 0], wanted)
    torch.testing.assert_close(second, torch.ones(1, 3, 32, 32))


def test_the_cameras_buffer_may_be_written_again_at_once() -> None:
    image = np.zeros((32, 32, 3), np.uint8)
    pixels = Preprocessor(tiny_config(), CPU, torch.float32, False)(image)
    before = pixels[0].clone()
    image[:] = 255
    assert torch.equal(pixels[0], before)


@pytest.mark.parametrize("wrong", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32)])
def test_other_arrays_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="give uint8"):
        Preprocessor(tiny_config(), CPU, torch.float32, False)(wrong)
