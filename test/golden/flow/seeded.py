"""Weights, images and statistics that two programs draw alike: nothing but numpy's RandomState.

Its stream is frozen, so the files beside this one need not hold what it can draw again.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np


def draw(name: str, *shape: int) -> Any:
    """float32 [shape] of normal numbers that belong to ``name``."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    return random.standard_normal(shape).astype(np.float32)


def weight(name: str, shape: tuple[int, ...], offset_norms: bool) -> Any:
    """A tensor of a model: every part of it must move what the model says.

    ``offset_norms``: norms multiply by 1 + w (Gemma), except those of the vision tower.
    """
    plain = draw(name, *shape)
    if len(shape) == 1:
        scale = name.endswith("norm.weight") or "layer_norm" in name or "layernorm" in name
        if scale and name.endswith(".weight"):
            language = "language_model" in name or "gemma_expert" in name
            return 0.2 * plain + (0.0 if offset_norms and language else 1.0)
        return 0.1 * plain
    fan_in = int(np.prod(shape[1:]))
    if "embed_tokens" in name or "lm_head" in name:
        return plain * 0.2
    if "position_embedding" in name:
        return plain * 0.5
    gain = 2.0 if ".q_proj." in name or ".k_proj." in name else 1.0
    gain = 0.5 if ".dense." in name else gain
    return (plain * gain * fan_in**-0.5).astype(np.float32)


def image(name: str, height: int, width: int) -> Any:
    """uint8 [height, width, 3]: coarse blotches with some noise."""
    coarse = np.abs(draw(name, 4, 5, 3))
    rows = np.arange(height) * 4 // height
    columns = np.arange(width) * 5 // width
    fine = np.abs(draw(name + "/fine", height, width, 3))
    values = 90 * coarse[rows][:, columns] + 20 * fine
    return np.clip(values, 0, 255).astype(np.uint8)
