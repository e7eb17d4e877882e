"""A camera image as LeRobot gives it to pi0, pi0.5 and SmolVLA: a padded square in [-1, 1].

Source: lerobot 0.6.1 ``vla_utils.py`` (``resize_with_pad_torch``, openpi's, and
``resize_with_pad``): bilinear without antialiasing, aspect kept. pi0 and pi0.5 centre the
picture, SmolVLA puts it to the lower right; the rest is black.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from vla_ros.core import Image
from vla_ros.engine.vision.upload import uploaded

CPU = torch.device("cpu")


def padded_square(
    image: Image, size: int, centred: bool, device: torch.device = CPU
) -> torch.Tensor:
    """uint8 [h, w, 3] -> float32 [3, size, size] in [-1, 1], made on the device and there."""
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or 0 in image.shape:
        raise ValueError(f"image is {image.dtype} {image.shape}: give uint8 [h, w, 3]")
    pixels = uploaded(image, device).permute(2, 0, 1)[None].float() / 255.0
    height, width = image.shape[:2]
    if (height, width) != (size, size):
        ratio = max(width / size, height / size)
        rows, columns = int(height / ratio), int(width / ratio)
        if 0 in (rows, columns):
            raise ValueError(f"an image of {height} x {width} pixels leaves nothing to see")
        pixels = F.interpolate(pixels, (rows, columns), mode="bilinear", align_corners=False)
        top, left = size - rows, size - columns
        if centred:
            pixels = pixels.clamp(0.0, 1.0)
            top, left = top // 2, left // 2
        pixels = F.pad(pixels, (left, size - columns - left, top, size - rows - top))
    return pixels[0] * 2.0 - 1.0
