"""Speculative decoding fused into the prefill.

The draft rides behind the prompt in the same pass, and a correction rides in the next
verification, so an action never needs more than K target passes and a full hit needs one. Where
the drafter has nothing to say this is plain decoding: tokens stay on the device.

In fp32 the tokens are those of decoding without drafts. In bf16 a draft's length, which changes
the shape of a pass, can turn a close call; see docs/explanation/schedules.md.
"""

from __future__ import annotations

import torch

from vla_ros.engine.drafters.acceptance import Acceptance, Seen
from vla_ros.engine.drafters.base import Draft, Drafter
from vla_ros.engine.drafters.verdict import Verdict
from vla_ros.engine.model import VLAModel
from vla_ros.engine.packed.pack import PackLayout, chain, prefill_layout
from vla_ros.engine.request import Decoded, Request
from vla_ros.engine.schedules.base import Schedule
from vla_ros.engine.schedules.growing_action import GrowingAction

FILLER = 0  # the token that fills a pass up; nothing sees it, and its row is not looked at
TILE = 16  # rows that a GPU multiplies at once: fewer cost the same


class Speculative(Schedule):
    """Draft, verify, keep: at least one token a pass, at most gamma + 1.

    ``fixed_shapes``: every pass is filled up to the longest draft, so that there are two shapes.
    Where passes are captured they are so too, unless that would cost something.
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
        self.lossless = acceptance.lossless
        self.gamma = tokens - 1 if gamma is None else min(gamma, tokens - 1)
        self._fixed = fixed_shapes or (model.capture is not None and self.gamma < TILE)
        self._filler = torch.full((tokens,), FILLER, device=model.device)
        self._nothing = Draft(self._filler[:0])
        self._entries = self._needed()
        self.lane = model.lane(1, max_prompt + self._entries, acceptance.window, drafter.layers)

    def _needed(self) -> int:
        """KV entries of an action, behind its prompt."""
        return self.count + (self.gamma if self._fixed else 0)

    def step(self, request: Request) -> Decoded:
        self.drafter.begin(request)
        self.lane.fit(len(request.prompt) + self._entries)
        action = GrowingAction(self.count)
        self._decode(request, action)
        action.read()
        if action.finite:
            self.drafter.observe(action.tokens, action.own)
        return action.answer(request, self.drafter.passes)

    def _decode(self, request: Request, action: GrowingAction) -> None:
        """Say the whole action, or what there is of it until a value is not finite."""
        length, draft = len(request.prompt), self._draft(action)
        seen = self._first_pass(request, draft)
        action.passes += 1
        request.stages.mark("prefill")
        self._take(seen, draft, action)
        while len(action) < self.count and action.finite:
            draft = self._draft(action)
            last = action.last(self.model.device)
            seen = self._next_pass(last, draft, length + len(action) - 1)
            action.passes += 1
            self._take(seen, draft, action)

    def _draft(self, action: GrowingAction) -> Draft:
        # The last token of an action needs no draft: it comes with its predecessor's pass.
        limit = min(self.gamma, self.count - 1 - len(action))
        return self.drafter.propose(action, limit) if limit > 0 else self._nothing

    def _first_pass(self, request: Request, draft: Draft) -> Seen:
        """The prompt with a draft behind it -> what is seen in d + 1 rows."""
        length, fed = len(request.prompt), self._filled(draft.tokens, self.gamma)
        total = length + len(fed)
        layout = prefill_layout(total, tuple(range(length - 1, total)))
        behind = fed if len(fed) else None
        seen = self.acceptance.verify(self.lane, layout, request.prompt, behind)
        return tuple(rows[: len(draft.tokens) + 1] for rows in seen)

    def _next_pass(self, last: torch.Tensor, draft: Draft, start: int) -> Seen:
        """A correction [1] with a draft behind it, from entry ``start`` on -> d + 1 rows."""
        tokens = torch.cat((last, draft.tokens)) if len(draft.tokens) else last
        fed = self._filled(tokens, self.gamma + 1)
        layout = PackLayout(rows=tuple(range(len(fed))), tail=chain(0, start, len(fed)))
        seen = self.acceptance.verify(self.lane, layout, None, fed)
        return tuple(rows[: len(tokens)] for rows in seen)

    def _filled(self, tokens: torch.Tensor, count: int) -> torch.Tensor:
        """With fixed shapes, ``count`` tokens of which the first are these."""
        if not self._fixed:
            return tokens
        return torch.cat((tokens, self._filler[: count - len(tokens)]))

    def _take(self, seen: Seen, draft: Draft, action: GrowingAction) -> None:
        """What a pass has shown goes into the action."""
        if not len(draft.tokens):
            action.say(*self.acceptance.plain(seen))
            self._show((0,))
            return
        verdict = self.acceptance.judge(seen, draft, len(action))
        self.drafter.judged(verdict.draft, verdict.accepted)
        action.add(verdict, self.acceptance.newest(seen, verdict))
        nodes = verdict.path if draft.parents is not None else range(verdict.accepted)
        self._show((0, *(node + 1 for node in nodes)))
        self._keep(verdict, action)

    def _show(self, rows: tuple[int, ...]) -> None:
        """The rows of the last pass that stood go to a drafter that wants to see them."""
        if self.lane.tapped is not None:
            self.drafter.saw(self.lane.tapped, rows)

    def _keep(self, verdict: Verdict, action: GrowingAction) -> None:
        """See to it that the K/V of what stood is where the next pass looks for it."""

    def prepare(self, request: Request, every: bool = False) -> None:
        self.drafter.prepare(request, every)
        super().prepare(request, every)

    def rehearse(self, request: Request) -> None:
        length, filler = len(request.prompt), self._filler
        self.lane.fit(length + self._entries)
        lengths = [self.gamma] if self._fixed else range(self.gamma + 1)
        for drafted in lengths:
            self._first_pass(request, Draft(filler[:drafted]))
        for fed in {min(drafted + 1, self.count - 1) for drafted in lengths}:
            self._next_pass(filler[:1], Draft(filler[1:fed]), length)

    def instruct(self, text: str) -> None:
        self.drafter.instruct(text)

    def forget(self, damaged: bool = False) -> None:
        self.drafter.forget(damaged)
        self.lane.ring.flush(damaged)
