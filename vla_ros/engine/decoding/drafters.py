"""Drafters: where draft tokens come from. Here what a drafter is, and those of earlier answers.

``temporal`` drafts a chain, ``temporal_tree`` a tree of candidates; neither needs a second model.
The others: :mod:`.head_drafters` (a head on the target) and the lab's draft model (a small VLA).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from vla_ros.engine.decoding.draft_tree import Budget, Cost, DraftTree, due, plan_trees
from vla_ros.engine.decoding.temporal_prediction import (
    Candidates,
    TemporalMarginals,
    TemporalPredictor,
)
from vla_ros.engine.io.tokens import ActionTokens
from vla_ros.engine.layers.devices import upload
from vla_ros.engine.layers.request import Request


@dataclass(frozen=True, slots=True)
class Draft:
    """``tokens`` int64 [d] of the target's vocabulary, on the device, d may be 0.

    ``parents`` makes a tree of them: of every token the one that it follows, which is before it,
    or -1 for the last token that is known; None: each follows the one before it.
    ``probabilities`` [d, bins] is the distribution over the action tokens, in the order of their
    ids, that each token was drawn from; None when the drafter has none (it is then taken to be
    certain; so it is of every tree). Where the target samples, all tokens are action tokens.
    """

    tokens: torch.Tensor
    probabilities: torch.Tensor | None = None
    parents: tuple[int, ...] | None = None


class Drafter(ABC):
    """Called in this order for every action: begin, (propose, verified, observe_taps)*, observe."""

    passes = 0  # passes of a draft model since ``begin``
    full = False  # a draft has as many tokens as are asked for
    layers: tuple[int, ...] = ()  # of the target whose outputs ``observe_taps`` is to show

    def instruct(self, text: str) -> None:
        """A new instruction."""

    def prepare(self, request: Request, every: bool = False) -> None:
        """Run every shape of a draft model's passes once; as ``Decoding.prepare``."""

    def begin(self, request: Request) -> None:
        """A new frame."""

    @abstractmethod
    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        """At most ``limit`` tokens to follow ``prefix``, the action's tokens so far."""

    def verified(self, draft: Sequence[int], accepted: int) -> None:
        """Take in the verdict on the last proposal."""

    def observe_taps(self, taps: torch.Tensor, rows: Sequence[int]) -> None:
        """The target's hidden states: outputs of ``layers`` [R, layers * C] in its last pass.

        ``rows`` of them are the accepted tokens, in order; the newest token was chosen in the last
        one. On the device; only where ``layers`` are wanted.
        """

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        """The finished action: its tokens, and what the target itself chose."""

    def forget(self, damaged: bool = False) -> None:
        """Forget earlier actions: a new episode or instruction; see ``Decoding.forget``."""


DECAY = 0.9


