"""Preprocessing: sizes, crops, padding, normalization.

What is made of an image in torch is what Pillow makes of it, byte for byte.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image as PILImage

from support.engine import CPU, tiny_config
from vla_ros.core.types import Image
from vla_ros.engine.io.config import DINOV2_L, INTERPOLATIONS, SIGLIP_SO400M
from vla_ros.engine.io.images.preprocessor import Preprocessor, TorchSquares, fit, resized_there
from vla_ros.engine.io.images.steps import bytes_of, center_crop, lanczos3, pillow_weights

RNG = np.random.default_rng(0)
PHOTO = RNG.integers(0, 256, (48, 64, 3), dtype=np.uint8)


#: CRC-32 of what Pillow 11.3.0 itself makes of :func:`waves`: 224 x 224 pixels, by bicubic,
#: lanczos and bilinear. Pillow 13.0 makes something else of those that are much higher than wide.
PILLOW_11 = {
    (640, 360): (0x7DE27950, 0xD4DE5396, 0x7CF32352),
    (320, 240): (0xC33C46F8, 0x53EF8388, 0x77F54B43),
    (848, 480): (0x8220CA5D, 0xB2E69892, 0x1F80D199),
    (1280, 720): (0xBEE68F1A, 0x712289E0, 0xA21C2E4A),
    (640, 480): (0xB999EA3E, 0x7910C35E, 0x753F65A0),
    (480, 640): (0x9D40E5A2, 0xFB35026E, 0xBE5C81F0),
}


def waves(height: int, width: int) -> Image:
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    return ((x * 7919 + y * 104729 + c * 1299709 + x * y * 31) >> 5 & 255).astype(np.uint8)


@pytest.mark.parametrize("size", PILLOW_11)
def test_pixels_are_those_of_the_pillow_that_checkpoints_were_trained_with(
    size: tuple[int, int],
) -> None:
    picture = waves(*size)
    raw = torch.from_numpy(picture).permute(2, 0, 1).float()
    for name, wanted in zip(("bicubic", "lanczos", "bilinear"), PILLOW_11[size], strict=True):
        here = fit(picture, 224, "resize-naive", (0, 0, 0), name)
        assert zlib.crc32(here.tobytes()) == wanted
        there = TorchSquares(CPU).fit(raw, 224, "resize-naive", (0, 0, 0), name)
        np.testing.assert_array_equal(there.permute(1, 2, 0).byte().numpy(), here)


def test_resize_naive_is_pils_bicubic() -> None:
    wanted = np.asarray(PILImage.fromarray(PHOTO).resize((32, 32), PILImage.Resampling.BICUBIC))
    np.testing.assert_array_equal(fit(PHOTO, 32, "resize-naive", (0, 0, 0)), wanted)


def test_letterbox_pads_with_its_color() -> None:
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


def test_the_center_crop_samples_as_crop_and_resize_does() -> None:
    """Corner-aligned bilinear: on a linear ramp the result is a linear ramp of known ends."""
    ramp = np.repeat(np.linspace(0, 255, 101)[None, :, None], 101, axis=0)
    image = np.repeat(np.rint(ramp), 3, axis=2).astype(np.uint8)
    out = center_crop(image)[50, :, 0].astype(float)
    margin = (1 - np.sqrt(0.9)) / 2
    wanted = 255 * np.linspace(margin, margin + np.sqrt(0.9) * 100 / 100, 101)
    assert np.abs(out - wanted).max() < 2.5
    assert center_crop(PHOTO).shape == PHOTO.shape


def test_each_tower_gets_its_own_normalization() -> None:
    towers = (replace(DINOV2_L, image_size=32), replace(SIGLIP_SO400M, image_size=32))
    config = replace(tiny_config(), towers=towers)
    white = np.full((32, 32, 3), 255, np.uint8)
    first, second = Preprocessor(config, CPU, torch.float32, False)(white)
    wanted = (1 - torch.tensor(DINOV2_L.mean)) / torch.tensor(DINOV2_L.std)
    torch.testing.assert_close(first[0, :, 0, 0], wanted)
    torch.testing.assert_close(second, torch.ones(1, 3, 32, 32))


@pytest.mark.parametrize("steps", ["cpu", "device"])
def test_the_cameras_buffer_may_be_written_again_at_once(steps: str) -> None:
    image = np.zeros((32, 32, 3), np.uint8)
    pixels = Preprocessor(tiny_config(), CPU, torch.float32, False, image_steps=steps)(image)
    before = pixels[0].clone()
    image[:] = 255
    assert torch.equal(pixels[0], before)


@pytest.mark.parametrize("wrong", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32)])
def test_other_arrays_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="give uint8"):
        Preprocessor(tiny_config(), CPU, torch.float32, False)(wrong)


STRATEGIES = ("resize-naive", "resize-crop", "letterbox")
sides = st.integers(1, 90)


def picture(height: int, width: int, seed: int, kind: str = "noise") -> Image:
    """Noise, or only black and white: where filters overshoot and are cut."""
    random = np.random.default_rng(seed)
    image = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return image if kind == "noise" else np.where(image < 128, 0, 255).astype(np.uint8)


def planes(image: Image) -> torch.Tensor:
    return torch.from_numpy(image.copy()).permute(2, 0, 1).float()


def image_of(planes: torch.Tensor) -> Image:
    return planes.permute(1, 2, 0).numpy().astype(np.uint8)


@given(
    st.tuples(sides, sides), st.integers(1, 70), st.sampled_from(STRATEGIES),
    st.sampled_from(INTERPOLATIONS), st.integers(0, 99), st.sampled_from(("noise", "extremes")),
)  # fmt: skip
@example((48, 63), 62, "letterbox", "bicubic", 0, "noise")  # an odd line is cut again
@example((5, 3), 2, "resize-naive", "box", 0, "noise")  # the order of axes hardly shows
@example((9, 7), 6, "resize-naive", "box", 0, "noise")
@example((224, 299), 32, "resize-crop", "lanczos", 0, "extremes")
@example((480, 640), 224, "resize-naive", "bicubic", 0, "extremes")
@settings(max_examples=100, deadline=None)
def test_a_square_is_pillows(
    shape: tuple[int, int], size: int, strategy: str, interpolation: str, seed: int, kind: str
) -> None:
    image = picture(*shape, seed, kind)
    if strategy != "resize-naive" and size * min(shape) // max(shape) == 0:
        size = 70
    wanted = fit(image, size, strategy, (10, 20, 30), interpolation)
    made = TorchSquares(CPU).fit(planes(image), size, strategy, (10, 20, 30), interpolation)
    np.testing.assert_array_equal(image_of(made), wanted)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("sizes", [(640, 224), (1920, 224), (100, 224), (9000, 32)])
def test_parts_of_weights_are_whole_and_their_sums_exact_in_tf32(
    sizes: tuple[int, int], interpolation: str
) -> None:
    """TF32 has 11 bits of a number, and float32 24 of a sum: neither is left."""
    weights = pillow_weights(*sizes, interpolation)
    parts = bytes_of(weights)
    np.testing.assert_array_equal(
        ((parts[0] * 256 + parts[1]) * 256).astype(int) + parts[2], weights
    )
    assert np.abs(parts).max() <= 128
    assert (np.abs(parts).sum(axis=2) * 255 < 2**24).all() or sizes[0] > 514 * sizes[1] / 6


@given(st.tuples(st.integers(8, 90), st.integers(8, 90)), st.integers(8, 70), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_lanczos_and_crop_are_within_one_level(
    shape: tuple[int, int], size: int, seed: int
) -> None:
    """Float32 sums in another order: a value near a half may go to the other side."""
    image, squares = picture(*shape, seed), TorchSquares(CPU)
    square = lanczos3(image, size)
    made = image_of(squares.lanczos3(planes(image), size))
    assert np.abs(made.astype(int) - square).max() <= 1
    cropped = image_of(squares.center_crop(planes(square)))
    assert np.abs(cropped.astype(int) - center_crop(square)).max() <= 1


@pytest.mark.parametrize("crop", [False, True])
@pytest.mark.parametrize("preprocessing", ["default", "libero"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_both_ways_give_the_same_pixels(strategy: str, preprocessing: str, crop: bool) -> None:
    """Two towers that want other squares; cameras whose sizes alternate."""
    towers = (
        replace(DINOV2_L, image_size=32),
        replace(SIGLIP_SO400M, image_size=48, interpolation="lanczos"),
    )
    config = replace(tiny_config(), towers=towers, resize=strategy)
    ways = [
        Preprocessor(config, CPU, torch.float32, crop, preprocessing, way)
        for way in ("cpu", "device")
    ]
    for number, shape in enumerate(((48, 64), (60, 40), (48, 64), (32, 32))):
        image = picture(*shape, number)
        image.flags.writeable = False
        for one, other, tower in zip(*(way(image) for way in ways), towers, strict=True):
            assert one.shape == other.shape
            levels = ((one - other) * torch.tensor(tower.std).view(3, 1, 1) * 255).abs()
            assert levels.max() < 1.001
            if preprocessing == "default":
                assert levels.max() < 0.001


def test_a_gpu_does_it_itself_unless_told_otherwise() -> None:
    found = {
        (way, kind): resized_there(way, torch.device(kind))
        for way in ("auto", "cpu", "device")
        for kind in ("cpu", "cuda:1")
    }
    there = {("auto", "cuda:1"), ("device", "cuda:1"), ("device", "cpu")}
    assert {asked for asked, is_there in found.items() if is_there} == there


def test_an_unknown_filter_is_refused() -> None:
    with pytest.raises(ValueError, match="one of nearest"):
        pillow_weights(3, 4, "cubic")
