"""The temporal drafter that names alternatives: a tree of where the last action may have gone.

Per place of the action it learns how far the next token lies from the last one, and drafts the
tree whose nodes are likeliest (:mod:`vla_ros.engine.trees`). It needs no second model. Tokens
change with every frame; the shape of the trees rarely, so that layouts stay planned.

Of a chunk the alternatives lie around what the last chunk said of the same steps, behind its end
around the step before (:mod:`vla_ros.engine.trees.expecting`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from vla_ros.engine.drafters.base import Draft, Offering
from vla_ros.engine.drafters.temporal import Costs, begin
from vla_ros.engine.request import Request
from vla_ros.engine.tokens import ActionTokens
from vla_ros.engine.trees.expected import Budget, due, plan_trees
from vla_ros.engine.trees.expecting import Expecting
from vla_ros.engine.trees.marginals import Offer, TemporalMarginals
from vla_ros.engine.trees.shape import DraftTree


class TemporalTreeDrafter(Offering):
    """Trees of at most ``budget`` nodes around the target's own last choices.

    ``reach`` says how far off a token at a position may be and still stands. With ``costs`` a
    node is drafted only where it pays, and what was learned outlives ``forget``; without, every
    tree is as large as the budget and an episode depends on nothing before it. ``steps`` actions
    make an answer of ``positions`` tokens.
    """

    def __init__(
        self,
        actions: ActionTokens,
        positions: int,
        device: torch.device,
        reach: Callable[[int], int],
        budget: Budget,
        costs: Costs | None = None,
        steps: int = 1,
    ) -> None:
        self._device, self._budget, self._costs = device, budget, costs
        self._positions = positions
        self._nothing = Draft(torch.zeros(0, dtype=torch.long, device=device))
        self.marginals = TemporalMarginals(positions, actions.window, reach)
        self._trees: tuple[DraftTree, ...] = ()
        self._seen = 0  # actions since the beginning of what is learned
        self._expecting = Expecting(positions // steps, steps, actions.window)

    def begin(self, request: Request) -> None:
        begin(self._expecting, request)

    def offer(self, prefix: Sequence[int]) -> Offer | None:
        return self._offer(prefix, len(prefix), self._positions)

    def _offer(self, prefix: Sequence[int], start: int, end: int) -> Offer | None:
        last, before = self._expecting.look(prefix, start, end)
        return self.marginals.offer(last, before, start) if last else None

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        known = len(prefix)
        if not self._trees:
            return self._nothing
        tree = cut(self._trees[known], limit)
        if not len(tree):
            return self._nothing
        offer = self._offer(prefix, known, known + max(tree.levels))
        return self._nothing if offer is None else drafted(tree, offer.tokens, self._device)

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        last, before = self._expecting.look(own, 0, self._positions)
        if last:
            there = self.marginals.offer(last, before).tokens
            self.marginals.update(last, before, own, there)
            self._seen += 1
        self._expecting.observe(own)
        if due(self._seen) or not self._trees:
            self._trees = self._plan()

    def _plan(self) -> tuple[DraftTree, ...]:
        chances = self.marginals.chances[:-1]  # the last token comes with its predecessor's pass
        if self._costs is None:
            return plan_trees(chances, self._budget).trees
        costs = self._costs
        return plan_trees(chances, self._budget, costs.prompt, costs.alone).trees

    def forget(self, damaged: bool = False) -> None:
        """Forget the last answers; with costs what was learned stays."""
        self._expecting.forget(self._costs is None)
        if self._costs is None:
            self.marginals.forget()
            self._trees, self._seen = (), 0


def drafted(tree: DraftTree, there: Sequence[Sequence[int]], device: torch.device) -> Draft:
    """A tree with tokens in place of ranks, ``there`` being the alternatives of its levels."""
    tokens = [there[level - 1][rank] for level, rank in zip(tree.levels, tree.ranks, strict=True)]
    return Draft(torch.tensor(tokens, device=device), parents=tree.parents)


@lru_cache(512)
def cut(tree: DraftTree, levels: int) -> DraftTree:
    """``DraftTree.cut``, remembered: a shape is the same object as long as it is the same."""
    return tree if max(tree.levels, default=0) <= levels else tree.cut(levels)