class AcceptanceStatistics:
    """Rate at which each position's draft would be accepted: a mean whose weights decay by 0.9.

    Before the first outcome every rate is 0, so nothing is drafted unproven; the first outcome
    then counts fully, the second about half, and so on, so a guess that is right is believed
    soon. A position's rate is conditional on all before it being accepted, so a draft's j-th
    token is useful with the product of the first j rates.
    """

    def __init__(self, positions: int) -> None:
        self._rates = [0.0] * positions
        self._weight = 0.0  # of all outcomes together; a new one has 1

    @property
    def rates(self) -> tuple[float, ...]:
        return tuple(self._rates)

    def update(self, accepted: Sequence[bool]) -> None:
        """One action's outcome per position."""
        self._weight = DECAY * self._weight + 1.0
        for position, hit in enumerate(accepted):
            self._rates[position] += (float(hit) - self._rates[position]) / self._weight

    def worthwhile(self, start: int, limit: int, cost: Cost) -> int:
        """Length of the draft from ``start`` on that saves most; 0 where none saves anything.

        A draft token saves a pass when it and all before it are accepted.
        """
        chance, gain, best, length = 1.0, -cost.draft, 0.0, 0
        for number, rate in enumerate(self._rates[start : start + limit], start=1):
            chance *= rate
            gain += chance - cost.token
            if gain > best:
                best, length = gain, number
        return length


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of a draft behind a prompt, and of one behind a single token."""

    prompt: Cost
    alone: Cost


#: A draft costs a look at the verdict (on a GPU a host sync) and some bookkeeping. A pass reads all
#: weights for little arithmetic, so its further tokens are nearly free, least so in fp32 on a CPU.
#: Measured with the rows of `vla-ros bench` on a Xeon; the GPU's are estimated, on the safe side.
FP32_CPU = Costs(Cost(0.08, 0.08), Cost(0.08, 0.25))
CPU = Costs(Cost(0.08, 0.03), Cost(0.08, 0.03))
GPU = Costs(Cost(0.08, 0.01), Cost(0.08, 0.01))


def costs_on(device: torch.device, dtype: torch.dtype) -> Costs:
    """The costs that apply here."""
    if device.type != "cpu":
        return GPU
    return FP32_CPU if dtype == torch.float32 else CPU


class TemporalDrafter(Drafter):
    """Drafts a chain: the last action's tokens, or ``linear``: last + (last - the one before).

    It extrapolates the target's own choices, never relaxed ones, so that relaxed acceptance
    cannot feed on itself. ``matches``: would a guess have been accepted? ``adaptive`` makes a draft
    as long as the statistics say; they outlive ``forget``, so a draft's length depends on earlier
    episodes, and with it, in bf16, a close call between two tokens. ``steps`` actions make an
    answer of ``positions`` tokens.
    """

    def __init__(
        self,
        actions: ActionTokens,
        positions: int,
        device: torch.device,
        matches: Callable[[int, int, int], bool],
        linear: bool = False,
        adaptive: bool = True,
        dtype: torch.dtype = torch.float32,
        steps: int = 1,
    ) -> None:
        self._actions, self._device, self._matches = actions, device, matches
        self._linear, self._adaptive = linear, adaptive
        self._costs = costs_on(device, dtype)
        self._nothing = Draft(torch.zeros(0, dtype=torch.long, device=device))
        self._positions = positions
        self.statistics = AcceptanceStatistics(positions)
        self._predictor = TemporalPredictor(positions // steps, steps, actions.window)

    def begin(self, request: Request) -> None:
        begin(self._predictor, request)

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        start, length = len(prefix), limit
        if self._adaptive:
            cost = self._costs.alone if start else self._costs.prompt
            length = self.statistics.worthwhile(start, limit, cost)
        guess = self._guess(prefix, start, start + length)
        if not guess:
            return self._nothing
        return Draft(upload(guess, self._device, torch.long))

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        guess = self._guess(own, 0, self._positions)
        if guess:
            pairs = zip(guess, own, strict=True)
            self.statistics.update([self._matches(g, o, i) for i, (g, o) in enumerate(pairs)])
        self._predictor.observe(own)

    def _guess(self, prefix: Sequence[int], start: int, end: int) -> Sequence[int]:
        if end <= start:
            return ()
        last, before = self._predictor.predict(prefix, start, end)
        return self._extrapolate(last, before) if self._linear and before else last

    def _extrapolate(self, last: Sequence[int], before: Sequence[int]) -> list[int]:
        actions = self._actions
        out = []
        for now, then in zip(last, before, strict=True):
            moved = min(max(2 * now - then, actions.first), actions.vocab - 1)
            both = actions.is_action(now) and actions.is_action(then)
            out.append(moved if both else now)
        return out

    def forget(self, damaged: bool = False) -> None:
        """Forget the last action; what was learned about acceptance stays."""
        self._predictor.forget(not self._adaptive)


def begin(predictor: TemporalPredictor, request: Request) -> None:
    """Begin a frame; the observation may name the chunk that the robot executes meanwhile."""
    chunk = None if request.observation is None else request.observation.executing
    predictor.begin(request.stamp_ns, None if chunk is None else (chunk.stamp_ns, chunk.index))


class TemporalTreeDrafter(Drafter):
    """Trees of at most ``budget`` nodes around the target's own last choices.

    ``tolerance``: how many bins a token at a position may be off and still be accepted. With
    ``costs`` a node is drafted only where it pays, and what was learned outlives ``forget``;
    without, every tree is as large as the budget and an episode depends on nothing before it.
    ``steps`` actions make an answer of ``positions`` tokens.
    """

    def __init__(
        self,
        actions: ActionTokens,
        positions: int,
        device: torch.device,
        tolerance: Callable[[int], int],
        budget: Budget,
        costs: Costs | None = None,
        steps: int = 1,
    ) -> None:
        self._device, self._budget, self._costs = device, budget, costs
        #: what a tree must be worth behind a prompt and behind a token; None: any is drafted
        self.paid: tuple[Cost | None, Cost | None] = (None, None)
        if costs is not None:
            self.paid = costs.prompt, costs.alone
        self._positions = positions
        self._nothing = Draft(torch.zeros(0, dtype=torch.long, device=device))
        self.marginals = TemporalMarginals(positions, actions.window, tolerance)
        self._trees: tuple[DraftTree, ...] = ()
        self._seen = 0  # actions since the beginning of what is learned
        self._predictor = TemporalPredictor(positions // steps, steps, actions.window)

    def begin(self, request: Request) -> None:
        begin(self._predictor, request)

    def candidates(self, prefix: Sequence[int]) -> Candidates | None:
        """The candidates at the open places behind ``prefix``, with their chances; None where
        there is nothing to go by."""
        return self._candidates(prefix, len(prefix), self._positions)

    def _candidates(self, prefix: Sequence[int], start: int, end: int) -> Candidates | None:
        last, before = self._predictor.predict(prefix, start, end)
        return self.marginals.candidates(last, before, start) if last else None

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        known = len(prefix)
        if not self._trees:
            return self._nothing
        tree = cut(self._trees[known], limit)
        if not len(tree):
            return self._nothing
        offer = self._candidates(prefix, known, known + max(tree.levels))
        return self._nothing if offer is None else drafted(tree, offer.tokens, self._device)

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        last, before = self._predictor.predict(own, 0, self._positions)
        if last:
            there = self.marginals.candidates(last, before).tokens
            self.marginals.update(last, before, own, there)
            self._seen += 1
        self._predictor.observe(own)
        if due(self._seen) or not self._trees:
            self._trees = self._plan()

    def _plan(self) -> tuple[DraftTree, ...]:
        chances = self.marginals.chances[:-1]  # the last token comes with its predecessor's pass
        return plan_trees(chances, self._budget, *self.paid).trees

    def forget(self, damaged: bool = False) -> None:
        """Forget the last answers; with costs what was learned stays."""
        self._predictor.forget(self._costs is None)
        if self._costs is None:
            self.marginals.forget()
            self._trees, self._seen = (), 0


def drafted(tree: DraftTree, there: Sequence[Sequence[int]], device: torch.device) -> Draft:
    """A tree with tokens in place of ranks, ``there`` being the candidates of its levels."""
    tokens = [there[level - 1][rank] for level, rank in zip(tree.levels, tree.ranks, strict=True)]
    return Draft(upload(tokens, device, torch.long), parents=tree.parents)


@lru_cache(512)
def cut(tree: DraftTree, levels: int) -> DraftTree:
    """``DraftTree.cut``, remembered: a shape is the same object as long as it is the same."""
    return tree if max(tree.levels, default=0) <= levels else tree.cut(levels)
