"""Image messages to pixels, of rclpy or of a bag alike: this knows their fields, not their classes.

What comes in is validated before anything is allocated. Only 8-bit encodings are accepted, so
the endianness flag of an image does not matter. What cv_bridge converts beyond these:
ros/common/images.py.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Collection, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image as Pillow
from PIL import UnidentifiedImageError

from vla_ros.core import types as core

#: Bytes a pixel and their order of every encoding that is accepted: where red, green and blue are,
#: or, of :data:`YUV`, where Y, U and V are in the four bytes of two pixels.
ENCODINGS: dict[str, tuple[int, tuple[int, int, int]]] = {
    "rgb8": (3, (0, 1, 2)),
    "bgr8": (3, (2, 1, 0)),
    "rgba8": (4, (0, 1, 2)),
    "bgra8": (4, (2, 1, 0)),
    "mono8": (1, (0, 0, 0)),
    "yuv422_yuy2": (2, (0, 1, 3)),
    "yuyv": (2, (0, 1, 3)),
    "yuv422": (2, (1, 0, 2)),
    "uyvy": (2, (1, 0, 2)),
}
#: Those that are converted, which takes tens of milliseconds an image. ROS names UYVY yuv422; what
#: usb_cam sends where nothing is set, YUYV, yuv422_yuy2.
YUV = frozenset({"yuv422_yuy2", "yuyv", "yuv422", "uyvy"})
#: Most pixels of a side of an image that is resized, as Rosetta has it.
MOST_SIDE = 8192
_COMPRESSED = ("JPEG", "PNG")
_MOST_PADDED = 16  # bytes a pixel that a zipped image may have, padding included
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")  # Pillow's, of at most 8 bits


class BadMessage(ValueError):
    """A message that must be dropped; the text says why in one line."""


def quoted(text: str) -> str:
    """Text of a sender for a log: short, one line, nothing that a terminal would obey."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width == 0 or height == 0:
        raise BadMessage(f"image size is {width}x{height}")
    if width * height > max_pixels:
        raise BadMessage(f"image of {width}x{height} exceeds max_image_pixels {max_pixels}")


