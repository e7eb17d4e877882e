"""What an answer's tokens are expected to be before anything is said: what drafts start from.

An action is expected to be the last one again. A chunk of C actions has been said before, as far as
it overlaps with the last one: that one *shifted* by the steps executed since. What turned out to be
off in the step before is taken to go on: it is added. Behind the last chunk's end every step is
expected to be the *previous step* of the same chunk again. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_REMEMBERED = 4  # chunks: the one that is executed is among the newest
_DECAY = 0.8  # of what shifts were off by
_FAR = 16  # bins: what is further off counts no more


class Expecting:
    """Answers of ``steps`` actions of ``dim`` tokens each, a whole step before the next.

    ``window`` are the tokens that lie beside each other. Call ``begin``, ``look`` as often as
    wanted and then ``observe``, for every answer.
    """

    def __init__(self, dim: int, steps: int = 1, window: range = range(0)) -> None:
        self._dim, self._steps, self._window = dim, steps, window
        self._off: npt.NDArray[np.float64] = np.zeros(steps)  # bins, by the shift; decayed
        self._weight = 0.0
        self.forget()

    def forget(self, learned: bool = False) -> None:
        """Earlier answers are of no use; ``learned``: nor is what they shift by."""
        self._said: dict[int, tuple[int, ...]] = {}  # by stamp, the newest last
        self.before: tuple[int, ...] = ()  # single actions: the one before the last
        self._stamp, self._trunk, self._next = 0, tuple[int, ...](), 0
        if learned:
            self._off, self._weight = np.zeros(self._steps), 0.0

    @property
    def positions(self) -> int:
        """Tokens of an answer."""
        return self._dim * self._steps

    @property
    def shift(self) -> int:
        """Steps from one chunk to the next, as was right of late; all of them, until one was
        compared."""
        return int(self._off.argmin()) if self._weight else self._steps

    def begin(self, stamp: int, executing: tuple[int, int] | None = None) -> None:
        """Another observation. ``executing``: the stamp of the chunk that is executed and the row
        of it that falls together with the new one's first; None: nobody says."""
        self._stamp = stamp
        told = executing is not None and executing[0] in self._said
        if executing is not None and told:
            chunk, row = self._said[executing[0]], min(executing[1], self._steps)
        else:
            chunk, row = self.newest, self.shift
        #: what was said of steps before the new chunk, and then of its own, from ``_next`` on
        self._trunk, self._next = chunk, min(row * self._dim, len(chunk))

    @property
    def row(self) -> int:
        """Of the last chunk that falls together with the first of the new one; its end, where it
        has none. As of ``begin``."""
        return self._next // self._dim

    @property
    def newest(self) -> tuple[int, ...]:
        """The last answer; empty where there is none."""
        return next(reversed(self._said.values()), ())

    def look(
        self, prefix: Sequence[int], start: int, end: int
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Expected tokens [end - start] of the places start ... end - 1, and what stood a step
        before each ([end - start]; nothing where nobody knows).

        ``prefix``: the answer's tokens so far. Nothing where there is nothing to go by.
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
        said, first, dim = self._trunk, self._next, self._dim
        if first + place >= len(said):
            return line[first + place - dim]
        token = said[first + place]
        known = min(len(prefix), place)  # the last one known of the same dimension
        same = known - 1 - (known - 1 - place) % dim
        if same < 0:
            return token
        off = prefix[same] - said[first + same]
        moved = token + off
        return moved if abs(off) < _FAR and moved in self._window else token

    def observe(self, own: Sequence[int]) -> None:
        """The target's own choices of the whole answer."""
        if self._steps == 1:
            self.before, self._said = self.newest, {self._stamp: tuple(own)}
            return
        if self.newest:
            self._compare(np.array(self.newest), np.array(own))
        self._said[self._stamp] = tuple(own)
        while len(self._said) > _REMEMBERED:
            del self._said[next(iter(self._said))]
        self._trunk = ()

    def _compare(self, old: npt.NDArray[np.int64], new: npt.NDArray[np.int64]) -> None:
        """By how many bins every shift would have been off."""
        self._off *= _DECAY
        self._weight = _DECAY * self._weight + 1.0
        for shift in range(self._steps):
            overlap = len(old) - shift * self._dim
            off = np.abs(old[-overlap:] - new[:overlap])
            self._off[shift] += np.minimum(off, _FAR).mean()
