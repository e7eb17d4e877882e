"""Speculative decoding fused into the prefill.

The draft rides behind the prompt in the same pass, and a correction rides in the next
verification, so an action never needs more than K target passes and a full hit needs one.

In fp32 the tokens are those of decoding without drafts. In bf16 a draft's length, which changes
the shape of a pass, can turn a close call; see docs/explanation/schedules.md.
"""

from __future__ import annotations

import torch

from vla_ros.engine.drafters.acceptance import Acceptance, Verdict
from vla_ros.engine.drafters.base import Draft, Drafter
from vla_ros.engine.model import VLAModel
from vla_ros.engine.packed.pack import PackLayout, chain, prefill_layout
from vla_ros.engine.request import Decoded, Request
from vla_ros.engine.schedules.base import Schedule


class Tally:
    """The action so far, and what became of the drafts per position."""

    def __init__(self, positions: int) -> None:
        self.tokens: list[int] = []
        self.own: list[int] = []
        self.drafted = [0] * positions
        self.accepted = [0] * positions
        self.passes = 0
        self.finite = True

    def add(self, verdict: Verdict) -> None:
        start = len(self.tokens)
        for offset in range(min(len(verdict.draft), verdict.accepted + 1)):  # those judged
            self.drafted[start + offset] += 1
            self.accepted[start + offset] += offset < verdict.accepted
        self.tokens += verdict.tokens
        self.own += verdict.own
        self.finite &= verdict.finite
        self.passes += 1


FILLER = 0  # the token that fills a pass up; nothing sees it, and its row is not looked at


class Speculative(Schedule):
    """Draft, verify, keep: at least one token a pass, at most gamma + 1.

    ``fixed_shapes``: every pass is filled up to the longest draft, so that there are two shapes.
    """

    def __init__(
        self,
        model: VLAModel,
        tokens: int,
        max_prompt: int,
        drafter: Drafter,
        acceptance: Acceptance,
        gamma: int | None = None,
        fixed_shapes: bool = False,
    ) -> None:
        super().__init__(model, tokens, max_prompt)
        self.drafter, self.acceptance = drafter, acceptance
        self.gamma = tokens - 1 if gamma is None else min(gamma, tokens - 1)
        self._filler = torch.full((tokens,), FILLER, device=model.device) if fixed_shapes else None
        self._entries = tokens + (self.gamma if fixed_shapes else 0)  # behind the prompt
        self.lane = model.lane(1, max_prompt + self._entries)
        self.lossless = acceptance.lossless

    def step(self, request: Request) -> Decoded:
        self.drafter.begin(request)
        tally, length = Tally(self.count), len(request.prompt)
        self.lane.fit(length + self._entries)
        draft = self._draft(tally)
        logits = self._first_pass(request, draft.tokens)
        request.stages.mark("prefill")
        self._judge(logits, draft, tally)
        while len(tally.tokens) < self.count and tally.finite:
            draft = self._draft(tally)
            last = torch.tensor(tally.tokens[-1:], device=self.model.device)
            fed = torch.cat((last, draft.tokens))
            logits = self._next_pass(fed, length + len(tally.tokens) - 1)
            self._judge(logits, draft, tally)
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

    def _first_pass(self, request: Request, draft: torch.Tensor) -> torch.Tensor:
        """The prompt with a draft behind it -> logits [d + 1, V]."""
        length, fed = len(request.prompt), self._filled(draft, self.gamma)
        total = length + len(fed)
        layout = prefill_layout(total, tuple(range(length - 1, total)))
        logits = self.lane.logits(layout, request.prompt, fed if len(fed) else None)
        return logits[: len(draft) + 1]

    def _next_pass(self, fed: torch.Tensor, start: int) -> torch.Tensor:
        """A correction with a draft behind it, from entry ``start`` on -> logits [t, V]."""
        whole = self._filled(fed, self.gamma + 1)
        layout = PackLayout(rows=tuple(range(len(whole))), tail=chain(0, start, len(whole)))
        return self.lane.logits(layout, None, whole)[: len(fed)]

    def _filled(self, tokens: torch.Tensor, count: int) -> torch.Tensor:
        """With fixed shapes, ``count`` tokens of which the first are these."""
        if self._filler is None:
            return tokens
        return torch.cat((tokens, self._filler[: count - len(tokens)]))

    def prepare(self, request: Request) -> None:
        filler = torch.zeros(self.count, dtype=torch.long, device=self.model.device)
        self.lane.fit(len(request.prompt) + self._entries)
        for drafted in range(self.gamma + 1):
            self._first_pass(request, filler[:drafted])
        for fed in range(1, min(self.gamma + 1, self.count - 1) + 1):
            for done in {1, self.count - fed}:
                self._next_pass(filler[:fed], len(request.prompt) + done - 1)

    def _draft(self, tally: Tally) -> Draft:
        # The last token of an action needs no draft: it comes with its predecessor's pass.
        limit = min(self.gamma, self.count - 1 - len(tally.tokens))
        if limit <= 0:
            empty = torch.zeros(0, dtype=torch.long, device=self.model.device)
            return Draft(empty)
        return self.drafter.propose(tally.tokens, limit)

    def _judge(self, logits: torch.Tensor, draft: Draft, tally: Tally) -> None:
        verdict = self.acceptance.judge(logits, draft, len(tally.tokens))
        self.drafter.judged(verdict.draft, verdict.accepted)
        tally.add(verdict)

    def instruct(self, text: str) -> None:
        self.drafter.instruct(text)

    def forget(self, damaged: bool = False) -> None:
        self.drafter.forget(damaged)
        self.lane.ring.flush(damaged)
