"""The drafter of HeteroSpec: what another drafter offers, in the tree of its uncertainty.

(:mod:`vla_ros.engine.trees.calibration`.) The offer is there before the round, so the bin is named
on the host and nothing is read from the device for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vla_ros.engine.drafters.base import Draft, Drafter, Offering
from vla_ros.engine.drafters.temporal_tree import cut, drafted
from vla_ros.engine.request import Request
from vla_ros.engine.trees.calibration import BinPlan, Calibration


class UncertainDrafter(Drafter):
    """Trees of ``plan``, chosen by the entropy of what ``source`` offers."""

    def __init__(
        self, source: Offering, calibration: Calibration, plan: BinPlan, device: torch.device
    ) -> None:
        self._source, self._calibration, self.plan = source, calibration, plan
        self._device = device
        self._nothing = Draft(torch.zeros(0, dtype=torch.long, device=device))

    @property
    def passes(self) -> int:  # type: ignore[override]
        return self._source.passes

    def instruct(self, text: str) -> None:
        self._source.instruct(text)

    def begin(self, request: Request) -> None:
        self._source.begin(request)

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        offer = self._source.offer(prefix)
        if offer is None:
            return self._nothing
        known = len(prefix)
        chosen = self._calibration.bin(known, offer.chances)
        tree = cut(self.plan.trees[known][chosen], limit)
        return drafted(tree, offer.tokens, self._device) if len(tree) else self._nothing

    def judged(self, draft: Sequence[int], accepted: int) -> None:
        self._source.judged(draft, accepted)

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        self._source.observe(tokens, own)

    def forget(self, damaged: bool = False) -> None:
        self._source.forget(damaged)
