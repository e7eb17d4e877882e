"""Speculative decoding over draft trees, fused into the prefill.

The tree lies behind the prompt in the prefill's own pass; in a later pass the last known token is
its root. Every node sees the prompt, what stands of the action, and its own branch. The path that
stands is then moved to where a chain would have put it, K and V of all layers at once; what was
rejected is overwritten by the next pass before anything can see it.

Where passes are captured, trees are filled up to a multiple of the budget's ``step`` nodes: shapes
are then few, and all known before service.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from vla_ros.engine.drafters.acceptance import Acceptance, Seen
from vla_ros.engine.drafters.base import Draft, Drafter
from vla_ros.engine.drafters.verdict import Verdict
from vla_ros.engine.model import VLAModel
from vla_ros.engine.packed.lane import BUCKET
from vla_ros.engine.packed.pack import PackLayout, TailToken, branching
from vla_ros.engine.request import Request
from vla_ros.engine.schedules.growing_action import GrowingAction
from vla_ros.engine.schedules.speculative import FILLER, Speculative
from vla_ros.engine.trees.expected import Budget
from vla_ros.engine.trees.shape import ROOT, branches

LAYOUTS = 512  # remembered; shapes of trees change rarely


class TreeSpeculative(Speculative):
    """Speculation whose drafts are trees of at most ``budget`` nodes.

    ``fixed_shapes``: every tree is filled up to the budget, so that there are two shapes.
    """

    def __init__(
        self,
        model: VLAModel,
        tokens: int,
        max_prompt: int,
        drafter: Drafter,
        acceptance: Acceptance,
        budget: Budget,
        gamma: int | None = None,
        fixed_shapes: bool = False,
    ) -> None:
        self._budget = budget
        self._nodes = self._trunk = 0  # of the last pass: its first node's entry, and place
        super().__init__(model, tokens, max_prompt, drafter, acceptance, gamma, fixed_shapes)
        self._fixed = fixed_shapes

    def _needed(self) -> int:
        return BUCKET + max(self._budget.prompt, self.count + self._budget.alone)

    def _first_pass(self, request: Request, draft: Draft) -> Seen:
        length = len(request.prompt)
        size = self._size(draft, self._budget.prompt)
        self._nodes, self._trunk = self.lane.behind(length), length
        layout = behind_prompt(length, self._nodes, draft.parents or (), size)
        tokens = self._padded(draft.tokens, size) if size else None
        seen = self.acceptance.verify(self.lane, layout, request.prompt, tokens)
        return tuple(rows[: len(draft.tokens) + 1] for rows in seen)

    def _next_pass(self, last: torch.Tensor, draft: Draft, start: int) -> Seen:
        size = self._size(draft, self._budget.alone)
        self._nodes = self._trunk = start + 1
        layout = behind_root(start, draft.parents or (), size)
        tokens = torch.cat((last, self._padded(draft.tokens, size))) if size else last
        seen = self.acceptance.verify(self.lane, layout, None, tokens)
        return tuple(rows[: len(draft.tokens) + 1] for rows in seen)

    def _size(self, draft: Draft, most: int) -> int:
        """Nodes of the pass that verifies a draft."""
        if self._fixed:
            return most
        step = self._budget.step
        return min(-(-len(draft.tokens) // step) * step, most)

    def _padded(self, tokens: torch.Tensor, size: int) -> torch.Tensor:
        missing = size - len(tokens)
        return torch.cat((tokens, tokens.new_full((missing,), FILLER))) if missing else tokens

    def _keep(self, verdict: Verdict, action: GrowingAction) -> None:
        source = [self._nodes + node for node in verdict.path]
        target = list(range(self._trunk, self._trunk + len(source)))
        if source != target and len(action) < self.count:
            moved = torch.tensor([source, target], device=self.model.device)
            self.lane.ring.move(0, *moved)

    def rehearse(self, request: Request) -> None:
        """Every number of nodes that may come, where they come in steps; else the most."""
        length, budget = len(request.prompt), self._budget
        self.lane.fit(length + self._entries)
        last = torch.full((1,), FILLER, device=self.model.device)
        for size in budget.sizes(budget.prompt):
            self._first_pass(request, self._siblings(size))
        for size in budget.sizes(budget.alone):
            self._next_pass(last, self._siblings(size), length)
        self._keep(Verdict((), (), (), 1, True, (1,)), GrowingAction(self.count))

    def _siblings(self, count: int) -> Draft:
        tokens = torch.full((count,), FILLER, device=self.model.device)
        return Draft(tokens, parents=(ROOT,) * count)


@lru_cache(LAYOUTS)
def behind_prompt(length: int, start: int, parents: tuple[int, ...], size: int) -> PackLayout:
    """A prompt and a tree behind it, whose nodes lie in the entries from ``start`` on."""
    rows = tuple(range(length - 1, length + size))
    return PackLayout(rows=rows, prefill=length, tail=_nodes(start, length, parents, size))


@lru_cache(LAYOUTS)
def behind_root(entry: int, parents: tuple[int, ...], size: int) -> PackLayout:
    """The last known token in its entry, and a tree behind it."""
    nodes = _nodes(entry + 1, entry + 1, parents, size)
    return PackLayout(rows=tuple(range(1 + size)), tail=(TailToken(0, entry), *nodes))


def _nodes(start: int, trunk: int, parents: tuple[int, ...], size: int) -> tuple[TailToken, ...]:
    """The tree, and what fills it up: tokens that see themselves only."""
    tree = branching(0, start, trunk, branches(parents))
    return (
        *tree,
        *(TailToken(0, n, trunk, (n,)) for n in range(start + len(tree), start + size)),
    )
