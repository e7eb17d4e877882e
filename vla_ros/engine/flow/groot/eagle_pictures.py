"""Pictures as GR00T N1.5 wants them: their middle, stretched to a square.

Source: NVIDIA/Isaac-GR00T n1.5 ``data/transform/video.py``: torchvision's centre crop and
antialiased resize.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vla_ros.core import Image
from vla_ros.engine.flow.groot.pictures import check_image, scaled

CROP = 0.95  # what of a picture stays, in all of NVIDIA's data configurations


def cropped(image: Image, side: int, share: float = CROP) -> torch.Tensor:
    """The middle ``share`` of a picture uint8 [h, w, 3], whatever its shape, brought to float32
    [3, side, side] in [-1, 1]."""
    check_image(image)
    # A copy: the camera's buffer may be shared memory that is written again.
    pixels = torch.from_numpy(image.copy()).float() / 255.0
    height, width = image.shape[:2]
    rows, columns = max(1, int(height * share)), max(1, int(width * share))
    top, left = round((height - rows) / 2.0), round((width - columns) / 2.0)
    middle = pixels[top : top + rows, left : left + columns].permute(2, 0, 1)[None]
    if (rows, columns) != (side, side):
        middle = F.interpolate(
            middle, (side, side), mode="bilinear", align_corners=False, antialias=True
        )
    return scaled((middle[0] * 255).to(torch.uint8))
