"""HeteroSpec over a recursive head, as the paper has it: deeper drafts where the head is sure.

A round grows the base tree's levels first, of all bins' trees at once; then Phi, the entropy along
the likeliest path, names the bin; then the levels that this bin adds. What is drafted are the
nodes of the bin's tree alone. Behind the prompt, before there is anything to read, it is as
:mod:`.uncertain`. The host reads one number a round, Phi.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from vla_ros.engine.drafters.base import Draft
from vla_ros.engine.drafters.growth import Growth, Shape, merged, shape_of
from vla_ros.engine.drafters.recursive import RecursiveDrafter
from vla_ros.engine.drafters.temporal_tree import cut
from vla_ros.engine.drafters.uncertain import UncertainDrafter
from vla_ros.engine.trees.calibration import BinPlan, Calibration
from vla_ros.engine.trees.cart import bin_of
from vla_ros.engine.trees.shape import ROOT, DraftTree


@dataclass(frozen=True, slots=True, eq=False)
class Bunch:
    """The trees of one number of known tokens: ``common`` levels grow whatever the bin is, and
    each of ``shapes`` those and its own."""

    trees: tuple[DraftTree, ...]
    shapes: tuple[Shape, ...]
    common: int


class UncertainHeadDrafter(UncertainDrafter):
    """Trees of ``plan``, chosen by the entropy of what the head says along its likeliest path."""

    def __init__(
        self,
        source: RecursiveDrafter,
        calibration: Calibration,
        plan: BinPlan,
        device: torch.device,
    ) -> None:
        super().__init__(source, calibration, plan, device)
        self._head = source
        self.layers = source.layers

    def saw(self, taps: torch.Tensor, rows: Sequence[int]) -> None:
        self._head.saw(taps, rows)

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        known = len(prefix)
        if not known:
            return super().propose(prefix, limit)
        open_ = self._calibration.tokens - 1 - known
        bunch = bunch_of(
            self.plan.trees[known], limit, min(self._calibration.levels, open_), self._device
        )
        if not any(map(len, bunch.trees)):
            return self._nothing
        with torch.inference_mode():
            deepest = max(len(shape.levels) for shape in bunch.shapes) + 1
            growth = self._head.round(prefix, max(deepest, bunch.common + 1))
            if growth is None:
                return self._nothing
            for level in bunch.shapes[0].levels[: bunch.common]:
                growth.grow(level)
            shape, tree = self._chosen(growth, known, bunch)
            grown = shape.levels[bunch.common :] if len(tree) else ()
            for level in grown:
                growth.grow(level)
            self._head.passes += 1 + bunch.common + len(grown)
            return Draft(growth.tokens(shape), parents=tree.parents) if len(tree) else self._nothing

    def _chosen(self, growth: Growth, known: int, bunch: Bunch) -> tuple[Shape, DraftTree]:
        """By Phi, where there is more than one bin."""
        thresholds = self._calibration.states[known].thresholds
        chosen = bin_of(entropy_of(growth.best), thresholds) if thresholds else 0
        return bunch.shapes[chosen], bunch.trees[chosen]


def entropy_of(best: Sequence[torch.Tensor]) -> float:
    """Phi of the likeliest path, given the top-K chances [K] of each of its levels."""
    chances = torch.stack(list(best))
    shares = chances / chances.sum(-1, keepdim=True)
    return float(-torch.xlogy(shares, shares).sum())


@lru_cache(1024)
def bunch_of(trees: tuple[DraftTree, ...], limit: int, levels: int, device: torch.device) -> Bunch:
    """Trees of at most ``limit`` levels; the base tree has ``levels``, whose likeliest path is
    always grown, since Phi is read off it."""
    kept = tuple(cut(tree, limit) for tree in trees)
    path = DraftTree(tuple(range(ROOT, levels - 1)), (0,) * levels)
    common = merged([path, *(cut(tree, levels) for tree in kept)])
    shapes = tuple(shape_of(tree, device, merged([common, tree])) for tree in kept)
    return Bunch(kept, shapes, levels - 1)
