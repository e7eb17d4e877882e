"""The image steps of the published LIBERO evaluation, each by its name. No torch, no TensorFlow.

OpenVLA and OpenVLA-OFT treat every camera alike: turn the frame by 180 degrees, encode and
decode it as JPEG, resize with Lanczos-3, for checkpoints trained with crop augmentation cut the
centre out, then normalise as the checkpoint says. They turn what OpenGL draws, the bottom row
first. Here a frame is the picture as a camera shows it, the top row first; so what is left of
the turn is a :func:`mirror`: these checkpoints know the world with left and right exchanged.

Sources: openvla ``experiments/robot/libero/libero_utils.py`` (``get_libero_image``,
``resize_image``) and ``experiments/robot/openvla_utils.py`` (``crop_and_resize``), openvla-oft
``resize_image_for_policy`` and ``center_crop_image``; TensorFlow's ``scale_and_translate_op.cc``,
``crop_and_resize_op.cc`` and ``jpeg_mem.cc`` for what the functions they call compute.

All take and return uint8 [h, w, 3].
"""

from __future__ import annotations

import io
import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image as PILImage

from vla_ros.core import Image
from vla_ros.engine.vision.jpeg import decode_fast

CROP_AREA = 0.9
JPEG_QUALITY = 95  # tf.image.encode_jpeg's default, with the chroma at half the resolution
LANCZOS_RADIUS = 3.0

_Float32s = npt.NDArray[np.float32]


def mirror(image: Image) -> Image:
    """Exchange left and right."""
    return np.ascontiguousarray(image[:, ::-1])


def jpeg_round_trip(image: Image) -> Image:
    """What JPEG leaves of an image, to the bit as TensorFlow's functions by their defaults.

    Encoded: quality 95, chroma 4:2:0. Decoded: with the *fast* inverse transform, which
    TensorFlow takes by default and which differs from the accurate one by up to 10 levels.
    """
    coded = io.BytesIO()
    PILImage.fromarray(image).save(coded, "JPEG", quality=JPEG_QUALITY, subsampling="4:2:0")
    return decode_fast(coded)


def libero_picture(image: Image) -> Image:
    """A camera's picture as the published LIBERO evaluations take it, before it is resized."""
    return jpeg_round_trip(mirror(image))


def libero_square(image: Image, size: int) -> Image:
    """A camera's picture -> [size, size, 3] as the published LIBERO evaluations make it."""
    return lanczos3(libero_picture(image), size)


def lanczos3(image: Image, size: int) -> Image:
    """To [size, size, 3] as tf.image.resize(method="lanczos3", antialias=True), then rounded.

    The kernel is widened by the factor of reduction, its weights are made to sum to 1, and both
    passes are in float32 without rounding in between (Pillow's LANCZOS rounds there). An image
    of that size comes back as it is.
    """
    height, width = image.shape[:2]
    if (height, width) == (size, size):
        return image
    rows, columns = lanczos_weights(height, size), lanczos_weights(width, size)
    high = rows @ image.reshape(height, width * 3).astype(np.float32)
    wide = columns @ high.reshape(size, width, 3).transpose(1, 0, 2).reshape(width, size * 3)
    out = wide.reshape(size, size, 3).transpose(1, 0, 2)
    return np.clip(np.rint(out), 0, 255).astype(np.uint8)


@lru_cache(maxsize=16)
def lanczos_weights(length: int, size: int) -> _Float32s:
    """Float32 [size, length]: what each of ``length`` pixels adds to each of ``size``."""
    reduction = length / size
    widened = max(reduction, 1.0)
    centres = (np.arange(size) + 0.5) * reduction
    offsets = np.abs(np.arange(length) + 0.5 - centres[:, None]) / widened
    weights = np.where(
        offsets < LANCZOS_RADIUS, np.sinc(offsets) * np.sinc(offsets / LANCZOS_RADIUS), 0.0
    )
    weights /= weights.sum(axis=1, keepdims=True)
    return weights.astype(np.float32)


def centre_crop(image: Image) -> Image:
    """Cut 90 % of the area (sides times sqrt 0.9) out of the middle and scale it back.

    Samples as tf.image.crop_and_resize does, bilinear between corner-aligned points, and goes
    back to integers as tf.image.convert_image_dtype does: the whole part of value * 255.5.
    """
    side = math.sqrt(CROP_AREA)
    rows, columns = sample_points(image.shape[0], side), sample_points(image.shape[1], side)
    y0, x0 = np.floor(rows).astype(int), np.floor(columns).astype(int)
    y1 = np.minimum(y0 + 1, image.shape[0] - 1)
    x1 = np.minimum(x0 + 1, image.shape[1] - 1)
    fy, fx = (rows - y0)[:, None, None], (columns - x0)[None, :, None]
    source = image.astype(np.float32) / np.float32(255)
    across = source[:, x0] + (source[:, x1] - source[:, x0]) * fx
    value = np.clip(across[y0] + (across[y1] - across[y0]) * fy, 0, 1)
    return np.minimum(value * np.float32(255.5), 255).astype(np.uint8)


def sample_points(length: int, side: float) -> _Float32s:
    """Float32 [length]: where in ``length`` pixels each of the middle ``side`` of them lies."""
    start = (1 - side) / 2 * (length - 1)
    return (start + np.arange(length) * side).astype(np.float32)
