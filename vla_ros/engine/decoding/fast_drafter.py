"""Drafts of FAST tokens: the last chunk, moved on by the time since, as the model would spell it.

An answer is spelled from slow movements to fast ones. What follows a token that was guessed wrong
is spelled anew from the coefficient that the answer has reached, so a draft is wrong in one place
and right again behind it, though no token of it stands where it stood.

The alternatives of a tree are other *spellings*: the expected coefficients with one of them off by
a little, which is what a guess is mostly wrong by. Each is spelled whole, and what begins alike is
one branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from vla_ros.core.types import Floats
from vla_ros.engine.decoding.draft_tree import ROOT, Budget, Cost
from vla_ros.engine.decoding.drafters import DECAY, Costs, Draft, Drafter
from vla_ros.engine.io.fast_tokens import FastTokens
from vla_ros.engine.layers.devices import upload
from vla_ros.engine.layers.request import Request

REMEMBERED = 4  # chunks: the one that is executed is among the newest
OFF = (0, 1, -1, 2, -2)  # what a coefficient may be off by; a chain takes the first alone
PRIOR = np.array((0.5, 0.15, 0.15, 0.05, 0.05))  # chances before anything was seen
POOLED = 4.0  # answers that what all coefficients have in common counts for
SPELLINGS = 24  # alternatives that are spelled for a draft

Node = tuple[float, int, tuple[int, ...]]  # chance that it is reached, level, tokens down to it


class FastDrafter(Drafter):
    """Trees, or with ``wide`` false chains, of at most the ``budget``'s tokens. With ``costs`` a
    token is drafted where it pays, by how often each coefficient was as expected or off by a
    little; without, a draft is as large as the budget.

    Nothing is drafted but an answer's fixed beginning before a first chunk is known. The end marker
    never is: it comes with the pass of the token before it.
    """

    def __init__(
        self,
        actions: FastTokens,
        device: torch.device,
        budget: Budget,
        costs: Costs | None,
        wide: bool = False,
    ) -> None:
        self._actions, self._device, self._budget, self._costs = actions, device, budget, costs
        self._off = OFF if wide else OFF[:1]
        self._chunks: dict[int, Floats] = {}  # coefficients [H, A], by stamp
        self._expected: Floats | None = None  # of this frame
        self._stamp = 0
        self._learned = np.zeros((actions.horizon * actions.dim, len(OFF)))  # decayed counts
        self._weight = 0.0  # of the answers behind them

    def begin(self, request: Request) -> None:
        self._stamp = request.stamp_ns
        self._expected = None
        if not self._chunks:
            return
        executing = None if request.observation is None else request.observation.executing
        last, moved = next(reversed(self._chunks)), 0
        if executing is not None and executing.stamp_ns in self._chunks:
            last, moved = executing.stamp_ns, executing.index
        self._expected = shifted(self._actions, self._chunks[last], moved)

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        alone = bool(len(prefix))
        if alone and self._expected is None and len(prefix) >= len(self._actions.prefix):
            return self._draft([])  # without a look at the tokens, which would wait for the device
        nodes = [node for node in self._nodes(list(prefix[:])) if node[1] <= limit]
        nodes = nodes[: self._budget.most(len(prefix))]
        if self._costs is not None:
            cost = self._costs.alone if alone else self._costs.prompt
            nodes = worthwhile(nodes, cost, self._budget.step)
        return self._draft(nodes)

    def ahead(self, said: Sequence[int], count: int) -> list[int]:
        """The next tokens of the likeliest spelling behind ``said``, at most so many; none where
        nothing is known."""
        begin = self._actions.prefix
        if self._expected is None or tuple(said[: len(begin)]) != begin:
            return []
        likeliest, _ = next(self._spellings(list(said[len(begin) :])), ([], []))
        return likeliest[:count]

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        if not self._actions.whole(own):
            return  # what is cut or filled up guesses the next worse than the one before
        numbers = self._actions.coefficients(own)
        if self._expected is not None:
            off = (numbers - self._expected).flatten()
            self._learned = DECAY * self._learned + (off[:, None] == np.array(OFF))
            self._weight = DECAY * self._weight + 1.0
        self._chunks[self._stamp] = numbers
        while len(self._chunks) > REMEMBERED:
            del self._chunks[next(iter(self._chunks))]

    def forget(self, damaged: bool = False) -> None:
        """Forget the last chunks; how often a guess was right stays, where drafts are to pay."""
        self._chunks.clear()
        self._expected = None
        if self._costs is None:
            self._learned[:] = self._weight = 0.0

    def _draft(self, nodes: Sequence[Node]) -> Draft:
        place = {path: number for number, (_, _, path) in enumerate(nodes)}
        parents = tuple(place.get(path[:-1], ROOT) for path in place)
        tokens = [path[-1] for path in place]
        return Draft(upload(tokens, self._device, torch.long), parents=parents)

    def _nodes(self, said: list[int]) -> list[Node]:
        """Tokens that may follow, the likeliest first and none before what it follows."""
        begin = self._actions.prefix
        ahead = begin[len(said) :]
        if said[: len(begin)] != list(begin[: len(said)]) and ahead:
            return []
        found = {ahead[: n + 1]: 1.0 for n in range(len(ahead))}
        if self._expected is not None:
            for spelling, chances in self._spellings([*said, *ahead][len(begin) :]):
                for n, chance in enumerate(chances, 1):
                    path = (*ahead, *spelling[:n])
                    found[path] = max(chance, found.get(path, 0.0))
        nodes = [(chance, len(path), path) for path, chance in found.items()]
        return sorted(nodes, key=lambda node: (-node[0], node[1]))

    def _spellings(self, said: list[int]) -> Iterator[tuple[list[int], list[float]]]:
        """Token after token of what may follow the action tokens ``said``, and the chance that it
        comes so far: first as it is expected, then with one coefficient off."""
        assert self._expected is not None
        last, tokenizer = self._actions.last, self._actions.tokenizer
        try:
            reached, begun, done = tokenizer.reached([last - token for token in said])
        except OverflowError:
            return
        rest = self._expected.flatten()[reached:]
        rest[: len(done)] = done[: len(rest)]
        chances = self.chances[reached:]
        before = np.concatenate(((1.0,), chances[:, 0].cumprod()))
        changed = before[:-1, None] * chances
        changed[:, 0] = 0.0  # which is no change
        least = 0.0 if self._costs is None else self._costs.alone.token
        order = np.argsort(-changed, axis=None, kind="stable")[:SPELLINGS].tolist()
        kinds = len(self._off)
        for place, kind in [(0, 0), *(divmod(n, kinds) for n in order if changed.flat[n] > least)]:
            other, likely = rest.copy(), chances[:, 0].copy()
            if kind:
                other[place] += self._off[kind]
                likely[place] = chances[place, kind]
            tokens, ends = tokenizer.spelled_to(other)
            if tokens[: len(begun)] == begun:
                reach = np.concatenate(((1.0,), likely.cumprod()))[ends[len(begun) :]]
                yield [last - token for token in tokens[len(begun) :]], reach.tolist()

    @property
    def chances(self) -> Floats:
        """Chance of every coefficient to be off by so much [H * A, offsets]."""
        prior = PRIOR if self._costs is None else np.zeros(len(OFF))
        shared = (self._learned.mean(0) + prior) / max(1.0, self._weight + (self._costs is None))
        found = (self._learned + POOLED * shared) / (self._weight + POOLED)
        # at most 1 whatever is rounded: a token is never likelier than what it follows
        return np.minimum(found[:, : len(self._off)], 1.0)


def worthwhile(nodes: Sequence[Node], cost: Cost, step: int = 1) -> list[Node]:
    """Those of ``nodes``, the likeliest first, that save more than they cost, and as many more as
    fill a draft up to a multiple of ``step``; none where all of them save less than a draft costs.

    A token that is reached saves a pass."""
    paying = sum(chance > cost.token for chance, _, _ in nodes)
    gain = sum(chance - cost.token for chance, _, _ in nodes[:paying])
    return list(nodes[: -(-paying // step) * step]) if gain > cost.draft else []


def shifted(actions: FastTokens, numbers: Floats, moved: int) -> Floats:
    """Coefficients of a chunk, begun ``moved`` actions later; behind its end it goes on as its last
    two actions did, which guesses 1.2 to 2 times the tokens of standing still."""
    if moved <= 0:
        return numbers
    chunk = actions.tokenizer.chunk(numbers)
    moved = min(moved, len(chunk) - 1)
    slope = chunk[-1] - chunk[-2] if len(chunk) > 1 else np.zeros(actions.dim)
    behind = chunk[-1] + np.arange(1, moved + 1)[:, None] * slope
    return actions.tokenizer.coefficients(np.concatenate((chunk[moved:], behind)))
