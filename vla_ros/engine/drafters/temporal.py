"""The temporal drafter: the previous action, or where it was heading. Needs no second model.

It compares its guess with every finished action, whether it was drafted or not, so it always
knows per position how often it would have been right, and drafts only where that pays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from vla_ros.engine.drafters.base import Draft, Drafter
from vla_ros.engine.drafters.statistics import AcceptanceStatistics
from vla_ros.engine.tokens import ActionTokens

#: Cost of one more token in a pass as a share of a one-token pass, behind a prompt and alone.
CPU_COSTS = (0.04, 0.2)
GPU_COSTS = (0.01, 0.02)


class TemporalDrafter(Drafter):
    """``repeat`` proposes the last action's tokens, ``linear`` last + (last - one before).

    It extrapolates the target's own choices, never relaxed ones, so that relaxed acceptance
    cannot feed on itself. ``close`` tells whether a guess would have stood.
    """

    def __init__(
        self,
        actions: ActionTokens,
        positions: int,
        device: torch.device,
        close: Callable[[int, int, int], bool],
        extrapolation: str = "repeat",
        adaptive: bool = True,
    ) -> None:
        self._actions, self._device, self._close = actions, device, close
        self._linear, self._adaptive = extrapolation == "linear", adaptive
        self._costs = CPU_COSTS if device.type == "cpu" else GPU_COSTS
        self._positions = positions
        self.statistics = AcceptanceStatistics(positions)
        self._guess: tuple[int, ...] = ()
        self._last: tuple[int, ...] = ()

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        start, length = len(prefix), limit
        if self._adaptive:
            cost = self._costs[0 if start == 0 else 1]
            length = self.statistics.worthwhile(start, limit, cost)
        guess = self._guess[start : start + length]
        return Draft(torch.tensor(guess, dtype=torch.long, device=self._device))

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        if self._guess:
            pairs = zip(self._guess, own, strict=True)
            self.statistics.update([self._close(g, o, i) for i, (g, o) in enumerate(pairs)])
        self._guess = tuple(self._extrapolate(own)) if self._linear else tuple(own)
        self._last = tuple(own)

    def _extrapolate(self, own: Sequence[int]) -> list[int]:
        actions = self._actions
        if not self._last:
            return list(own)
        out = []
        for now, before in zip(own, self._last, strict=True):
            moved = min(max(2 * now - before, actions.first), actions.vocab - 1)
            both = actions.is_action(now) and actions.is_action(before)
            out.append(moved if both else now)
        return out

    def reset(self) -> None:
        """Forget the last action; what was learned about acceptance stays."""
        self._guess, self._last = (), ()
