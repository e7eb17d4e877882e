"""From the chunk that is being executed to the guidance of the next one (real-time chunking).

Source: arXiv 2506.07339, eq. 5 and algorithm 1. For networks that were trained to take the actions
under way as given: arXiv 2512.05964.
"""

from __future__ import annotations

import math

import torch

from vla_ros.core import Executing
from vla_ros.engine.flow.primitive import Continuing, Guidance

REMEMBERED = 4  # chunks in model space: the one that is executed is among the newest


def soft_mask(horizon: int, left: int, delay: int) -> torch.Tensor:
    """W [H]: 1 for the ``delay`` rows that will have been executed, then falling, 0 from ``left``
    on, where the earlier chunk says nothing. In the paper's words left is H - s."""
    delay = min(delay, left)
    weights = torch.zeros(horizon)
    weights[:delay] = 1.0
    for i in range(delay, min(left, horizon)):
        c = (left - i) / (left - delay + 1)
        weights[i] = c * math.expm1(c) / math.expm1(1.0)
    return weights


def guidance_of(
    chunk: torch.Tensor, executing: Executing, limit: float, how: Continuing
) -> Guidance | None:
    """``chunk`` [H, D] is the one that is executed. None: nothing is left of it to continue.

    Rows behind its end repeat its last one; they weigh nothing.
    """
    horizon = len(chunk)
    left = horizon - executing.index
    delay = min(executing.delay_steps, left)
    if left <= 0 or (how is Continuing.TRAINED and delay == 0):
        return None
    rest = chunk[executing.index :]
    previous = torch.cat((rest, rest[-1:].expand(executing.index, -1)))
    weights = soft_mask(horizon, delay if how is Continuing.TRAINED else left, delay)
    return Guidance(previous, weights.to(chunk.device), delay, limit, how)
