"""Speculative decoding fused into the prefill: with chains of draft tokens, or with draft trees.

The draft rides behind the prompt in the same pass, and a correction rides in the next
verification, so an action never needs more than K target passes and a full hit needs one. Where
the drafter has nothing to draft this is plain decoding: tokens stay on the device.

In fp32 the tokens are those of decoding without drafts. In bf16 a draft's length, which changes
the shape of a pass, can turn a close call; see docs/explanation/decoding.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import overload

import torch

from vla_ros.engine.decoding.acceptance import Acceptance, Scores, Verification
from vla_ros.engine.decoding.base import Decoding, TokenModel, look_every, up_to
from vla_ros.engine.decoding.draft_tree import ROOT, STEP, Budget, branches
from vla_ros.engine.decoding.drafters import Draft, Drafter
from vla_ros.engine.layers.devices import upload
from vla_ros.engine.layers.pack import PackLayout, TailToken, branching, chain, prefill_layout
from vla_ros.engine.layers.pieces import Pieces, alone
from vla_ros.engine.layers.request import Decoded, Reading, Request
from vla_ros.engine.layers.runner import BUCKET, PackPass


class PartialAction(Sequence[int]):
    """An action while it is decoded: the tokens so far, and what became of the drafts per position.

    A token that no draft preceded stays on the device until :meth:`read`, which looking at any
    token calls; asking for the length is free. ``tokens``, the target's ``own`` choices at the
    same positions and ``finite`` are as of the last reading.
    """

    def __init__(self, positions: int) -> None:
        self.tokens: list[int] = []
        self.own: list[int] = []
        self.finite = True
        self.drafted = [0] * positions
        self.accepted = [0] * positions
        self.passes = 0
        self._unread = Reading()
        self._newest: torch.Tensor | None = None  # on the device, where it is there anyway

    def __len__(self) -> int:
        return len(self.tokens) + len(self._unread.choices)

    @overload
    def __getitem__(self, position: int) -> int: ...

    @overload
    def __getitem__(self, position: slice) -> list[int]: ...

    def __getitem__(self, position: int | slice) -> int | list[int]:
        self.read()
        return self.tokens[position]

    def last(self, device: torch.device) -> torch.Tensor:
        """The last token, int64 [1], on the device."""
        if self._newest is None:
            return upload(self.tokens[-1:], device, torch.long)
        return self._newest

    def append(self, choice: torch.Tensor, maximum: torch.Tensor) -> None:
        """One token more that no draft preceded: the choice [1] and its logit."""
        self._newest = self._unread.add(choice, maximum)

    def extend(self, result: Verification, newest: torch.Tensor | None = None) -> None:
        """Add what a draft came to; ``newest`` int64 [1] is its last token on the device."""
        self.read()
        start = len(self.tokens)
        for offset in range(min(len(result.draft), result.accepted + 1)):  # those verified
            self.drafted[start + offset] += 1
            self.accepted[start + offset] += offset < result.accepted
        self.tokens += result.tokens
        self.own += result.own
        self.finite &= result.finite
        self._newest = newest

    def ended(self, ends: int, every: int) -> bool:
        """True where the token ``ends`` is among them; the device is read every so many tokens."""
        if len(self._unread.choices) >= every:
            self.read()
        return ends in self.tokens

    def cut(self, ends: int | None) -> None:
        """Leave out what lies behind the token ``ends``."""
        self.read()
        self.tokens = up_to(self.tokens, ends)
        self.own = self.own[: len(self.tokens)]

    def read(self) -> None:
        """Read what is still on the device."""
        if not self._unread.choices:
            return
        tokens, finite = self._unread.read()
        self.tokens += tokens
        self.own += tokens
        self.finite &= finite
        self._unread = Reading()

    def answer(self, request: Request, draft_passes: int) -> Decoded:
        """The finished action as the request's answer."""
        self.read()
        return replace(
            request.answer(self.tokens, self.passes, finite=self.finite),
            draft_passes=draft_passes,
            drafted=tuple(self.drafted),
            accepted=tuple(self.accepted),
            own=tuple(self.own),
        )


