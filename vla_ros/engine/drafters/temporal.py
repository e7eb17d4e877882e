"""The temporal drafter: the previous action, or where it was heading. Needs no second model.

It compares its guess with every finished action, whether it was drafted or not, so it always
knows per position how often it would have been right, and drafts only where that pays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vla_ros.engine.drafters.base import Draft, Drafter
from vla_ros.engine.drafters.statistics import AcceptanceStatistics
from vla_ros.engine.tokens import ActionTokens
from vla_ros.engine.trees.expected import Cost


@dataclass(frozen=True, slots=True)
class Costs:
    """Of a draft behind a prompt, and of one behind a single token."""

    prompt: Cost
    alone: Cost


#: A draft costs a look at the verdict (on a GPU a host sync) and some bookkeeping. A pass reads all
#: weights for little arithmetic, so its further tokens are nearly free, least so in fp32 on a CPU.
#: Measured with the rows of `vla-ros bench` on a Xeon; the GPU's are estimated, on the safe side.
FP32_CPU = Costs(Cost(0.08, 0.08), Cost(0.08, 0.25))
CPU = Costs(Cost(0.08, 0.03), Cost(0.08, 0.03))
GPU = Costs(Cost(0.08, 0.01), Cost(0.08, 0.01))


def costs_on(device: torch.device, dtype: torch.dtype) -> Costs:
    """The costs that apply here."""
    if device.type != "cpu":
        return GPU
    return FP32_CPU if dtype == torch.float32 else CPU


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
        self._costs = costs_on(device, dtype)
        self._nothing = Draft(torch.zeros(0, dtype=torch.long, device=device))
        self._positions = positions
        self.statistics = AcceptanceStatistics(positions)
        self._guess: tuple[int, ...] = ()
        self._last: tuple[int, ...] = ()

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        start, length = len(prefix), limit
        if self._adaptive:
            cost = self._costs.alone if start else self._costs.prompt
            length = self.statistics.worthwhile(start, limit, cost)
        guess = self._guess[start : start + length]
        if not guess:
            return self._nothing
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
