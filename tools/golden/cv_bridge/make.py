"""Writes test/golden/cv_bridge.npz: cv_bridge's answers for every encoding of sensor_msgs.

    python make.py image_encodings.hpp OUT.npz

Wants cv_bridge, cv2 and sensor_msgs of any ROS 2; the header is sensor_msgs' own list of names. By
name: ``sent`` uint8 [4, step] of 4 x 6 pixels from a seed, ``rgb`` uint8 [4, 6, 3] as it answers to
"rgb8", or ``refused``, its words.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
from cv_bridge import CvBridge, CvBridgeError
from sensor_msgs.msg import Image

HEIGHT, WIDTH = 4, 6
_PIXEL = {"nv21": 2, "nv24": 2, "uyvy": 2, "yuyv": 2}  # bytes, of those that it has no type for


def main() -> None:
    header, out = map(Path, sys.argv[1:])
    names = re.findall(r'const char \w+\[\] = "(\w+)"', header.read_text(encoding="utf-8"))
    bridge, draw, found = CvBridge(), np.random.default_rng(0), {}
    for name in names:
        size = _PIXEL.get(name)
        if size is None:
            kind, channels = bridge.encoding_to_dtype_with_channels(name)
            size = np.dtype(kind).itemsize * channels
        sent = draw.integers(0, 256, (HEIGHT, WIDTH * size), np.uint8)
        message = Image(height=HEIGHT, width=WIDTH, encoding=name, step=sent.shape[1])
        message.data.frombytes(sent.tobytes())
        found[f"sent {name}"] = sent
        try:
            found[f"rgb {name}"] = bridge.imgmsg_to_cv2(message, "rgb8")
        except CvBridgeError as error:
            found[f"refused {name}"] = np.array(str(error))
    np.savez_compressed(out, **found)


main()
