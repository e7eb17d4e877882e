"""Tables that are known when a checkpoint is loaded: positions of patches, embeddings of time.

They hold the discrete choices of these policies: computed here as the reference computes them,
in its precision, and compared with what is stored (:mod:`vla_ros.engine.flow.gate`).
"""

from __future__ import annotations

import math

import torch

#: How SmolVLM's patches find their row of the position table. transformers 5 counts exactly;
#: transformers 4 scaled by 1 - 1e-6 in the precision of the pixels, which in float32 puts
#: almost every patch one row and one column too low.
POSITION_TABLES = ("exact", "transformers-4")


def patch_positions(patches: int, side: int, table: str = "exact") -> torch.Tensor:
    """Rows of a ``side`` x ``side`` position table for ``patches`` x ``patches`` patches.

    int64 [patches ** 2], in float32. Sources: transformers 5.5 and 5.23 (``exact``) and 4.57
    ``SmolVLMVisionEmbeddings.forward``.
    """
    edges = torch.arange(1 / side, 1.0, 1 / side)
    index = torch.arange(patches, dtype=torch.float32)
    if table == "exact":
        step = 1.0 / torch.tensor([patches])
        where = torch.clamp(index * step, max=1.0 - 1e-6)
    elif table == "transformers-4":
        where = index / patches * (1 - 1e-6)
    else:
        raise ValueError(f"position table {table!r}: give one of {', '.join(POSITION_TABLES)}")
    bucket = torch.bucketize(where, edges, right=True)
    return (bucket[:, None] * side + bucket).flatten()


def time_table(
    times: tuple[float, ...] | torch.Tensor,
    width: int,
    min_period: float,
    max_period: float,
    precision: torch.dtype = torch.float64,
) -> torch.Tensor:
    """Sine and cosine of N times, such as the solver's: [N, width].

    The times are float32 and the rest ``precision``: float64 in openpi and LeRobot
    (``create_sinusoidal_pos_embedding``), float32 in transformers' pi0.
    """
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=precision)
    period = min_period * (max_period / min_period) ** fraction
    angles = 1.0 / period * 2 * math.pi * torch.as_tensor(times, dtype=torch.float32)[:, None]
    return torch.cat((angles.sin(), angles.cos()), 1)