def image_of(message: Any, max_pixels: int) -> core.Image:
    """Uint8 [height, width, 3] RGB of a raw image. Raises :class:`BadMessage`.

    8UC3 is refused, as cv_bridge does: it is how ``cv2_to_imgmsg(image)`` labels images in
    either order, and a policy that sees red for blue fails without a word.
    """
    if message.encoding not in ENCODINGS:
        raise BadMessage(unsupported(message.encoding))
    channels, order = ENCODINGS[message.encoding]
    width, height = message.width, message.height
    rows = check_layout(message, channels, max_pixels)
    if message.encoding in YUV:
        if width % 2:
            raise BadMessage(f"{message.encoding} has pixels in pairs, the image {width} in a row")
        return _rgb_of(rows[:, : width * 2].reshape(height, width // 2, 4), order)
    pixels = rows[:, : width * channels].reshape(height, width, channels)
    if order == (0, 1, 2) and channels == 3:
        return np.ascontiguousarray(pixels)
    out = np.empty((height, width, 3), np.uint8)
    for channel, index in enumerate(order):  # an index of three would take ten times as long
        out[:, :, channel] = pixels[:, :, index]
    return out


def check_layout(message: Any, size: int, max_pixels: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Uint8 [height, step]: the rows of a raw image whose pixels take ``size`` bytes, padding
    included; a view. Raises :class:`BadMessage`."""
    width, height, step = message.width, message.height, message.step
    _check_size(width, height, max_pixels)
    if step < width * size:
        raise BadMessage(
            f"step {step} is too short for {width} pixels of {message.encoding},"
            f" which take {width * size} bytes"
        )
    if len(message.data) != step * height:
        raise BadMessage(
            f"data has {len(message.data)} bytes, step x height is {step} x {height}"
            f" = {step * height}"
        )
    return np.frombuffer(_bytes_of(message.data), np.uint8).reshape(height, step)


def unsupported(encoding: str) -> str:
    """One line about an encoding that is not in :data:`ENCODINGS`, with advice."""
    known = ", ".join(ENCODINGS)
    return f"encoding {quoted(encoding)} is not supported, only {known}: {_remedy(encoding)}"


def sizes_of(words: Iterable[str], cameras: Collection[str]) -> dict[str, tuple[int, int]]:
    """Height and width of each camera ("": all others) that words name: 512x512, main=480x640.
    Raises ValueError, in one line."""
    found = {}
    for word in filter(None, words):
        name, _, text = word.rpartition("=")
        sides = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text)
        if not sides or not all(0 < int(side) <= MOST_SIDE for side in sides.groups()):
            raise ValueError(f"{word!r}: write HEIGHTxWIDTH or CAMERA=HEIGHTxWIDTH, as in 480x640")
        if name and name not in cameras:
            raise ValueError(f"{word!r}: the cameras are {', '.join(cameras)}")
        found[name] = int(sides[1]), int(sides[2])
    return found


def resized(image: core.Image, height: int, width: int) -> core.Image:
    """Uint8 [height, width, 3]: of each pixel the nearest one, the corners' pixels in the corners,
    as Rosetta resizes what it records; 0 0: the image as it is."""
    if (height, width) in ((0, 0), image.shape[:2]):
        return image
    rows, columns = (
        np.rint(np.linspace(0, have - 1, wanted)).astype(np.intp)
        for have, wanted in zip(image.shape[:2], (height, width), strict=True)
    )
    return np.ascontiguousarray(image[rows[:, None], columns])


def _bytes_of(data: Any) -> Any:
    """Buffer of a uint8[] for NumPy and Pillow: bytes, an array, a view. From Lyrical on it may be
    a rosidl_buffer.Buffer, which lies in another memory: a copy."""
    return data.to_bytes() if hasattr(data, "to_bytes") else data


def _remedy(encoding: str) -> str:
    """Advice about an image of that encoding."""
    if encoding.startswith("bayer_"):
        return "image_proc's debayer node makes colors of it"
    if encoding.startswith("8UC"):
        return "it has no order of colors, let its publisher say bgr8 or rgb8"
    if encoding.startswith(("16", "32", "64", "mono16")):
        return "depth or raw infrared is no camera's image"
    return "set the driver's, of usb_cam pixel_format mjpeg2rgb or yuyv2rgb"


# ITU-R BT.601, limited range, in fixed point with 20 bits: the numbers of OpenCV's cvtColor, which
# cv_bridge calls, so that images are the same to the bit.
_Y = (np.maximum(np.arange(256, dtype=np.int32), 16) - 16) * 1220542 + (1 << 19)
_U_BLUE, _U_GREEN, _V_GREEN, _V_RED = (
    (np.arange(256, dtype=np.int32) - 128) * factor
    for factor in (2116026, -409993, -852492, 1673527)
)


def _rgb_of(pairs: Any, order: tuple[int, int, int]) -> core.Image:
    """Uint8 [height, width, 3] RGB of YUV 4:2:2 [height, width / 2, 4], two pixels each."""
    first_y, u, v = (pairs[:, :, index] for index in order)
    light = _Y[np.stack((first_y, pairs[:, :, order[0] + 2]), axis=-1)]
    out = np.empty((*light.shape, 3), np.uint8)
    for channel, color in enumerate((_V_RED[v], _U_GREEN[u] + _V_GREEN[v], _U_BLUE[u])):
        out[..., channel] = np.clip((light + color[:, :, None]) >> 20, 0, 255)
    return out.reshape(len(pairs), -1, 3)


_OF_COLORS = ("bayer_", "yuv", "yuyv", "uyvy", "nv12", "nv21", "nv24", "rgb", "bgr")


def _check_colors(mode: str, format_: str) -> None:
    """Refuse one channel of a camera of colors: its publisher could not convert them, and stored
    the mosaic or the light alone. ``format_`` is image_transport's "ENCODING; jpeg compressed X".
    """
    encoding = format_.partition(";")[0].strip().lower()
    if mode in ("1", "L") and encoding.startswith(_OF_COLORS):
        raise BadMessage(
            f"compressed image, format {quoted(format_)}, has one channel of a camera of colors:"
            f" {_remedy(encoding)}, and compress what comes out"
        )


_ORIENTATION = 0x0112  # EXIF's tag; 1 is as it stands


def _check_upright(image: Pillow.Image) -> None:
    """Refuse an image that says it is to be turned: some decoders do, image_transport's does not,
    and a policy sees the difference."""
    if "exif" not in image.info:
        return
    try:
        turn = image.getexif().get(_ORIENTATION, 1)
    except Exception as error:  # whatever Pillow meets in a stranger's tags
        raise BadMessage(f"compressed image has corrupt EXIF: {error!r:.60}") from None
    if turn not in (0, 1):
        raise BadMessage(
            f"compressed image is to be turned by its EXIF orientation {str(turn)[:8]}, which"
            " decoders read differently: let the driver turn its pixels, or leave out the tag"
            " and set rotate"
        )


def _unzipped(data: bytes, max_pixels: int) -> core.Image:
    """Uint8 [height, width, 3] RGB of an image of zstd_image_transport, which is a raw one's fields
    and its rows by zlib, whatever its name says."""
    try:
        height, width, _, step, length = struct.unpack_from("<II?II", data)
        encoding = data[17 : 17 + min(length, 64)].decode("ascii")
        _check_size(width, height, max_pixels)
        size = step * height
        if size > _MOST_PADDED * max_pixels:
            raise BadMessage(f"zipped image of {size} bytes is too large for {width}x{height}")
        unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip's header, or its own
        rows = unpack.decompress(data[17 + length :], size + 1)
    except (struct.error, UnicodeDecodeError, zlib.error) as error:
        raise BadMessage(f"zipped image, format 'zstd', is corrupt: {error}") from None
    return image_of(
        SimpleNamespace(encoding=encoding, height=height, width=width, step=step, data=rows),
        max_pixels,
    )


def decompressed(message: Any, max_pixels: int) -> core.Image:
    """Uint8 [height, width, 3] RGB of a JPEG or PNG, or of an image of zstd_image_transport. Raises
    :class:`BadMessage`."""
    if message.format == "zstd":
        return _unzipped(bytes(_bytes_of(message.data)), max_pixels)
    try:
        # The size stands in the header: it is checked before any pixel is decoded.
        with Pillow.open(io.BytesIO(bytes(_bytes_of(message.data))), formats=_COMPRESSED) as image:
            _check_size(image.width, image.height, max_pixels)
            if image.mode not in _MODES:
                raise BadMessage(
                    f"compressed image has pixels of {image.mode}, not of 8 bits: depth or raw"
                    " infrared is no camera's image, convert it to 8 bits"
                )
            _check_colors(image.mode, message.format)
            _check_upright(image)
            return np.array(image.convert("RGB"), dtype=np.uint8)
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
