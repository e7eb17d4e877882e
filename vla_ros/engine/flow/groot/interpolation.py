"""A square table of positions, stretched to another number of patches.

Source: torch's ``interpolate(mode="bilinear", align_corners=False, antialias=True)``, which
NVIDIA's ``Siglip2VisionEmbeddings`` calls for every picture. Here the rows that a patch reads and
their weights are tables of their own, so they can be compared with stored ones: a table that is
off by one row still gives plausible actions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

WEIGHT_SCALE = 1 << 15  # weights are compared in steps of 2 ** -15


@dataclass(frozen=True, slots=True)
class Taps:
    """What one axis of the stretched table reads.

    Place i reads ``len(weights[i])`` rows from ``first[i]`` on; ``weights`` are in steps of
    1 / WEIGHT_SCALE, rounded.
    """

    first: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...]


def axis_matrix(source: int, target: int) -> torch.Tensor:
    """float32 [target, source]: every place of the target as a mean of places of the source."""
    scale = torch.tensor(source / target, dtype=torch.float32)
    wide = torch.clamp(scale, min=1.0)  # the triangle's half width
    centres = scale * (torch.arange(target, dtype=torch.float32) + 0.5)
    places = torch.arange(source, dtype=torch.float32)
    first = (centres - wide + 0.5).to(torch.int64).clamp(min=0)
    last = (centres + wide + 0.5).to(torch.int64).clamp(max=source)
    distance = ((places + 0.5)[None] - centres[:, None]).abs() / wide
    weights = (1.0 - distance).clamp(min=0.0)
    inside = (places[None] >= first[:, None]) & (places[None] < last[:, None])
    weights = torch.where(inside, weights, torch.zeros(()))
    return weights / weights.sum(1, keepdim=True)


def taps(source: int, target: int) -> Taps:
    """:func:`axis_matrix` as integers: rows with a weight of 0 are none."""
    first, weights = [], []
    for row in axis_matrix(source, target):
        used = row.nonzero().flatten().tolist()
        first.append(used[0])
        weights.append(tuple(round(v * WEIGHT_SCALE) for v in row[used].tolist()))
    return Taps(tuple(first), tuple(weights))


def stretched(table: torch.Tensor, target: int) -> torch.Tensor:
    """A table [s * s, C] -> [target * target, C], float32."""
    source = round(len(table) ** 0.5)
    if source == target:
        return table
    axis = axis_matrix(source, target).to(table.device)
    grid = table.float().view(source, source, -1)
    grid = torch.einsum("ia,abc->ibc", axis, grid)
    return torch.einsum("jb,ibc->ijc", axis, grid).flatten(0, 1)
