"""Raw image messages to pixels in a node: by core/pixels.py, or by cv_bridge.

cv_bridge is looked for at the first such image: 16-bit colors and Bayer mosaics then go through it
where it is installed, and are refused with the advice of core/pixels.py where it is not. YUV goes
through it too, which gives the same pixels in a hundredth of the time.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from rclpy.logging import get_logger

from vla_ros.core import types as core
from vla_ros.core.pixels import YUV, BadMessage, check_layout, image_of, unsupported

#: Bytes a pixel of the encodings of colors that cv_bridge converts and core/pixels.py does not. Not
#: mono16: it is depth or raw infrared as often as light, and divided by 257 a room is black.
BRIDGED = {
    **{f"{order}16": 2 * len(order) for order in ("rgb", "bgr", "rgba", "bgra")},
    **{
        f"bayer_{order}{bits}": bits // 8
        for order in ("rggb", "bggr", "gbrg", "grbg")
        for bits in (8, 16)
    },
}
#: What cv_bridge calls the encodings that both convert.
_SAME = {"yuv422_yuy2": "yuv422_yuy2", "yuyv": "yuv422_yuy2", "yuv422": "yuv422", "uyvy": "yuv422"}
_LEAST_MOSAIC = 3  # pixels of a side: of less OpenCV makes black


def takes_long(encoding: str) -> bool:
    """True of an image whose conversion is no work for a node's executor; cv_bridge, of which the
    first one loads OpenCV, is not looked for."""
    return encoding in YUV or encoding in BRIDGED


def is_converted(encoding: str) -> bool:
    """True of an image that is converted here, by us or by cv_bridge, and takes long."""
    return encoding in YUV or (encoding in BRIDGED and not isinstance(_bridge(encoding), str))


def pixels_of(message: Any, max_pixels: int) -> core.Image:
    """Uint8 [height, width, 3] RGB of a sensor_msgs/Image or of its fields, ``is_bigendian`` among
    them. 16 bits become 8 by 255 / 65535. Raises :class:`BadMessage`."""
    name = _SAME.get(message.encoding, message.encoding)
    if name not in BRIDGED and name not in YUV:
        return image_of(message, max_pixels)
    bridge = _bridge(name)
    absent = isinstance(bridge, str)
    if name in YUV and (absent or message.width % 2):
        return image_of(message, max_pixels)
    if absent:
        raise BadMessage(f"{unsupported(name)}; {bridge}")
    size = BRIDGED.get(name, 2)
    rows = check_layout(message, size, max_pixels)
    if name.startswith("bayer_") and min(message.height, message.width) < _LEAST_MOSAIC:
        raise BadMessage(f"a mosaic of {message.width}x{message.height} has no colors")
    # Without the padding: cv_bridge takes rows to end where a pixel does, and shears the others.
    packed = np.ascontiguousarray(rows[:, : message.width * size])
    if name.endswith("16") and message.is_bigendian:  # its own swap needs a NumPy before 2
        packed = packed.view(np.uint16).byteswap().view(np.uint8)
    given = SimpleNamespace(
        encoding=name, height=message.height, width=message.width,
        step=message.width * size, is_bigendian=0, data=packed.tobytes(),
    )  # fmt: skip
    try:
        found = np.asarray(bridge.imgmsg_to_cv2(given, "rgb8"))
    except Exception as error:  # whatever OpenCV and Boost raise
        raise BadMessage(f"cv_bridge converts no {message.encoding}: {_line(error)}") from None
    if found.dtype != np.uint8 or found.shape != (message.height, message.width, 3):
        raise BadMessage(f"cv_bridge made {found.dtype} {found.shape} of {message.encoding}")
    return np.ascontiguousarray(found)


@cache
def _bridge(encoding: str) -> Any:
    """cv_bridge's converter, tried out, which is said once an encoding; text: why there is none."""
    try:
        from cv_bridge import CvBridge

        bridge = CvBridge()
        bridge.encoding_to_dtype_with_channels(encoding)  # loads what is compiled of it
    except ImportError as error:
        missing = error.name == "cv_bridge"
        return (
            "or install cv_bridge (apt install ros-$ROS_DISTRO-cv-bridge), which converts it"
            if missing
            else f"cv_bridge does not load: {_line(error)}"
        )
    except Exception as error:  # compiled for another NumPy, it fails in ways of its own
        return f"cv_bridge does not load: {_line(error)}"
    get_logger("vla_ros").info(f"{encoding} images are converted by cv_bridge")
    return bridge


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]
