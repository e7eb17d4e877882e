"""Expectation of the next answer by earlier ones: its tokens, and the candidates for each.

:class:`TemporalPredictor` names the token expected at each place; :class:`TemporalMarginals` learns
how far the next token lies from it, and ranks the candidates. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_REMEMBERED = 4  # chunks: the one that is executed is among the newest
_DECAY = 0.8  # of what shifts were off by
_FAR = 16  # bins: what is further off counts no more


class TemporalPredictor:
    """The expected tokens of an answer, before anything of it is decoded: what drafts start from.

    A single action is expected to be the last one again. A chunk of actions overlaps with the last
    chunk: it is expected to be that one *shifted* by the steps executed since, and what turned out
    to be off in the step before is taken to go on: it is added. Behind the last chunk's end every
    step is expected to be the *previous step* of the same chunk again.

    Answers have ``steps`` actions of ``dim`` tokens each, a whole step before the next; ``window``
    are the tokens that lie beside each other. Call ``begin``, ``predict`` as often as wanted and
    then ``observe``, for every answer.
    """

    def __init__(self, dim: int, steps: int = 1, window: range = range(0)) -> None:
        self._dim, self._steps, self._window = dim, steps, window
        self._errors: npt.NDArray[np.float64] = np.zeros(steps)  # bins, by the shift; decayed
        self._weight = 0.0
        self.forget()

    def forget(self, learned: bool = False) -> None:
        """Forget earlier answers; ``learned``: also the shift between them."""
        self._answers: dict[int, tuple[int, ...]] = {}  # by stamp, the newest last
        self.before: tuple[int, ...] = ()  # single actions: the one before the last
        self._stamp, self._trunk, self._next = 0, tuple[int, ...](), 0
        if learned:
            self._errors, self._weight = np.zeros(self._steps), 0.0

    @property
    def positions(self) -> int:
        """Tokens of an answer."""
        return self._dim * self._steps

    @property
    def shift(self) -> int:
        """Steps from one chunk to the next, as was right of late; all of them, until one was
        compared."""
        return int(self._errors.argmin()) if self._weight else self._steps

    def begin(self, stamp: int, executing: tuple[int, int] | None = None) -> None:
        """Another observation. ``executing``: the stamp of the chunk that is executed and the row
        of it that falls together with the new one's first; None: unknown."""
        self._stamp = stamp
        if executing is not None and executing[0] in self._answers:
            chunk, row = self._answers[executing[0]], min(executing[1], self._steps)
        else:
            chunk, row = self.newest, self.shift
        #: the last chunk: steps before the new chunk, and then, from ``_next`` on, its own
        self._trunk, self._next = chunk, min(row * self._dim, len(chunk))

    @property
    def row(self) -> int:
        """Part of the last chunk that falls together with the first of the new one; its end, where
        it has none. As of ``begin``."""
        return self._next // self._dim

    @property
    def newest(self) -> tuple[int, ...]:
        """The last answer; empty where there is none."""
        return next(reversed(self._answers.values()), ())

    def predict(
        self, prefix: Sequence[int], start: int, end: int
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Expected tokens [end - start] of the places start ... end - 1, and the tokens a step
        before each ([end - start]; empty where unknown).

        ``prefix``: the answer's tokens so far. Empty before the first answer.
        """
        if self._steps == 1:
            return self.newest[start:end], self.before[start:end]
        dim, first = self._dim, self._next
        ahead = len(self._trunk) - first  # places that the last chunk speaks of
        if start < dim and not self._trunk:
            return (), ()
        line = [*self._trunk[:first], *prefix]  # one step after the other
        for place in range(len(prefix), start):
            line.append(self._expected(line, prefix, place))
        last, before = [], []
        for place in range(start, end):
            at = first + place
            last.append(self._expected(line, prefix, place))
            if place >= len(prefix):
                line.append(last[-1])
            if place < ahead:
                before.append(self._trunk[max(at - dim, at % dim)])
            else:
                before.append(line[at - 2 * dim if at >= 2 * dim else at - dim])
        return last, before

    def _expected(self, line: Sequence[int], prefix: Sequence[int], place: int) -> int:
        """The token of a place; ``line`` has all before it."""
        chunk, first, dim = self._trunk, self._next, self._dim
        if first + place >= len(chunk):
            return line[first + place - dim]
        token = chunk[first + place]
        known = min(len(prefix), place)  # the last one known of the same dimension
        same = known - 1 - (known - 1 - place) % dim
        if same < 0:
            return token
        off = prefix[same] - chunk[first + same]
        moved = token + off
        return moved if abs(off) < _FAR and moved in self._window else token

    def observe(self, own: Sequence[int]) -> None:
        """The target's own choices of the whole answer."""
        if self._steps == 1:
            self.before, self._answers = self.newest, {self._stamp: tuple(own)}
            return
        if self.newest:
            self._compare(np.array(self.newest), np.array(own))
        self._answers[self._stamp] = tuple(own)
        while len(self._answers) > _REMEMBERED:
            del self._answers[next(iter(self._answers))]
        self._trunk = ()

    def _compare(self, old: npt.NDArray[np.int64], new: npt.NDArray[np.int64]) -> None:
        """By how many bins every shift would have been off."""
        self._errors *= _DECAY
        self._weight = _DECAY * self._weight + 1.0
        for shift in range(self._steps):
            overlap = len(old) - shift * self._dim
            off = np.abs(old[-overlap:] - new[:overlap])
            self._errors[shift] += np.minimum(off, _FAR).mean()


Floats = npt.NDArray[np.float64]

WIDTH = 16  # candidates that are ranked
DECAY = 0.99
CREPT = 4  # bins: a token that changed by more has moved
KINDS = 5  # at rest; crept and moved, down and up
PRIOR = 1.5  # chances fall with (1 + distance) to this power until there is something better
SEEN = 2.0  # the actions that the prior counts for, of one kind
RANKED = 8.0  # the same of the ranks


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates of some positions of an action, in order: ``tokens`` [ranks] that may come, the
    likeliest first, and the ``chances`` [ranks] that the drafter gives them just now."""

    tokens: tuple[tuple[int, ...], ...]
    chances: tuple[tuple[float, ...], ...]

    def behind(self, known: int) -> Candidates:
        """Without the first ``known`` positions."""
        return Candidates(self.tokens[known:], self.chances[known:]) if known else self


class TemporalMarginals:
    """Where each token of an action goes from the last one, learned from the stream of actions.

    Per place: how often the next token lay so many bins from the last one, apart for dimensions at
    rest, those that crept and those that moved, either way (decayed, so that it follows the
    policy). That ranks the candidates. And how often the candidate of each rank was right, over all
    kinds: that shapes the trees. Before anything is seen, near bins are likelier than far ones.

    ``window`` are the tokens of the bins, side by side in order; ``positions`` of an action.

    ``tolerance``: how far from the target's own choice a draft at a position may be and still be
    accepted; candidates then lie so far apart that none covers what another does. What was seen
    weighs ``decay`` times as much with every action.
    """

    def __init__(
        self,
        positions: int,
        window: range,
        tolerance: Callable[[int], int] = lambda position: 0,
        width: int = WIDTH,
        decay: float = DECAY,
    ) -> None:
        self._decay = decay
        self._window, self._width = window, min(width, len(window))
        self._tolerance = tuple(tolerance(position) for position in range(positions))
        self._positions = positions
        self.forget()

    def forget(self) -> None:
        """Back to the beginning."""
        distance = np.abs(np.arange(1 - len(self._window), len(self._window)))
        near = (1.0 + distance) ** -PRIOR
        shape = (self._positions, KINDS, 1)
        self._moves: Floats = np.tile(SEEN * near / near.sum(), shape)
        ranks = (1.0 + np.arange(self._width)) ** -PRIOR
        self._ranks: Floats = np.tile(RANKED * ranks / ranks.sum(), (self._positions, 1))
        for place, tolerance in enumerate(self._tolerance):
            # Side by side so many cover all bins; as many again may fill the gaps between them.
            side_by_side = -(-len(self._window) // (2 * tolerance + 1))
            self._ranks[place, 2 * side_by_side + 1 :] = 0.0
        self._weight = RANKED
        self._near: dict[tuple[int, int, int], tuple[list[int], list[float]]] = {}

    @property
    def chances(self) -> list[list[float]]:
        """Per position and rank: that this candidate is accepted. Falling in the rank."""
        falling = np.minimum.accumulate(self._ranks / self._weight, axis=1)
        found: list[list[float]] = falling.tolist()
        return found

    def candidates(self, last: Sequence[int], before: Sequence[int], start: int = 0) -> Candidates:
        """The tokens that may follow those of the last action, each with its chance as things are:
        how what is at rest, creeps or moves has gone on. What is no bin is certain to be repeated.
        ``last`` and ``before``, the action before it or empty, are of the positions from ``start``
        on."""
        ranked = self._ranked(last, before, start)
        return Candidates(
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
        tolerance = self._tolerance[position]
        if tolerance:
            return self._spaced(moves, tolerance, mass)
        order = np.argsort(-moves, kind="stable")[: self._width]
        chances: list[float] = (moves[order] / mass).tolist()
        return [self._window.start + int(place) for place in order], chances

    def _spaced(self, moves: Floats, tolerance: int, mass: float) -> tuple[list[int], list[float]]:
        """Each covers ``tolerance`` bins on either side; what is covered is worth nothing more.
        Where all are, the likeliest of the others follow, with no chance: none is named twice."""
        left, found, chances = np.pad(moves, tolerance), list[int](), list[float]()
        taken = np.zeros(len(moves), bool)
        for _ in range(self._width):
            covered = np.convolve(left, np.ones(2 * tolerance + 1), "valid")
            covered[taken] = -1.0
            place = int(covered.argmax())
            worth = max(float(covered[place]), 0.0)
            if not worth:
                place = int(np.where(taken, -1.0, moves).argmax())
            found.append(self._window.start + place)
            chances.append(worth / mass)
            taken[place] = True
            left[place : place + 2 * tolerance + 1] = 0.0
        return found, chances

    def update(
        self,
        last: Sequence[int],
        before: Sequence[int],
        own: Sequence[int],
        candidates: Sequence[Sequence[int]],
    ) -> None:
        """One action more: what the target chose, and what was there to choose from."""
        self._near.clear()
        self._ranks *= self._decay
        self._weight = self._decay * self._weight + 1.0
        for position, (token, chosen) in enumerate(zip(last, own, strict=True)):
            rank = self._rank(position, chosen, candidates[position])
            if rank is not None:
                self._ranks[position, rank] += 1.0
            if token in self._window and chosen in self._window:
                kind = kind_of(token - before[position] if before else 0)
                moves = self._moves[position, kind]
                moves *= self._decay
                moves[chosen - token + len(self._window) - 1] += 1.0

    def _rank(self, position: int, chosen: int, there: Sequence[int]) -> int | None:
        """Rank of the first candidate that would have been accepted."""
        tolerance = self._tolerance[position] if chosen in self._window else 0
        return next((r for r, token in enumerate(there) if abs(token - chosen) <= tolerance), None)


def kind_of(moved: int) -> int:
    """How a token changed by ``moved`` bins: 0 not at all, else crept or moved, either way."""
    if moved == 0:
        return 0
    return (1 if abs(moved) <= CREPT else 2) + (0 if moved < 0 else 2)
