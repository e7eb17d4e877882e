"""An answer in pieces: what it asks of the device, one thing after another, so that the pieces of
several robots can run as one.

A way of decoding, and a solver, is a generator: it yields a :class:`Piece` and is sent what that
gave. :func:`alone` runs one to its end; :class:`Batched` runs several side by side, pieces of one
kin as one pass. Whoever comes later joins at the next turn.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
NameT = TypeVar("NameT")


class Piece(Protocol):
    """Something that the device is to do."""

    @property
    def kin(self) -> Hashable:
        """Pieces of the same kin may run as one; None: this one runs alone."""
        ...

    def run(self) -> Any:
        """What it gives."""
        ...

    def together(self, others: Sequence[Any]) -> list[Any]:
        """What this and others of its kin give, in that order: the same as each alone, up to the
        order of sums."""
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
        """Another answer; what it does before its first piece is done now."""
        self._go_on(name, pieces, None)

    def turn(self) -> list[tuple[NameT, T | Exception]]:
        """Run a piece of everybody; the answers that are complete now, or why there is none."""
        kins: dict[Hashable, list[int]] = {}
        for place, (_, _, piece) in enumerate(self._waiting):
            kins.setdefault(place if piece.kin is None else (piece.kin,), []).append(place)
        waiting, self._waiting = self._waiting, []
        gave: list[Any] = [None] * len(waiting)
        for places in kins.values():
            first, *others = (waiting[place][2] for place in places)
            given = first.together(others) if others else [first.run()]
            for place, one in zip(places, given, strict=True):
                gave[place] = one
        for (name, pieces, _), one in zip(waiting, gave, strict=True):
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
