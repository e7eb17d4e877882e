"""A spot on a smooth path: what the golden pi0-FAST was trained on. numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np

TASK = " push_the\nspot "
HORIZON, DIM, STATE = 8, 4, 5
STEP = 0.15  # of the phase, an action


def trajectory(phase: float) -> tuple[Any, Any, Any]:
    """Picture, state and the chunk that follows."""
    when = phase + STEP * np.arange(HORIZON)
    path = np.stack([np.sin(when), np.cos(0.7 * when), np.sin(1.3 * when + 1)], 1)
    grip = np.where(np.sin(0.5 * when) > 0, 1.0, -1.0)
    chunk = np.concatenate((0.6 * path, grip[:, None]), 1).astype(np.float32)
    state = np.array([*path[0], np.sin(0.5 * phase), np.cos(0.5 * phase)], np.float32)
    pixels = np.full((36, 30, 3), 40, np.uint8)
    row, column = int(14 + 10 * path[0, 0]), int(12 + 8 * path[0, 1])
    pixels[row : row + 6, column : column + 6] = (250, 200, 30)
    return pixels, state, chunk
