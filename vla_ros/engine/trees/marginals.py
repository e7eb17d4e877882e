"""What is learned of a stream of actions for draft trees: where each token goes from the last one.

Per place of an action: how often the next token lay so many bins from the last one, apart for
dimensions at rest, those that crept and those that moved, either way (all decayed, so that they
follow the policy). That orders the *alternatives* to the last token. And how often the alternative
of each rank was right, over all kinds: that is what shapes the trees.

Before anything is seen, near bins are likelier than far ones. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

WIDTH = 16  # alternatives that are ranked
DECAY = 0.99
CREPT = 4  # bins: a token that changed by more has moved
KINDS = 5  # at rest; crept and moved, down and up
PRIOR = 1.5  # chances fall with (1 + distance) to this power until there is something better
SEEN = 2.0  # the actions that the prior counts for, of one kind
RANKED = 8.0  # the same of the ranks


@dataclass(frozen=True, slots=True)
class Offer:
    """Of some positions of an action, in order: ``tokens`` [ranks] that may come, the likeliest
    first, and the ``chances`` [ranks] that the drafter gives them just now."""

    tokens: tuple[tuple[int, ...], ...]
    chances: tuple[tuple[float, ...], ...]

    def behind(self, known: int) -> Offer:
        """Without the first ``known`` positions."""
        return Offer(self.tokens[known:], self.chances[known:]) if known else self


class TemporalMarginals:
    """``window`` are the tokens of the bins, side by side in order; ``positions`` of an action.

    ``reach`` says how far from the target's own choice a draft at a position may be and still
    stands; alternatives then lie so far apart that none covers what another does. What was seen
    weighs ``decay`` times as much with every action.
    """

    def __init__(
        self,
        positions: int,
        window: range,
        reach: Callable[[int], int] = lambda position: 0,
        width: int = WIDTH,
        decay: float = DECAY,
    ) -> None:
        self._decay = decay
        self._window, self._width = window, min(width, len(window))
        self._reach = tuple(reach(position) for position in range(positions))
        self._positions = positions
        self.forget()

    def forget(self) -> None:
        """As at the beginning."""
        distance = np.abs(np.arange(1 - len(self._window), len(self._window)))
        near = (1.0 + distance) ** -PRIOR
        shape = (self._positions, KINDS, 1)
        self._moves: Floats = np.tile(SEEN * near / near.sum(), shape)
        ranks = (1.0 + np.arange(self._width)) ** -PRIOR
        self._ranks: Floats = np.tile(RANKED * ranks / ranks.sum(), (self._positions, 1))
        self._weight = RANKED
        self._near: dict[tuple[int, int, int], tuple[list[int], list[float]]] = {}

    @property
    def chances(self) -> list[list[float]]:
        """Per position and rank: that this alternative stands. Falling in the rank."""
        falling = np.minimum.accumulate(self._ranks / self._weight, axis=1)
        found: list[list[float]] = falling.tolist()
        return found

    def alternatives(self, last: Sequence[int], before: Sequence[int]) -> list[list[int]]:
        """Per position the tokens that may follow those of the last action, the likeliest first.

        ``before`` is the action before the last, or empty. What is no bin is only repeated.
        """
        return [tokens for tokens, _ in self._ranked(last, before)]

    def offer(self, last: Sequence[int], before: Sequence[int], start: int = 0) -> Offer:
        """The same alternatives, each with its chance as things are: how what is at rest, creeps
        or moves has gone on. What is no bin is certain to be repeated. ``last`` and ``before`` are
        of the positions from ``start`` on."""
        ranked = self._ranked(last, before, start)
        return Offer(
            tuple(tuple(tokens) for tokens, _ in ranked),
            tuple(tuple(chances) for _, chances in ranked),
        )

    def _ranked(
        self, last: Sequence[int], before: Sequence[int], start: int = 0
    ) -> list[tuple[list[int], list[float]]]:
        found = []
        for place, token in enumerate(last):
            if token in self._window:
                key = start + place, token, kind_of(token - before[place] if before else 0)
                if key not in self._near:
                    self._near[key] = self._nearest(*key)
                found.append(self._near[key])
            else:
                found.append(([token] * self._width, [1.0] + [0.0] * (self._width - 1)))
        return found

    def _nearest(self, position: int, token: int, kind: int) -> tuple[list[int], list[float]]:
        start = len(self._window) - 1 - (token - self._window.start)
        moves = self._moves[position, kind, start : start + len(self._window)]
        mass = float(moves.sum()) or 1.0
        reach = self._reach[position]
        if reach:
            return self._spaced(moves, reach, mass)
        order = np.argsort(-moves, kind="stable")[: self._width]
        chances: list[float] = (moves[order] / mass).tolist()
        return [self._window.start + int(place) for place in order], chances

    def _spaced(self, moves: Floats, reach: int, mass: float) -> tuple[list[int], list[float]]:
        """Each covers ``reach`` bins on either side; what is covered is worth nothing more."""
        left, found, chances = np.pad(moves, reach), list[int](), list[float]()
        for _ in range(self._width):
            covered = np.convolve(left, np.ones(2 * reach + 1), "valid")
            place = int(covered.argmax())
            found.append(self._window.start + place)
            chances.append(float(covered[place]) / mass)
            left[place : place + 2 * reach + 1] = 0.0
        return found, chances

    def update(
        self,
        last: Sequence[int],
        before: Sequence[int],
        own: Sequence[int],
        alternatives: Sequence[Sequence[int]],
    ) -> None:
        """One action more: what the target chose, and what was there to choose from."""
        self._near.clear()
        self._ranks *= self._decay
        self._weight = self._decay * self._weight + 1.0
        for position, (token, chosen) in enumerate(zip(last, own, strict=True)):
            rank = self._rank(position, chosen, alternatives[position])
            if rank is not None:
                self._ranks[position, rank] += 1.0
            if token in self._window and chosen in self._window:
                kind = kind_of(token - before[position] if before else 0)
                moves = self._moves[position, kind]
                moves *= self._decay
                moves[chosen - token + len(self._window) - 1] += 1.0

    def _rank(self, position: int, chosen: int, there: Sequence[int]) -> int | None:
        """Of the first alternative that would have stood."""
        reach = self._reach[position] if chosen in self._window else 0
        return next((r for r, token in enumerate(there) if abs(token - chosen) <= reach), None)


def kind_of(moved: int) -> int:
    """How a token changed by ``moved`` bins: 0 not at all, else crept or moved, either way."""
    if moved == 0:
        return 0
    return (1 if abs(moved) <= CREPT else 2) + (0 if moved < 0 else 2)
