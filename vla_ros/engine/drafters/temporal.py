"""The temporal drafter: the previous action, or where it was heading. Needs no second model.

Of a chunk it is what the last chunk said of the same steps, behind its end the step before
(:mod:`vla_ros.engine.trees.expecting`).

It compares its guess with every finished action, whether it was drafted or not, so it always
knows per position how often it would have been right, and drafts only where that pays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vla_ros.engine.drafters.base import Draft, Drafter
from vla_ros.engine.drafters.statistics import AcceptanceStatistics
from vla_ros.engine.request import Request
from vla_ros.engine.tokens import ActionTokens
from vla_ros.engine.trees.expected import Cost
from vla_ros.engine.trees.expecting import Expecting


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
    earlier episodes, and with it, in bf16, a close call between two tokens. ``steps`` actions make
    an answer of ``positions`` tokens.
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
        steps: int = 1,
    ) -> None:
        self._actions, self._device, self._close = actions, device, close
        self._linear, self._adaptive = extrapolation == "linear", adaptive
        self._costs = costs_on(device, dtype)
        self._nothing = Draft(torch.zeros(0, dtype=torch.long, device=device))
        self._positions = positions
        self.statistics = AcceptanceStatistics(positions)
        self._expecting = Expecting(positions // steps, steps, actions.window)

    def begin(self, request: Request) -> None:
        begin(self._expecting, request)

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        start, length = len(prefix), limit
        if self._adaptive:
            cost = self._costs.alone if start else self._costs.prompt
            length = self.statistics.worthwhile(start, limit, cost)
        guess = self._guess(prefix, start, start + length)
        if not guess:
            return self._nothing
        return Draft(torch.tensor(guess, dtype=torch.long, device=self._device))

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        guess = self._guess(own, 0, self._positions)
        if guess:
            pairs = zip(guess, own, strict=True)
            self.statistics.update([self._close(g, o, i) for i, (g, o) in enumerate(pairs)])
        self._expecting.observe(own)

    def _guess(self, prefix: Sequence[int], start: int, end: int) -> Sequence[int]:
        if end <= start:
            return ()
        last, before = self._expecting.look(prefix, start, end)
        return self._extrapolate(last, before) if self._linear and before else last

    def _extrapolate(self, last: Sequence[int], before: Sequence[int]) -> list[int]:
        actions = self._actions
        out = []
        for now, then in zip(last, before, strict=True):
            moved = min(max(2 * now - then, actions.first), actions.vocab - 1)
            both = actions.is_action(now) and actions.is_action(then)
            out.append(moved if both else now)
        return out

    def forget(self, damaged: bool = False) -> None:
        """Forget the last action; what was learned about acceptance stays."""
        self._expecting.forget(not self._adaptive)


def begin(expecting: Expecting, request: Request) -> None:
    """Tell what is expected which frame it is, and what the robot executes meanwhile."""
    told = None if request.observation is None else request.observation.executing
    expecting.begin(request.stamp_ns, None if told is None else (told.stamp_ns, told.index))
