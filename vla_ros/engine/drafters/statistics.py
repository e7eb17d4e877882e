"""Acceptance per position of an action, and how long a draft it pays for."""

from __future__ import annotations

from collections.abc import Sequence

from vla_ros.engine.trees.expected import Cost

DECAY = 0.9


class AcceptanceStatistics:
    """Rate at which each position's draft would stand: a mean whose weights decay by 0.9.

    Before the first outcome every rate is 0, so nothing is drafted unproven; the first outcome
    then counts fully, the second about half, and so on, so a guess that is right is believed
    soon. A position's rate is conditional on everything before it standing, so a draft's j-th
    token is useful with the product of the first j rates.
    """

    def __init__(self, positions: int) -> None:
        self._rates = [0.0] * positions
        self._weight = 0.0  # of all outcomes together; a new one has 1

    @property
    def rates(self) -> tuple[float, ...]:
        return tuple(self._rates)

    def update(self, stands: Sequence[bool]) -> None:
        """One action's outcome per position."""
        self._weight = DECAY * self._weight + 1.0
        for position, stood in enumerate(stands):
            self._rates[position] += (float(stood) - self._rates[position]) / self._weight

    def worthwhile(self, start: int, limit: int, cost: Cost) -> int:
        """Length of the draft from ``start`` on that saves most; 0 where none saves anything.

        A draft's token saves a pass when it stands, and all before it.
        """
        chance, gain, best, length = 1.0, -cost.draft, 0.0, 0
        for number, rate in enumerate(self._rates[start : start + limit], start=1):
            chance *= rate
            gain += chance - cost.token
            if gain > best:
                best, length = gain, number
        return length
