"""The temporal drafter that names alternatives: a tree of where the last action may have gone.

Per place of the action it learns how far the next token lies from the last one, and drafts the
tree whose nodes are likeliest (:mod:`vla_ros.engine.trees`). It needs no second model. Tokens
change with every frame; the shape of the trees rarely, so that layouts stay planned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from vla_ros.engine.drafters.base import Draft, Offering
from vla_ros.engine.drafters.temporal import Costs
from vla_ros.engine.tokens import ActionTokens
from vla_ros.engine.trees.expected import Budget, due, plan_trees
from vla_ros.engine.trees.marginals import Offer, TemporalMarginals
from vla_ros.engine.trees.shape import DraftTree


class TemporalTreeDrafter(Offering):
    """Trees of at most ``budget`` nodes around the target's own last choices.

    ``reach`` says how far off a token at a position may be and still stands. With ``costs`` a
    node is drafted only where it pays, and what was learned outlives ``forget``; without, every
    tree is as large as the budget and an episode depends on nothing before it.
    """

    def __init__(
        self,
        actions: ActionTokens,
        positions: int,
        device: torch.device,
        reach: Callable[[int], int],
        budget: Budget,
        costs: Costs | None = None,
    ) -> None:
        self._device, self._budget, self._costs = device, budget, costs
        self._nothing = Draft(torch.zeros(0, dtype=torch.long, device=device))
        self.marginals = TemporalMarginals(positions, actions.window, reach)
        self._trees: tuple[DraftTree, ...] = ()
        self._seen = 0  # actions since the beginning of what is learned
        self._last: tuple[int, ...] = ()
        self._before: tuple[int, ...] = ()
        self._offer: Offer | None = None

    def offer(self, prefix: Sequence[int]) -> Offer | None:
        return None if self._offer is None else self._offer.behind(len(prefix))

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        known = len(prefix)
        if self._offer is None:
            return self._nothing
        tree = cut(self._trees[known], limit)
        if not len(tree):
            return self._nothing
        return drafted(tree, self._offer.tokens[known:], self._device)

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        if self._offer is not None:
            self.marginals.update(self._last, self._before, own, self._offer.tokens)
            self._seen += 1
        self._before, self._last = self._last, tuple(own)
        self._offer = self.marginals.offer(self._last, self._before)
        if due(self._seen) or not self._trees:
            self._trees = self._plan()

    def _plan(self) -> tuple[DraftTree, ...]:
        chances = self.marginals.chances[:-1]  # the last token comes with its predecessor's pass
        if self._costs is None:
            return plan_trees(chances, self._budget).trees
        costs = self._costs
        return plan_trees(chances, self._budget, costs.prompt, costs.alone).trees

    def forget(self, damaged: bool = False) -> None:
        """Forget the last actions; with costs what was learned stays."""
        self._last, self._before, self._offer = (), (), None
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
