"""Alternatives that lie so far apart that none covers what another does."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def spaced(chances: torch.Tensor, reach: int, count: int) -> torch.Tensor:
    """Chances [N, bins] -> ``count`` bins each, the best first, each covering ``reach`` on either
    side; what is covered is worth nothing more."""
    left, found = F.pad(chances, (reach, reach)), []
    at = torch.arange(left.shape[1], device=left.device)
    for _ in range(count):
        place = left.unfold(1, 2 * reach + 1, 1).sum(-1).argmax(-1, keepdim=True)
        found.append(place)
        left = left.masked_fill((at >= place) & (at <= place + 2 * reach), 0.0)
    return torch.cat(found, 1)
