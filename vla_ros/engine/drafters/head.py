"""A draft head beside the target: alternatives read off what the target has just thought.

The first pass of an action is the prefill with the tree of :mod:`.temporal_tree` behind it, since
before the prefill there is nothing to read. From then on the head
(:mod:`vla_ros.engine.draft_heads`) gives once a round the chances of all tokens that are left, and
the tree is the likeliest part of their product. Its shape is planned beforehand, from how often
each rank was right on episodes held out; so layouts and graphs outlive frames, and nothing of the
chances is read by the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F

from vla_ros.engine.draft_heads import RANKED, OneShotHead
from vla_ros.engine.drafters.base import Draft
from vla_ros.engine.drafters.spacing import spaced
from vla_ros.engine.drafters.temporal import Costs
from vla_ros.engine.drafters.temporal_tree import TemporalTreeDrafter, cut
from vla_ros.engine.packed.graphs import Capture
from vla_ros.engine.request import Request
from vla_ros.engine.tokens import ActionTokens
from vla_ros.engine.trees.expected import Budget, plan_states
from vla_ros.engine.trees.shape import DraftTree

Embed = Callable[[torch.Tensor], torch.Tensor]


class HeadDrafter(TemporalTreeDrafter):
    """``embed`` gives the target's embeddings [N, C] of tokens int64 [N]; the rest is as of the
    temporal trees, ``costs.alone`` with the head's own share. A tree that does not pay costs
    nothing: the head is then not asked."""

    def __init__(
        self,
        actions: ActionTokens,
        device: torch.device,
        reach: Callable[[int], int],
        budget: Budget,
        head: OneShotHead,
        embed: Embed,
        costs: Costs | None = None,
        capture: Capture | None = None,
    ) -> None:
        config = head.config
        super().__init__(actions, config.tokens, device, reach, budget, costs)
        self.layers = config.layers
        self._actions, self._positions = actions, config.tokens
        self._chances: list[list[list[float]]] = head.chances.tolist()
        self._guess = Guess(head, embed, actions, [reach(p) for p in range(1, config.tokens - 1)])
        if capture is not None:
            self._guess = CapturedGuess(self._guess, device, head, capture)
        self._past = [-1] * (2 * config.tokens)
        self._taps: torch.Tensor | None = None
        self._trees = self._plan()

    def begin(self, request: Request) -> None:
        self.passes, self._taps = 0, None

    def saw(self, taps: torch.Tensor, rows: Sequence[int]) -> None:
        self._taps = taps[rows[-1] : rows[-1] + 1]

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        known = len(prefix)
        if not known:
            return super().propose(prefix, limit)
        tree = cut(self._trees[known], limit)
        if not len(tree) or self._taps is None:
            return self._nothing
        self.passes += 1
        told = torch.tensor([[prefix[-1], known, *self._past]], device=self._device)
        with torch.inference_mode():
            ranked = self._guess(self._taps, told)[known - 1 :]
            tokens = ranked.flatten()[_nodes(tree, self._device)]
        return Draft(tokens, parents=tree.parents)

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        super().observe(tokens, own)
        self._remember()

    def forget(self, damaged: bool = False) -> None:
        super().forget(damaged)
        self._taps = None
        self._remember()
        self._trees = self._trees or self._plan()

    def _remember(self) -> None:
        first, nothing = self._actions.first, [-1] * self._positions
        self._past = [
            token - first if token in self._actions.window else -1
            for action in (self._expecting.newest, self._expecting.before)
            for token in (action or nothing)
        ]

    def _plan(self) -> tuple[DraftTree, ...]:
        states = [self.marginals.chances[:-1]]
        states += [rows[known:] for known, rows in enumerate(self._chances)]
        costs = self._costs
        if costs is None:
            return plan_states(states, self._budget).trees
        return plan_states(states, self._budget, costs.prompt, costs.alone).trees


class Guess:
    """The alternatives of every place, ranked. ``reach`` per place: how far from the target's
    choice a token still stands; alternatives lie so far apart that none covers another's."""

    def __init__(
        self, head: OneShotHead, embed: Embed, actions: ActionTokens, reach: Sequence[int]
    ) -> None:
        self._head, self._embed, self._first = head, embed, actions.first
        self._reach = max(reach, default=0)
        self._apart = [place for place, bins in enumerate(reach) if bins]

    def __call__(self, taps: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
        """taps [1, layers * C]; ``told`` int64 [1, 2 + 2 tokens]: the newest token, then as the
        head's ``past`` -> tokens int64 [places, RANKED]."""
        logits = self._head(taps, self._embed(told[:, 0]), told[:, 1:])[0].float()
        width = min(RANKED, logits.shape[1])
        ranked = logits.topk(width).indices
        if self._reach:
            apart = spaced(logits.softmax(-1), self._reach, width)
            ranked = ranked.clone()
            ranked[self._apart] = apart[self._apart]
        return self._first + F.pad(ranked, (0, RANKED - width))


class CapturedGuess(Guess):
    """The same through one graph."""

    def __init__(
        self, guess: Guess, device: torch.device, head: OneShotHead, capture: Capture
    ) -> None:
        config, like = head.config, head.bins.weight
        self._taps = torch.zeros(
            1, len(config.layers) * config.hidden, dtype=like.dtype, device=device
        )
        self._told = torch.zeros(1, 2 + 2 * config.tokens, dtype=torch.long, device=device)
        with torch.inference_mode():
            self._replay = capture(lambda: (guess(self._taps, self._told),))

    def __call__(self, taps: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
        self._taps.copy_(taps)
        self._told.copy_(told)
        return self._replay()[0]


@lru_cache(512)
def _nodes(tree: DraftTree, device: torch.device) -> torch.Tensor:
    """Where the tokens of a tree's nodes are among the ranked alternatives of its levels."""
    pairs = zip(tree.levels, tree.ranks, strict=True)
    return torch.tensor([(level - 1) * RANKED + rank for level, rank in pairs], device=device)
