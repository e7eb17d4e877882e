"""Reference: speculative decoding as the ETH report did it.

A separate draft with its own vision tower and its own prefill, a fixed draft length, nothing
fused into the target's prefill, and a target pass of its own for every correction or bonus
token. Kept to be measured against; exact all the same.
"""

from __future__ import annotations

import torch

from vla_ros.engine.drafters.acceptance import Exact
from vla_ros.engine.drafters.base import Drafter
from vla_ros.engine.model import VLAModel
from vla_ros.engine.packed.pack import PackLayout, chain, prefill_layout
from vla_ros.engine.request import Decoded, Reading, Request
from vla_ros.engine.schedules.base import Schedule
from vla_ros.engine.schedules.speculative import Tally


class VanillaSpeculative(Schedule):
    """Verify a draft, then feed the correction alone; repeat."""

    def __init__(
        self, model: VLAModel, tokens: int, max_prompt: int, drafter: Drafter, gamma: int = 6
    ) -> None:
        super().__init__(model, tokens, max_prompt)
        self.lane = model.lane(1, max_prompt + tokens)
        self.drafter, self.gamma, self._exact = drafter, gamma, Exact()

    def step(self, request: Request) -> Decoded:
        self.drafter.begin(request)
        tally, length = Tally(self.count), len(request.prompt)
        self.lane.fit(length + self.count)
        layout = prefill_layout(length, (length - 1,))
        known = self.lane.logits(layout, request.prompt, None)  # logits behind all tokens so far
        tally.passes += 1
        request.stages.mark("prefill")
        while len(tally.tokens) < self.count and tally.finite:
            known = self._round(known, tally, length)
        if tally.finite:
            self.drafter.observe(tally.tokens, tally.own)
        request.stages.mark("decode")
        return Decoded(
            stamp_ns=request.stamp_ns,
            timeline=request.stages.resolve(),
            tokens=tuple(tally.tokens),
            finite=tally.finite,
            target_passes=tally.passes,
            draft_passes=self.drafter.passes,
            drafted=tuple(tally.drafted),
            accepted=tuple(tally.accepted),
            own=tuple(tally.own),
        )

    def _round(self, known: torch.Tensor, tally: Tally, length: int) -> torch.Tensor:
        done = len(tally.tokens)
        left = self.count - done
        if left == 1:
            tokens, finite = _read(known)
            tally.tokens += tokens
            tally.finite &= finite
            return known
        draft = self.drafter.propose(tally.tokens, min(self.gamma, left - 1))
        count = len(draft.tokens)
        tail = chain(0, length + done, count)
        layout = PackLayout(rows=tuple(range(count)), tail=tail)
        logits = torch.cat((known, self.lane.logits(layout, None, draft.tokens)))
        verdict = self._exact.judge(logits, draft, done)
        self.drafter.judged(verdict.draft, verdict.accepted)
        tally.add(verdict)
        if len(tally.tokens) >= self.count or not tally.finite:
            return known
        last = torch.tensor(tally.tokens[-1:], device=self.model.device)
        alone = PackLayout(rows=(0,), tail=chain(0, length + len(tally.tokens) - 1, 1))
        tally.passes += 1
        return self.lane.logits(alone, None, last)

    def instruct(self, text: str) -> None:
        self.drafter.instruct(text)

    def forget(self, damaged: bool = False) -> None:
        self.drafter.forget(damaged)
        self.lane.ring.flush(damaged)


def _read(logits: torch.Tensor) -> tuple[list[int], bool]:
    reading = Reading()
    reading.add(logits)
    return reading.read()
