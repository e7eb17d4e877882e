"""The steps of the published LIBERO evaluation, against TensorFlow's results and their formulas.

``data/tensorflow_2_15.npz`` holds what TensorFlow 2.15.1 (OpenVLA pins 2.15) made of two small
images, step by step: tf.image.encode_jpeg and tf.io.decode_image, then tf.image.resize with
lanczos3 and antialias, rounded, then the center crop with tf.image.crop_and_resize.
"""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as PILImage

from support.engine import CPU, tiny_config
from vla_ros.engine.io.images.preprocessor import Preprocessor
from vla_ros.engine.io.images.steps import (
    center_crop,
    decode_fast,
    jpeg_round_trip,
    lanczos3,
    libero_square,
    mirror,
)

GOLDEN = Path(__file__).parent / "data" / "tensorflow_2_15.npz"
SIZES = {"even": 42, "odd": 32}  # of the images in GOLDEN once resized


def picture(height: int, width: int) -> np.ndarray:
    """Waves, a ramp, a sharp rectangle and a corner of noise."""
    y, x = np.mgrid[0:height, 0:width]
    waves = (127 + 100 * np.sin(x / 7 + y / 11), 127 + 90 * np.cos(x / 5 - y / 9), x * 255 / width)
    out = np.stack(waves, axis=-1)
    out[height // 4 : height // 2, width // 4 : width // 2] = (250, 10, 30)
    noise = np.random.default_rng(0).integers(0, 256, (height // 4, width // 4, 3))
    out[-(height // 4) :, -(width // 4) :] = noise
    return out.astype(np.uint8)


def reference_lanczos3(image: np.ndarray, size: int) -> np.ndarray:
    """Output pixel by output pixel: sum of kernel((s + 0.5 - c) / k), c = (o + 0.5) in / out,
    k = max(in / out, 1), over the source pixels s, divided by the sum of the weights."""

    def kernel(x: float) -> float:
        if x == 0:
            return 1.0
        if abs(x) >= 3:
            return 0.0
        return 3 * math.sin(math.pi * x) * math.sin(math.pi * x / 3) / (math.pi * x) ** 2

    def along_rows(source: np.ndarray) -> np.ndarray:
        ratio = len(source) / size
        wide = max(ratio, 1.0)
        out = np.zeros((size, *source.shape[1:]))
        for o in range(size):
            weights = [kernel((s + 0.5 - (o + 0.5) * ratio) / wide) for s in range(len(source))]
            for weight, row in zip(weights, source, strict=True):
                out[o] += weight / sum(weights) * row
        return out

    both = along_rows(along_rows(image.astype(np.float64)).transpose(1, 0, 2)).transpose(1, 0, 2)
    return np.clip(np.round(both), 0, 255)


def reference_crop(image: np.ndarray) -> np.ndarray:
    """Point i of n is sampled at e + i s, s = sqrt 0.9, e = (1 - s) / 2 (n - 1), on both axes."""
    height, width = image.shape[:2]
    out = np.zeros(image.shape)
    side = math.sqrt(0.9)
    for i in range(height):
        for j in range(width):
            y, x = (1 - side) / 2 * (height - 1) + i * side, (1 - side) / 2 * (width - 1) + j * side
            top, left = math.floor(y), math.floor(x)
            low, right = min(top + 1, height - 1), min(left + 1, width - 1)
            v, h = y - top, x - left
            out[i, j] = (1 - v) * ((1 - h) * image[top, left] + h * image[top, right])
            out[i, j] += v * ((1 - h) * image[low, left] + h * image[low, right])
    return np.floor(out / 255 * 255.5)


def differing(one: np.ndarray, other: np.ndarray) -> tuple[int, float]:
    """The largest difference, in levels of 255, and the share of values that differ at all."""
    difference = np.abs(one.astype(int) - other.astype(int))
    return int(difference.max()), float((difference > 0).mean())


@pytest.mark.parametrize("name", SIZES)
def test_jpeg_is_tensorflows_to_the_bit(name: str) -> None:
    golden = np.load(GOLDEN)
    np.testing.assert_array_equal(jpeg_round_trip(golden[name]), golden[f"{name}_jpeg"])


def test_tensorflow_does_not_decode_as_pillow_does() -> None:
    """Why there is a decoder of our own: were this not so, Pillow's would do."""
    golden = np.load(GOLDEN)
    coded = io.BytesIO()
    PILImage.fromarray(golden["even"]).save(coded, "JPEG", quality=95, subsampling="4:2:0")
    assert differing(np.asarray(PILImage.open(coded)), golden["even_jpeg"])[0] > 2


@pytest.mark.parametrize("name", SIZES)
def test_each_step_is_tensorflows(name: str) -> None:
    """At most one level (1/255), where float32 sums end on the other side of a half."""
    golden = np.load(GOLDEN)
    resized = lanczos3(golden[f"{name}_jpeg"], SIZES[name])
    for ours, theirs in (
        (resized, golden[f"{name}_lanczos"]),
        (center_crop(golden[f"{name}_lanczos"]), golden[f"{name}_crop"]),
    ):
        most, share = differing(ours, theirs)
        assert most <= 1
        assert share < 1e-3


@pytest.mark.parametrize("shape", [(90, 130), (64, 64), (48, 200)])
def test_lanczos_is_its_formula(shape: tuple[int, int]) -> None:
    image = picture(*shape)
    most, share = differing(lanczos3(image, 64), reference_lanczos3(image, 64))
    assert most <= 1
    assert share < 1e-3


def test_a_picture_of_the_right_size_is_not_resampled() -> None:
    image = picture(32, 32)
    np.testing.assert_array_equal(lanczos3(image, 32), image)


def test_the_crop_is_its_formula() -> None:
    image = picture(50, 40)
    most, share = differing(center_crop(image), reference_crop(image))
    assert most <= 1
    assert share < 1e-3


def test_mirror_and_the_frames_rows_make_the_published_turn() -> None:
    """LIBERO draws the bottom row first; the published turn of that is [::-1, ::-1]."""
    drawn = picture(24, 32)
    shown = drawn[::-1]  # as every topic carries it
    np.testing.assert_array_equal(mirror(shown), drawn[::-1, ::-1])


def test_the_tensor_is_the_published_pipelines() -> None:
    """256 px frame -> 224 px tensor, every step from its formula; JPEG as tested above."""
    config = tiny_config()
    towers = tuple(type(t)(**{**_fields(t), "image_size": 224}) for t in config.towers)
    config = type(config)(**{**_fields(config), "towers": towers})
    drawn = picture(256, 256)
    ours = Preprocessor(config, CPU, torch.float32, True, "libero")(drawn[::-1])[0][0]
    square = reference_lanczos3(jpeg_round_trip(drawn[::-1, ::-1].copy()), 224)
    theirs = reference_crop(square) / 255
    theirs = (theirs - np.array(towers[0].mean)) / np.array(towers[0].std)
    level = 1 / 255 / min(towers[0].std)  # one level of 255 in normalized units
    difference = np.abs(ours.permute(1, 2, 0).numpy() - theirs)
    assert difference.max() <= level * 1.01
    assert (difference > level / 2).mean() < 1e-3


def _fields(noun: object) -> dict[str, object]:
    return {name: getattr(noun, name) for name in noun.__slots__}  # type: ignore[attr-defined]


def test_the_default_leaves_left_and_right_alone() -> None:
    image = picture(64, 64)
    config = tiny_config()
    plain = Preprocessor(config, CPU, torch.float32, False)(image)[0]
    libero = Preprocessor(config, CPU, torch.float32, False, "libero")(image)[0]
    assert (plain - libero.flip(-1)).abs().mean() < (plain - libero).abs().mean() / 3


def test_other_jpegs_are_refused() -> None:
    coded = io.BytesIO()
    PILImage.fromarray(picture(16, 16)).save(coded, "JPEG", subsampling="4:4:4")
    with pytest.raises(ValueError, match="4:2:0"):
        decode_fast(coded)


def test_libero_square_gives_the_size_asked_for() -> None:
    out = libero_square(picture(61, 75), 48)
    assert out.shape == (48, 48, 3)
    assert out.dtype == np.uint8