FILLER = 0  # the token that fills a pass up; nothing sees it, and its row is not looked at
TILE = 16  # rows that a GPU multiplies at once: fewer cost the same
LAYOUTS = 512  # remembered; shapes of trees change rarely


class Speculative(Decoding):
    """Draft, verify, keep: at least one token a pass, at most gamma + 1.

    ``fixed_shapes``: every pass is filled up to the longest draft, so that there are two shapes.
    Where passes are captured they are so too, unless that would cost something: then drafts are
    filled up in steps, so that there are few.
    """

    def __init__(
        self,
        model: TokenModel,
        tokens: int,
        max_prompt: int,
        drafter: Drafter,
        acceptance: Acceptance,
        gamma: int | None = None,
        fixed_shapes: bool = False,
        budget: Budget | None = None,
    ) -> None:
        super().__init__(model, tokens, max_prompt)
        self.drafter, self.acceptance = drafter, acceptance
        self.lossless = acceptance.lossless
        self.gamma = tokens - 1 if gamma is None else min(gamma, tokens - 1)
        # Chains are cheap to fill up where rows are anyway few; longer ones, like trees, in steps.
        captured = budget is None and model.capture is not None
        self._fixed = fixed_shapes or (captured and self.gamma < TILE)
        if budget is None:
            step = STEP if captured and not self._fixed else 1
            most = -(-self.gamma // step) * step
            budget = Budget(most, most, step)
        self._budget = budget
        #: what drafts are filled up to, behind a prompt and behind a token
        self._behind_prompts, self._behind_tokens = self._sizes(budget)
        self._nothing = self._blank(0)
        self._entries = self._needed()
        self.runner = model.runner(1, max_prompt + self._entries, acceptance.window, drafter.layers)

    def _sizes(self, budget: Budget) -> tuple[Sequence[int], Sequence[int]]:
        """Sizes of chains. A prompt's rows come in buckets, which a step of the same size
        respects."""
        if self._fixed or budget.step == 1:
            return self._steps(budget.prompt), self._steps(budget.alone)
        shorter = () if self.drafter.full else range(0, budget.prompt, BUCKET)
        return (*shorter, budget.prompt), self._steps(budget.alone)

    def _steps(self, most: int) -> Sequence[int]:
        """The whole of it with fixed shapes, else every multiple of the budget's step."""
        return (most,) if self._fixed else (*range(0, most, self._budget.step), most)

    def _needed(self) -> int:
        """KV entries of an action, behind its prompt."""
        most = max(self._budget.prompt, self._budget.alone)
        return self.count + (0 if self._budget.step == 1 and not self._fixed else most)

    def pieces(self, request: Request) -> Pieces[Decoded]:
        self.drafter.begin(request)
        self.runner.fit(len(request.prompt) + self._entries)
        action = PartialAction(self.count)
        yield from self._decode(request, action)
        action.cut(self.model.ends)
        if action.finite:
            self.drafter.observe(action.tokens, action.own)
        return action.answer(request, self.drafter.passes)

    def _decode(self, request: Request, action: PartialAction) -> Pieces[None]:
        """Draft, verify, accept, until the action is whole or a value is not finite."""
        while self._goes_on(action):
            draft = self._draft(action)
            scores = yield from self._verify(request, draft, action)
            self._accept(scores, draft, action)

    def _goes_on(self, action: PartialAction) -> bool:
        ends = self.model.ends
        if len(action) >= self.count or not action.finite:
            return False
        return ends is None or not action.ended(ends, look_every(self.model))

    def _draft(self, action: PartialAction) -> Draft:
        # The last token of an action needs no draft: it comes with its predecessor's pass.
        limit = min(self.gamma, self.count - 1 - len(action))
        return self.drafter.propose(action, limit) if limit > 0 else self._nothing

    def _verify(self, request: Request, draft: Draft, action: PartialAction) -> Pieces[Scores]:
        """The pass that verifies a draft: the prompt's own, later that of the newest token."""
        if not len(action):
            scores = yield from self._first_pass(request, draft)
            request.stages.mark("prefill")
        else:
            entry = len(request.prompt) + len(action) - 1
            last = action.last(self.model.device)
            scores = yield from self._next_pass(last, draft, entry)
        action.passes += 1
        return scores

    def _first_pass(self, request: Request, draft: Draft) -> Pieces[Scores]:
        """The prompt with a draft of d tokens behind it -> scores of d + 1 rows."""
        fed = padded(draft.tokens, self._behind_prompts)
        layout = self._behind_prompt(len(request.prompt), draft, len(fed))
        tokens = fed if len(fed) else None
        scores = yield self._verification(layout, request.prompt, tokens)
        return tuple(rows[: len(draft.tokens) + 1] for rows in scores)

    def _next_pass(self, last: torch.Tensor, draft: Draft, start: int) -> Pieces[Scores]:
        """The last token [1], in entry ``start``, with a draft behind it -> d + 1 rows."""
        fed = padded(draft.tokens, self._behind_tokens)
        layout = self._behind_token(start, draft, len(fed))
        tokens = torch.cat((last, fed)) if len(fed) else last
        scores = yield self._verification(layout, None, tokens)
        return tuple(rows[: len(draft.tokens) + 1] for rows in scores)

    def _verification(
        self, layout: PackLayout, prompt: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> PackPass:
        rule = self.acceptance
        return PackPass(self.runner, layout, prompt, tokens, rule.reads, rule.verify)

    def _behind_prompt(self, length: int, draft: Draft, size: int) -> PackLayout:
        """A prompt and ``size`` tokens, of which the draft are the first."""
        return prefill_layout(length + size, tuple(range(length - 1, length + size)))

    def _behind_token(self, start: int, draft: Draft, size: int) -> PackLayout:
        """A token in entry ``start`` and ``size`` more behind it."""
        return PackLayout(rows=tuple(range(size + 1)), tail=chain(0, start, size + 1))

    def _accept(self, scores: Scores, draft: Draft, action: PartialAction) -> None:
        """Add to the action what a pass has verified."""
        if not len(draft.tokens):
            action.append(*self.acceptance.plain(scores))
            self._show_taps((0,))
            return
        result = self.acceptance.accept(scores, draft, len(action))
        self.drafter.verified(result.draft, result.accepted)
        action.extend(result, self.acceptance.newest(scores, result))
        nodes = result.path if draft.parents is not None else range(result.accepted)
        self._show_taps((0, *(node + 1 for node in nodes)))
        self._keep(result, action)

    def _show_taps(self, rows: tuple[int, ...]) -> None:
        """Give the taps of the accepted rows to a drafter that wants them."""
        if self.runner.tapped is not None:
            self.drafter.observe_taps(self.runner.tapped, rows)

    def _keep(self, result: Verification, action: PartialAction) -> None:
        """Move the K/V of what was accepted to where the next pass looks for it."""

    def _blank(self, count: int, parents: tuple[int, ...] | None = None) -> Draft:
        """A draft of filler tokens, for warming up."""
        return Draft(torch.full((count,), FILLER, device=self.model.device), parents=parents)

    def prepare(self, request: Request, every: bool = False) -> None:
        self.drafter.prepare(request, every)
        super().prepare(request, every)

    def warm_up(self, request: Request) -> None:
        length, last = len(request.prompt), self._blank(1).tokens
        self.runner.fit(length + self._entries)
        for size in self._behind_prompts:
            alone(self._first_pass(request, self._blank(size)))
        for size in self._behind_tokens:
            alone(self._next_pass(last, self._blank(size), length))

    def instruct(self, text: str) -> None:
        self.drafter.instruct(text)

    def forget(self, damaged: bool = False) -> None:
        self.drafter.forget(damaged)
        self.runner.kv_cache.flush(damaged)


class TreeSpeculative(Speculative):
    """Speculation whose drafts are trees, of at most the ``budget``'s nodes.

    The tree lies behind the prompt in the prefill's own pass; in a later pass the last known token
    is its root. Every node sees the prompt, the action so far, and its own branch. The accepted
    path is then moved to where a chain would have put it, K and V of all layers at once;
    what was rejected is overwritten by the next pass before anything can see it.

    Where passes are captured, trees are filled up to a multiple of the budget's ``step`` nodes:
    shapes are then few, and all known before service. ``fixed_shapes``: to the whole budget.
    """

    _nodes = _trunk = 0  # of the last pass: its first node's entry, and its position

    def _sizes(self, budget: Budget) -> tuple[Sequence[int], Sequence[int]]:
        return self._steps(budget.prompt), self._steps(budget.alone)

    def _needed(self) -> int:
        return BUCKET + max(self._budget.prompt, self.count + self._budget.alone)

    def _behind_prompt(self, length: int, draft: Draft, size: int) -> PackLayout:
        self._nodes, self._trunk = self.runner.behind(length), length
        return behind_prompt(length, self._nodes, draft.parents or (), size, self.model.causal)

    def _behind_token(self, start: int, draft: Draft, size: int) -> PackLayout:
        self._nodes = self._trunk = start + 1
        return behind_root(start, draft.parents or (), size)

    def _keep(self, result: Verification, action: PartialAction) -> None:
        source = [self._nodes + node for node in result.path]
        target = list(range(self._trunk, self._trunk + len(source)))
        if source != target and len(action) < self.count:
            moved = upload([source, target], self.model.device, torch.long)
            self.runner.kv_cache.move(0, *moved)

    def warm_up(self, request: Request) -> None:
        """Every number of nodes that may come, where they come in steps; else the most."""
        length, budget = len(request.prompt), self._budget
        self.runner.fit(length + self._entries)
        last = self._blank(1).tokens
        for size in budget.sizes(budget.prompt):
            alone(self._first_pass(request, self._blank(size, (ROOT,) * size)))
        for size in budget.sizes(budget.alone):
            alone(self._next_pass(last, self._blank(size, (ROOT,) * size), length))
        self._warm_up_move()

    def _warm_up_move(self) -> None:
        self._keep(Verification((), (), (), 1, True, (1,)), PartialAction(self.count))


def padded(tokens: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """A draft filled up to the next of some sizes, which rise."""
    missing = sizes[bisect_left(sizes, len(tokens))] - len(tokens)
    return torch.cat((tokens, tokens.new_full((missing,), FILLER))) if missing else tokens


@lru_cache(LAYOUTS)
def behind_prompt(
    length: int, start: int, parents: tuple[int, ...], size: int, causal: bool = True
) -> PackLayout:
    """A prompt and a tree behind it, whose nodes lie in the entries from ``start`` on."""
    rows = tuple(range(length - 1, length + size))
    tail = _nodes(start, length, parents, size)
    return PackLayout(rows=rows, prefill=length, tail=tail, causal=causal)


@lru_cache(LAYOUTS)
def behind_root(entry: int, parents: tuple[int, ...], size: int) -> PackLayout:
    """The last known token in its entry, and a tree behind it."""
    nodes = _nodes(entry + 1, entry + 1, parents, size)
    return PackLayout(rows=tuple(range(1 + size)), tail=(TailToken(0, entry), *nodes))


def _nodes(start: int, trunk: int, parents: tuple[int, ...], size: int) -> tuple[TailToken, ...]:
    """The tree, and what fills it up: tokens that see themselves only."""
    tree = branching(0, start, trunk, branches(parents))
    return (
        *tree,
        *(TailToken(0, n, trunk, (n,)) for n in range(start + len(tree), start + size)),
    )
