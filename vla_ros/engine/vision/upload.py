"""A camera's picture on the device, as it came: bytes, a quarter of what floats would take."""

from __future__ import annotations

import numpy as np
import torch

from vla_ros.core import Image
from vla_ros.engine.packed.devices import on_device


def uploaded(image: Image, device: torch.device) -> torch.Tensor:
    """uint8 [h, w, 3] -> the same on the device, without waiting for the copy.

    The camera's buffer may be shared memory that is written again, so it is copied first; for a GPU
    into page-locked memory, from where the device fetches it by itself. That memory is torch's: it
    is handed out again when the transfer is over, not before.
    """
    cuda = device.type == "cuda"
    with on_device(device):
        held = torch.empty(image.shape, dtype=torch.uint8, pin_memory=cuda)
        np.copyto(held.numpy(), image)
        return held.to(device, non_blocking=True)
