"""How the tokens of a training sequence see each other: many sentences on one image."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Layout:
    """A tree of two levels: ``common`` tokens (patches included), then ``branches`` of ``length``
    tokens that see the common part and themselves: many sentences on one image for the price of
    one prefill."""

    common: int
    branches: int = 0
    length: int = 0

    @property
    def total(self) -> int:
        return self.common + self.branches * self.length

    def positions(self, device: torch.device) -> torch.Tensor:
        """int64 [total]; every branch goes on from the end of the common part."""
        first = torch.arange(self.common, device=device)
        branch = torch.arange(self.common, self.common + self.length, device=device)
        return torch.cat((first, branch.repeat(self.branches)))

    def mask(self, device: torch.device) -> torch.Tensor:
        """bool [total, total]: row sees column."""
        place = torch.arange(self.total, device=device)
        branch = torch.where(place < self.common, -1, (place - self.common) // max(self.length, 1))
        shared = (branch[None] == -1) | (branch[:, None] == branch[None])
        return shared & (place[:, None] >= place[None])
