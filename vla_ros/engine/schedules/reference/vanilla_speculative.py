"""Reference: speculative decoding as the ETH report did it.

A separate draft with its own vision tower and its own prefill, a fixed draft length, nothing
fused into the target's prefill, and a target pass of its own for every correction or bonus
token. Kept to be measured against; exact all the same.
"""

from __future__ import annotations

import torch

from vla_ros.engine.drafters.acceptance import Exact, Seen
from vla_ros.engine.drafters.base import Drafter
from vla_ros.engine.model import VLAModel
from vla_ros.engine.packed.pack import PackLayout, chain, prefill_layout
from vla_ros.engine.request import Request
from vla_ros.engine.schedules.growing_action import GrowingAction
from vla_ros.engine.schedules.speculative import Speculative


class VanillaSpeculative(Speculative):
    """Verify a draft, then feed the correction alone; repeat."""

    def __init__(
        self, model: VLAModel, tokens: int, max_prompt: int, drafter: Drafter, gamma: int = 6
    ) -> None:
        super().__init__(model, tokens, max_prompt, drafter, Exact(), gamma)

    def _decode(self, request: Request, action: GrowingAction) -> None:
        length = len(request.prompt)
        known = self._run(prefill_layout(length, (length - 1,)), action, request.prompt, None)
        request.stages.mark("prefill")
        while len(action) < self.count and action.finite:
            known = self._round(known, length, action)

    def _round(self, known: Seen, length: int, action: GrowingAction) -> Seen:
        """A draft verified; ``known`` is what the target says behind all tokens so far."""
        draft = self._draft(action)
        count = len(draft.tokens)
        if count:
            tail = chain(0, length + len(action), count)
            behind = self._run(
                PackLayout(tuple(range(count)), tail=tail), action, None, draft.tokens
            )
            known = tuple(torch.cat(rows) for rows in zip(known, behind, strict=True))
        self._take(known, draft, action)
        if len(action) >= self.count or not action.finite:
            return known
        alone = PackLayout(rows=(0,), tail=chain(0, length + len(action) - 1, 1))
        return self._run(alone, action, None, action.last(self.model.device))

    def _run(
        self,
        layout: PackLayout,
        action: GrowingAction,
        prompt: torch.Tensor | None,
        tokens: torch.Tensor | None,
    ) -> Seen:
        action.passes += 1
        return self.acceptance.verify(self.lane, layout, prompt, tokens)

    def rehearse(self, request: Request) -> None:
        length, filler = len(request.prompt), self._filler
        self.lane.fit(length + self._entries)
        alone = prefill_layout(length, (length - 1,))
        self.acceptance.verify(self.lane, alone, request.prompt, None)
        for drafted in range(1, self.gamma + 1):
            layout = PackLayout(tuple(range(drafted)), tail=chain(0, length, drafted))
            self.acceptance.verify(self.lane, layout, None, filler[:drafted])
