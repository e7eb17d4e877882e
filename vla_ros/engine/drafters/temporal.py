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

#: Cost of one more token behind a prompt, and in a pass without one, as a share of a pass of one
#: token. That pass reads all weights for little arithmetic, so more tokens are nearly free; least
#: so in fp32 on a CPU. Measured with `vla-ros bench` (speculative_miss_always) on a Xeon.
FP32_CPU_COSTS, CPU_COSTS, GPU_COSTS = (0.08, 0.25), (0.02, 0.03), (0.01, 0.01)


def token_costs(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """The costs that apply here."""
    if device.type != "cpu":
        return GPU_COSTS
    return FP32_CPU_COSTS if dtype == torch.float32 else CPU_COSTS


class TemporalDrafter(Drafter):
    """``repeat`` proposes the last action's tokens, ``linear`` last + (last - one before).

    It extrapolates the target's own choices, never relaxed ones, so that relaxed acceptance
    cannot feed on itself. ``close`` tells whether a guess would have stood. ``adaptive`` makes a
    draft as long as the statistics say; they outlive ``forget``, so a draft's length depends on
    earlier episodes, and with it, in bf16, a close call between two tokens.
    """

    def __init__(
        self,
        actions: ActionTokens,
        positions: int,
        device: torch.device,
        close: Callable[[int, int, int], bool],
        extrapolation: str = "repeat",
        adaptive: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._actions, self._device, self._close = actions, device, close
        self._linear, self._adaptive = extrapolation == "linear", adaptive
        self._costs = token_costs(device, dtype)
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

    def forget(self, damaged: bool = False) -> None:
        """Forget the last action; what was learned about acceptance stays."""
        self._guess, self._last = (), ()
