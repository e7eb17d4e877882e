"""Pictures as GR00T N1.5 and N1.6 want them.

Sources: NVIDIA/Isaac-GR00T n1.5 ``data/transform/video.py`` (torchvision's centre crop and
antialiased resize), n1.6 ``processing_eagle3_vl.py`` (``fetch_image``: Pillow's bicubic, to a
multiple of 28 pixels) behind the framing that it shares with N1.7.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image as PILImage

from vla_ros.core import Image

CROP = 0.95  # what of N1.5's pictures stays, in all of NVIDIA's data configurations
Pixels = npt.NDArray[np.uint8]


def cropped(image: Image, side: int, share: float = CROP) -> torch.Tensor:
    """N1.5: the middle ``share`` of a picture uint8 [h, w, 3], whatever its shape, brought to
    float32 [3, side, side] in [-1, 1]."""
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


def sized(square: Pixels, side: int) -> torch.Tensor:
    """N1.6: a framed square uint8 [s, s, 3] -> float32 [3, side, side] in [-1, 1]."""
    if len(square) != side:
        square = np.asarray(PILImage.fromarray(square).resize((side, side)))
    return scaled(torch.from_numpy(np.array(square)).permute(2, 0, 1))


def scaled(pixels: torch.Tensor) -> torch.Tensor:
    """uint8 -> float32 in [-1, 1], in one step, as the authors' image processor does it."""
    return (pixels.float() - 127.5) / 127.5


def check_image(image: Image) -> None:
    """ValueError for what is no picture."""
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or 0 in image.shape:
        raise ValueError(f"image is {image.dtype} {image.shape}: give uint8 [h, w, 3]")
