"""Image messages to pixels, of rclpy or of a bag alike: this knows their fields, not their classes.

What comes in is validated before anything is allocated. Only 8-bit encodings are accepted, so
the endianness flag of an image says nothing here.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image as Pillow
from PIL import UnidentifiedImageError

from vla_ros.core import types as core

#: Channels and their order in RGB of every encoding that is accepted.
ENCODINGS: dict[str, tuple[int, tuple[int, int, int]]] = {
    "rgb8": (3, (0, 1, 2)),
    "bgr8": (3, (2, 1, 0)),
    "rgba8": (4, (0, 1, 2)),
    "bgra8": (4, (2, 1, 0)),
    "mono8": (1, (0, 0, 0)),
}
_COMPRESSED = ("JPEG", "PNG")
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")  # Pillow's, of at most 8 bits


class BadMessage(ValueError):
    """A message that must be dropped; the text says why in one line."""


def quoted(text: str) -> str:
    """A sender's own words for a log: short, one line, nothing that a terminal would obey."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width == 0 or height == 0:
        raise BadMessage(f"image size is {width}x{height}")
    if width * height > max_pixels:
        raise BadMessage(f"image of {width}x{height} exceeds max_image_pixels {max_pixels}")


def image_of(message: Any, max_pixels: int) -> core.Image:
    """Uint8 [height, width, 3] RGB of a raw image. Raises :class:`BadMessage`."""
    if message.encoding not in ENCODINGS:
        known = ", ".join(ENCODINGS)
        raise BadMessage(f"encoding {quoted(message.encoding)} is not supported, only {known}")
    channels, order = ENCODINGS[message.encoding]
    width, height, step = message.width, message.height, message.step
    _check_size(width, height, max_pixels)
    if step < width * channels:
        raise BadMessage(
            f"step {step} is too short for {width} pixels of {message.encoding},"
            f" which take {width * channels} bytes"
        )
    if len(message.data) != step * height:
        raise BadMessage(
            f"data has {len(message.data)} bytes, step x height is {step} x {height}"
            f" = {step * height}"
        )
    rows = np.frombuffer(message.data, np.uint8).reshape(height, step)
    pixels = rows[:, : width * channels].reshape(height, width, channels)
    if order == (0, 1, 2) and channels == 3:
        return np.ascontiguousarray(pixels)
    return np.ascontiguousarray(pixels[:, :, order])


def decompressed(message: Any, max_pixels: int) -> core.Image:
    """Uint8 [height, width, 3] RGB of a JPEG or PNG. Raises :class:`BadMessage`."""
    try:
        # The size stands in the header: it is checked before any pixel is decoded.
        with Pillow.open(io.BytesIO(bytes(message.data)), formats=_COMPRESSED) as picture:
            _check_size(picture.width, picture.height, max_pixels)
            if picture.mode not in _MODES:
                raise BadMessage(
                    f"compressed image has pixels of {picture.mode}, not of 8 bits: depth or raw"
                    " infrared is no camera's picture, convert it to 8 bits"
                )
            return np.array(picture.convert("RGB"), dtype=np.uint8)
    except BadMessage:
        raise
    except Pillow.DecompressionBombError as error:
        raise BadMessage(f"image too large: {error}") from None
    except UnidentifiedImageError:
        kind = quoted(message.format)
        raise BadMessage(f"compressed image, format {kind}, is neither JPEG nor PNG") from None
    except (OSError, SyntaxError, ValueError) as error:
        kind = quoted(message.format)
        raise BadMessage(f"compressed image, format {kind}, is corrupt: {error}") from None
