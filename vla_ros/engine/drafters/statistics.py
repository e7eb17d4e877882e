"""Acceptance per position of an action, and how long a draft it pays for."""

from __future__ import annotations

from collections.abc import Sequence

DECAY = 0.9
PRIOR = 0.75  # optimistic: a draft is tried before it is judged


class AcceptanceStatistics:
    """Running rate (exponential, decay 0.9) at which each position's draft would stand.

    A position's rate is conditional on everything before it standing, so a draft's j-th token
    is useful with the product of the first j rates.
    """

    def __init__(self, positions: int) -> None:
        self._rates = [PRIOR] * positions

    @property
    def rates(self) -> tuple[float, ...]:
        return tuple(self._rates)

    def update(self, stands: Sequence[bool]) -> None:
        """One action's outcome per position."""
        for position, stood in enumerate(stands):
            rate = self._rates[position]
            self._rates[position] = DECAY * rate + (1.0 - DECAY) * float(stood)

    def worthwhile(self, start: int, limit: int, cost: float) -> int:
        """Longest draft from ``start`` whose last token still saves more than it costs.

        ``cost`` is that of one more token in a pass, as a share of a pass of one token.
        """
        chance, length = 1.0, 0
        for rate in self._rates[start : start + limit]:
            chance *= rate
            if chance <= cost:
                break
            length += 1
        return length
