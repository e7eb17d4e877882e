"""Pieces of an answer: what it asks of the device, one after another, so that those of several
robots can run as one.

A way of decoding, and a solver, is a generator: it yields a :class:`Piece` and is sent its result.
:func:`alone` runs one to its end; :class:`Batched` runs several side by side, pieces of one kin as
one pass. Whoever comes later joins at the next turn.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
NameT = TypeVar("NameT")


class Piece(Protocol):
    """A unit of work for the device."""

    @property
    def kin(self) -> Hashable:
        """Key of pieces that may run as one; None: this one runs alone."""
        ...

    def run(self) -> Any:
        """The result of this piece by itself."""
        ...

    def together(self, others: Sequence[Any]) -> list[Any]:
        """The results of this piece and others of its kin, in that order: the same as each alone,
        up to the order of sums."""
        ...


Pieces = Generator[Piece, Any, T]


def alone(pieces: Pieces[T]) -> T:
    """The answer, one piece after another."""
    given: Any = None
    try:
        while True:
            given = pieces.send(given).run()
    except StopIteration as done:
        answer: T = done.value
        return answer


class Batched(Generic[NameT, T]):
    """Answers that are computed side by side, a turn at a time: each turn runs the next piece of
    all of them. Exceptions of the ``refused`` kinds end the answer that raised them and no other.

    What a shared pass itself raises concerns all, and passes through.
    """

    def __init__(self, refused: tuple[type[Exception], ...]) -> None:
        self._refused = refused
        self._waiting: list[tuple[NameT, Pieces[T], Piece]] = []
        self._ended: list[tuple[NameT, T | Exception]] = []

    def __len__(self) -> int:
        """Answers that are not complete."""
        return len(self._waiting)

    def add(self, name: NameT, pieces: Pieces[T]) -> None:
        """Begin another answer, up to its first piece."""
        self._go_on(name, pieces, None)

    def turn(self) -> list[tuple[NameT, T | Exception]]:
        """Run a piece of everybody; the answers that are complete now, or why there is none."""
        kins: dict[Hashable, list[int]] = {}
        for index, (_, _, piece) in enumerate(self._waiting):
            kins.setdefault(index if piece.kin is None else (piece.kin,), []).append(index)
        waiting, self._waiting = self._waiting, []
        results: list[Any] = [None] * len(waiting)
        for members in kins.values():
            first, *others = (waiting[index][2] for index in members)
            given = first.together(others) if others else [first.run()]
            for index, one in zip(members, given, strict=True):
                results[index] = one
        for (name, pieces, _), one in zip(waiting, results, strict=True):
            self._go_on(name, pieces, one)
        ended, self._ended = self._ended, []
        return ended

    def _go_on(self, name: NameT, pieces: Pieces[T], given: Any) -> None:
        try:
            piece = pieces.send(given)
        except StopIteration as done:
            self._ended.append((name, done.value))
        except self._refused as error:
            self._ended.append((name, error))
        else:
            self._waiting.append((name, pieces, piece))
