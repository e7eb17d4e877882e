"""A runner: one KV cache of a decoder, and the passes over it. The only way into the decoder.

A pass is: the plan of a layout, the embeddings of its tokens, the decoder over the attention that
the plan asks for, and for every row what comes next. Where passes are captured, all of that but the
plan is within the graph: tokens in, tokens out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import torch

from vla_ros.engine.layers.attention import Attention, Backend
from vla_ros.engine.layers.graphs import Capture, GraphCache, Pass
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.linear import linear, rows_of
from vla_ros.engine.layers.pack import PLANS, PackLayout, Plan, Planner
from vla_ros.engine.models.language.base import Decoder, Hidden, Tapped

MakeAttention = Callable[[Plan], Attention]

BUCKET = 16  # with graphs, prefills are padded to a multiple, so few lengths need a graph


def prompt_lengths(patches: int, longest: int) -> tuple[int, ...]:
    """The first and the last length of every bucket, of prompts with a text: with these (and what
    lies a few tokens behind them) every rounding of a length to the bucket has come."""
    first = patches + 2  # a text has two tokens at least
    ends = [n for n in range(first, longest + 1) if n % BUCKET in (0, 1)]
    return tuple(sorted({first, *ends, longest}))


def resized(prompt: torch.Tensor, length: int) -> torch.Tensor:
    """A prompt [n, C] of that length: cut, or with its last row again and again."""
    missing = length - len(prompt)
    if missing <= 0:
        return prompt[:length]
    return torch.cat((prompt, prompt[-1:].expand(missing, -1)))


class DecoderRunner:
    """Runs packs.

    ``hidden`` is the decoder's, or that compiled. ``window`` names the tokens that it chooses
    among, None all of them. With ``capture`` every pack shape becomes a graph. ``taps`` are
    layers whose outputs a pass keeps in :attr:`tapped`; ``tap`` gives them.
    """

    def __init__(
        self,
        decoder: Decoder,
        hidden: Hidden,
        kv_cache: KVCache,
        backend: Backend,
        capture: Capture | None = None,
        window: range | None = None,
        taps: tuple[int, ...] = (),
        tap: Tapped | None = None,
    ) -> None:
        self.kv_cache, self.backend, self.planner = kv_cache, backend, Planner(kv_cache)
        self._decoder, self._decode = decoder, hidden
        self._tap, self._taps = tap or decoder.tapped, taps
        #: [R, taps * C] of the rows of the last ``run`` or ``logits``; None without taps
        self.tapped: torch.Tensor | None = None
        window = window or range(len(decoder.head))
        self._first, self._head = window.start, rows_of(decoder.head, window)
        self._bucket = 1 if capture is None else BUCKET
        # A graph takes what its attention needs from its own plan, which changes under it.
        make = partial(backend.make, kv_cache)
        self._attention: MakeAttention = make if capture else lru_cache(PLANS)(make)
        self._choose: Pass = self._choices
        self._score: Pass = self._logits
        if capture is not None:
            self._choose = GraphCache(self._choices, capture)
            self._score = GraphCache(self._logits, capture)

    def run(
        self, layout: PackLayout, prompt: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one pack -> the greedy choices int64 [R] and their logits [R], on the device.

        ``prompt`` is embeddings [n, C], the prefill's or its beginning; ``tokens`` int64 [t] are
        its end (a draft behind its prompt) and then the tail, in the layout's order. A row that
        was not finite has a logit that is not finite.
        """
        choices, maxima = self._pass(self._choose, (layout,), prompt, tokens)
        return choices, maxima

    def follow(
        self, layouts: tuple[PackLayout, ...], token: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Packs of one token each, the first ``token`` int64 [1], then what the one before chose
        -> all choices and their logits [passes]. One graph, whatever they are."""
        choices, maxima = self._pass(self._choose, layouts, None, token)
        return choices, maxima

    def logits(
        self, layout: PackLayout, prompt: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> torch.Tensor:
        """The same as ``run`` -> logits [R, window], where a choice is not enough."""
        (logits,) = self._pass(self._score, (layout,), prompt, tokens)
        return logits

    def hidden(self, layout: PackLayout, x: torch.Tensor) -> torch.Tensor:
        """Run one pack of embeddings [T, C] -> hidden states [R, C] (heads other than tokens)."""
        with torch.inference_mode():
            plan = self.planner.plan(layout)
            return self._decode(x, plan.positions, self._attention(plan), plan.rows)

    def _pass(
        self,
        answer: Pass,
        layouts: tuple[PackLayout, ...],
        prompt: torch.Tensor | None,
        tokens: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        plans = tuple(self.planner.plan(self._padded(layout)) for layout in layouts)
        with torch.inference_mode():
            out = answer(plans, prompt, tokens)
        if self._taps:
            self.tapped, out = out[-1], out[:-1]
        return out

    def _padded(self, layout: PackLayout) -> PackLayout:
        if not layout.prefill or self._bucket == 1:
            return layout
        pad = self.behind(layout.prefill) - layout.prefill
        return replace(layout, pad=pad, masked=not layout.causal)

    def _embed(
        self, plan: Plan, prompt: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> torch.Tensor:
        """[prompt][draft behind it][padding][tail] -> [T, C]."""
        if tokens is None:
            assert prompt is not None
            return prompt
        embedded = self._decoder.embed(tokens)
        if prompt is None:
            return embedded
        drafts = len(tokens) - plan.shape.tail
        if drafts and len(prompt) == plan.shape.prefill:  # a buffer with room for them
            where = plan.filled + torch.arange(-drafts, 0, device=prompt.device)
            prompt = prompt.index_copy(0, where, embedded[:drafts])
            embedded = embedded[drafts:]
        return torch.cat((prompt, embedded)) if len(embedded) else prompt

    def _logits(
        self, plans: tuple[Plan, ...], prompt: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        (plan,) = plans
        x, attention = self._embed(plan, prompt, tokens), self._attention(plan)
        if not self._taps:
            states = self._decode(x, plan.positions, attention, plan.rows)
            return (linear(states, self._head),)
        states, taps = self._tap(x, plan.positions, attention, plan.rows, self._taps)
        return linear(states, self._head), taps

    def _choices(
        self, plans: tuple[Plan, ...], prompt: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        """What every row chooses; of several plans each is fed with what the one before chose."""
        found = []
        for plan in plans:
            logits, *taps = self._logits((plan,), prompt, tokens)
            maxima, choices = logits.max(dim=-1)
            tokens, prompt = choices + self._first if self._first else choices, None
            found.append((tokens, maxima, *taps))
        if len(found) == 1:
            return found[0]
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))

    def behind(self, prefill: int) -> int:
        """The first entry behind a prefill of so many tokens, and its padding."""
        return -(-prefill // self._bucket) * self._bucket

    def fit(self, entries: int) -> None:
        """Tell the runner how many entries the coming requests need.

        Where tails read whole slots, the KV cache then takes a shape that wastes little. With
        graphs its shape is fixed.
        """
        wanted = min(-(-entries // BUCKET) * BUCKET, self.kv_cache.longest)
        if not self.backend.whole_slots or self._bucket > 1 or self.kv_cache.live:
            return
        if wanted != self.kv_cache.slot_length:
            self.kv_cache.resize(wanted)
            self.planner.forget()
            self._attention = lru_cache(PLANS)(partial(self.backend.make, self.kv_cache))
