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
from vla_ros.engine.drafters.growth import Round, Shape, merged, shape_of
from vla_ros.engine.drafters.recursive import RecursiveDrafter
from vla_ros.engine.drafters.temporal_tree import cut
from vla_ros.engine.drafters.uncertain import UncertainDrafter
from vla_ros.engine.request import Request
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
        if source.captured:
            self._lay_out()

    def _lay_out(self) -> None:
        """A graph up to where Phi is read, and from there to every depth."""
        last = self._calibration.tokens - 1
        bunches = [self._bunch(known, last - known) for known in range(1, len(self.plan.trees))]
        bunches = [bunch for bunch in bunches if any(map(len, bunch.trees))]
        segments = {(0, bunch.common) for bunch in bunches}
        for bunch in bunches:
            deepest = max(len(shape.levels) for shape in bunch.shapes)
            segments |= {(bunch.common, end) for end in range(bunch.common, deepest + 1)}
        shapes = [shape for bunch in bunches for shape in bunch.shapes]
        self._head.lay_out(shapes, sorted(segments), watched=True)

    def prepare(self, request: Request, every: bool = False) -> None:
        self._head.prepare(request, every)

    def saw(self, taps: torch.Tensor, rows: Sequence[int]) -> None:
        self._head.saw(taps, rows)

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        known = len(prefix)
        if not known:
            return super().propose(prefix, limit)
        bunch = self._bunch(known, limit)
        if not any(map(len, bunch.trees)):
            return self._nothing
        with torch.inference_mode():
            deepest = max(len(shape.levels) for shape in bunch.shapes) + 1
            growth = self._head.round(prefix, max(deepest, bunch.common + 1))
            if growth is None:
                return self._nothing
            growth.through(bunch.shapes[0], bunch.common)
            shape, tree = self._chosen(growth, known, bunch)
            if not len(tree):
                self._head.passes += 1 + bunch.common
                return self._nothing
            growth.through(shape, len(shape.levels))
            self._head.passes += 1 + len(shape.levels)
            return Draft(growth.tokens(shape), parents=tree.parents)

    def _bunch(self, known: int, limit: int) -> Bunch:
        open_ = self._calibration.tokens - 1 - known
        levels = min(self._calibration.levels, open_)
        return bunch_of(self.plan.trees[known], limit, levels, self._device)

    def _chosen(self, growth: Round, known: int, bunch: Bunch) -> tuple[Shape, DraftTree]:
        """By Phi, where there is more than one bin."""
        thresholds = self._calibration.states[known].thresholds
        chosen = bin_of(growth.entropy(), thresholds) if thresholds else 0
        return bunch.shapes[chosen], bunch.trees[chosen]


@lru_cache(1024)
def bunch_of(trees: tuple[DraftTree, ...], limit: int, levels: int, device: torch.device) -> Bunch:
    """Trees of at most ``limit`` levels; the base tree has ``levels``, whose likeliest path is
    always grown, since Phi is read off it."""
    kept = tuple(cut(tree, limit) for tree in trees)
    path = DraftTree(tuple(range(ROOT, levels - 1)), (0,) * levels)
    common = merged([path, *(cut(tree, levels) for tree in kept)])
    shapes = tuple(shape_of(tree, device, merged([common, tree])) for tree in kept)
    return Bunch(kept, shapes, levels - 1)
