"""Drafts of FAST tokens: the last chunk, moved on by the time since, as the model would spell it.

An answer is spelled from slow movements to fast ones. What follows a token that was guessed wrong
is spelled anew from the coefficient that the answer has reached, so a draft is wrong in one place
and right again behind it, though no token of it stands where it stood.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from vla_ros.core.types import Floats
from vla_ros.engine.decoding.draft_tree import ROOT, Budget, Cost
from vla_ros.engine.decoding.drafters import DECAY, Costs, Draft, Drafter
from vla_ros.engine.decoding.request import Request
from vla_ros.engine.io.fast_tokens import FastTokens

REMEMBERED = 4  # chunks: the one that is executed is among the newest


class FastDrafter(Drafter):
    """Chains of at most the ``budget``'s tokens. With ``costs`` a draft is as long as pays, by how
    often a guess was right; without, as long as the budget.

    Nothing is drafted but an answer's fixed beginning before a first chunk is known.
    """

    def __init__(
        self, actions: FastTokens, device: torch.device, budget: Budget, costs: Costs | None
    ) -> None:
        self._actions, self._device, self._budget, self._costs = actions, device, budget, costs
        self._chunks: dict[int, Floats] = {}  # coefficients [H, A], by stamp
        self._expected: Floats | None = None  # of this frame
        self._stamp = 0
        self._right, self._weight = 0.0, 0.0  # how often a guess was right; decayed

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
        most = min(limit, self._budget.alone if alone else self._budget.prompt)
        if alone and self._expected is None and len(prefix) >= len(self._actions.prefix):
            return self._draft([])  # without a look at the tokens, which would wait for the device
        guess = self._guess(list(prefix[:]))[:most]
        if self._costs is not None:
            cost = self._costs.alone if alone else self._costs.prompt
            fixed = max(0, len(self._actions.prefix) - len(prefix))
            guess = guess[: worthwhile(fixed, self._right, len(guess), cost)]
        return self._draft(guess)

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        actions = self._actions
        self._learn(list(own))
        try:
            numbers = actions.tokenizer.numbers([actions.last - t for t in actions.body(own)])
        except OverflowError:
            return
        wanted = actions.horizon * actions.dim
        if len(numbers) == wanted:
            self._chunks[self._stamp] = numbers.reshape(actions.horizon, actions.dim)
        while len(self._chunks) > REMEMBERED:
            del self._chunks[next(iter(self._chunks))]

    def forget(self, damaged: bool = False) -> None:
        """Forget the last chunks; how often a guess was right stays, where drafts are to pay."""
        self._chunks.clear()
        self._expected = None
        if self._costs is None:
            self._right = self._weight = 0.0

    def _draft(self, guess: list[int]) -> Draft:
        parents = tuple(range(ROOT, len(guess) - 1))
        return Draft(torch.tensor(guess, dtype=torch.long, device=self._device), parents=parents)

    def _guess(self, said: list[int]) -> list[int]:
        """What follows, to the end marker."""
        actions = self._actions
        begin = list(actions.prefix)
        if len(said) < len(begin):
            if said != begin[: len(said)]:
                return []
            return begin[len(said) :] + self._guess(begin)
        if self._expected is None:
            return []
        try:
            reached = len(actions.tokenizer.numbers([actions.last - t for t in said[len(begin) :]]))
        except OverflowError:
            return []
        rest = actions.tokenizer.spelled(self._expected.flatten()[reached:])
        return [*(actions.last - token for token in rest), actions.end]

    def _learn(self, own: list[int]) -> None:
        """How often this frame's guesses would have been right, as drafts of any length."""
        if self._expected is None:
            return
        place = len(self._actions.prefix)
        while place < len(own):
            guess = self._guess(own[:place])
            hits = 0
            while hits < min(len(guess), len(own) - place) and guess[hits] == own[place + hits]:
                hits += 1
            missed = place + hits < len(own)
            for right in (*(True,) * hits, *(False,) * missed):
                self._weight = STEADY * self._weight + 1.0
                self._right += (right - self._right) / self._weight
            place += hits + 1


STEADY = DECAY ** (1 / 8)  # guesses are many in an answer


def worthwhile(fixed: int, right: float, limit: int, cost: Cost) -> int:
    """The length of a draft that saves most, whose first ``fixed`` tokens are certain and every
    further one is right with the chance ``right``; 0 where none saves anything."""
    chance, gain, best, length = 1.0, -cost.draft, 0.0, 0
    for number in range(1, limit + 1):
        chance *= 1.0 if number <= fixed else right
        gain += chance - cost.token
        if gain > best:
            best, length = gain, number
    return length


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
