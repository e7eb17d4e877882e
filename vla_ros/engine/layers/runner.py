"""A runner: one KV cache of a decoder, and the passes over it. The only way into the decoder.

A pass is: the plan of a layout, the embeddings of its tokens, the decoder over the attention that
the plan asks for, and for every row what comes next. Where passes are captured, all of that but the
plan is within the graph: tokens in, tokens out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Protocol
from weakref import finalize

import torch

from vla_ros.core.numbers import round_up
from vla_ros.engine.layers.attention import Attention, Backend, JoinedAttention
from vla_ros.engine.layers.graphs import Capture, CountedCapture, GraphCache, Pass
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.linear import Weight, linear, rows_of
from vla_ros.engine.layers.pack import PLANS, PackLayout, Plan, Planner, TailToken


class Decoder(Protocol):
    """A language model: embeddings in, hidden states out; ``head`` [V, C] makes logits of them."""

    @property
    def head(self) -> Weight: ...

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, C]."""
        ...

    def hidden(
        self, x: torch.Tensor, positions: torch.Tensor, attention: Attention, rows: torch.Tensor
    ) -> torch.Tensor:
        """Embeddings [T, C], positions int64 [T] -> hidden states after the final norm [R, C] of
        the ``rows`` int64 [R]."""
        ...

    def tapped(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        rows: torch.Tensor,
        layers: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The result of :meth:`hidden`, and the outputs of ``layers`` side by side in their order
        [R, layers * C]: the residual stream of the same rows, before any norm."""
        ...


MakeAttention = Callable[[Plan], Attention]

BUCKET = 16  # with graphs, prefills are padded to a multiple, so few lengths need a graph


def prompt_lengths(patches: int, longest: int) -> tuple[int, ...]:
    """The first and the last length of every bucket, of prompts with a text: with these (and what
    lies a few tokens behind them) every rounding of a length to the bucket has come."""
    first = patches + 2  # a text has two tokens at least
    ends = [n for n in range(first, longest + 1) if n % BUCKET in (0, 1)]
    return tuple(sorted({first, *ends, longest}))


def resized(prompt: torch.Tensor, length: int) -> torch.Tensor:
    """A prompt [n, C] of another length: cut, or with its last row again and again."""
    missing = length - len(prompt)
    if missing <= 0:
        return prompt[:length]
    return torch.cat((prompt, prompt[-1:].expand(missing, -1)))


CHOICES, LOGITS, HIDDEN = "choices", "logits", "hidden"
ROBOTS = 8  # slots of a pool


class Pool:
    """A KV cache whose slots belong to decodings of their own, one each, so that the tails of all
    can be one pack."""

    def __init__(self, kv_cache: KVCache, backend: Backend) -> None:
        self.kv_cache = kv_cache
        self._planner = Planner(kv_cache)
        self._free = list(range(kv_cache.slots))
        self._attend = lru_cache(PLANS)(partial(backend.make, kv_cache))

    def take(self) -> tuple[KVCache, int] | None:
        """A slot as a KV cache, until that is no longer used; None: there is none left."""
        if not self._free:
            return None
        slot = min(self._free)  # of which there are plans already
        self._free.remove(slot)
        part = self.kv_cache.part(slot)
        part.flush(damaged=True)  # what was there before may not have been finite
        finalize(part, self._free.append, slot)
        return part, slot

    def plan(self, passes: Sequence[PackPass]) -> tuple[Plan, Attention]:
        """Passes without a prefill as one pack."""
        longest = max(one.runner.kv_cache.slot_length for one in passes)
        if longest > self.kv_cache.slot_length or not self._planner.built:
            self.kv_cache.resize(longest)
            self._planner.forget()
            self._attend.cache_clear()
        rows, tail = list[int](), list[TailToken]()
        for one in passes:
            rows += [len(tail) + row for row in one.layout.rows]
            tail += [replace(token, slot=one.runner.slot) for token in one.layout.tail]
        plan = self._planner.plan(PackLayout(tuple(rows), tail=tuple(tail)))
        return plan, self._attend(plan)


class Pools:
    """The pools of one model by the length of a slot; another one where all slots are taken."""

    def __init__(self) -> None:
        self._pools: dict[int, list[Pool]] = {}

    def take(
        self, length: int, make: Callable[[], KVCache], backend: Backend
    ) -> tuple[Pool, KVCache, int]:
        """A slot of this length, and the pool that it lies in."""
        pools = self._pools.setdefault(length, [])
        for pool in pools:
            if (taken := pool.take()) is not None:
                return pool, *taken
        pools.append(Pool(make(), backend))
        taken = pools[-1].take()
        assert taken is not None
        return pools[-1], *taken


class DecoderRunner:
    """A KV cache of a decoder and the passes over it.

    ``window`` names the tokens that it chooses among, None all of them. With ``capture`` every pack
    shape becomes a graph. ``taps`` are layers whose outputs a pass keeps in :attr:`tapped`.
    ``pool``: the KV cache is its ``slot``.
    """

    def __init__(
        self,
        decoder: Decoder,
        kv_cache: KVCache,
        backend: Backend,
        capture: Capture | None = None,
        window: range | None = None,
        taps: tuple[int, ...] = (),
        pool: Pool | None = None,
        slot: int = 0,
    ) -> None:
        self.pool, self.slot = pool, slot
        self.kv_cache, self.backend, self.planner = kv_cache, backend, Planner(kv_cache)
        self._decoder, self._taps = decoder, taps
        #: [R, taps * C] of the rows of the last ``run`` or ``logits``; None without taps
        self.tapped: torch.Tensor | None = None
        window = window or range(len(decoder.head))
        self._first, self._head = window.start, rows_of(decoder.head, window)
        self._bucket = 1 if capture is None else BUCKET
        # A graph takes what its attention needs from its own plan, which changes under it.
        make = partial(backend.make, kv_cache)
        self._attention: MakeAttention = make if capture else lru_cache(PLANS)(make)
        # Graphs live as long as the model, sessions do not: without graphs nothing refers back.
        self._graphs: dict[str, Pass] = {}
        if capture is not None:
            for gives in (CHOICES, LOGITS, HIDDEN):
                self._graphs[gives] = GraphCache(partial(self._run, gives), capture)

    def run(
        self, layout: PackLayout, prompt: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one pack -> the greedy choices int64 [R] and their logits [R], on the device.

        ``prompt`` is embeddings [n, C], the prefill's or its beginning; ``tokens`` int64 [t] are
        its end (a draft behind its prompt) and then the tail, in the layout's order. A row that
        was not finite has a logit that is not finite.
        """
        choices, maxima = self._pass(CHOICES, (layout,), prompt, tokens)
        return choices, maxima

    def follow(
        self, layouts: tuple[PackLayout, ...], token: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Packs of one token each, the first ``token`` int64 [1], then what the one before chose
        -> all choices and their logits [passes]. One graph, whatever they are."""
        choices, maxima = self._pass(CHOICES, layouts, None, token)
        return choices, maxima

    def logits(
        self, layout: PackLayout, prompt: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> torch.Tensor:
        """Run one pack -> logits [R, window], where :meth:`run`'s choices are not enough."""
        (logits,) = self._pass(LOGITS, (layout,), prompt, tokens)
        return logits

    def hidden(self, layout: PackLayout, x: torch.Tensor) -> torch.Tensor:
        """Run one pack of embeddings [T, C] -> hidden states [R, C] (heads other than tokens)."""
        (states,) = self._pass(HIDDEN, (layout,), x, None)
        return states

    @property
    def kin(self) -> Hashable:
        """Runners of the same kin can run their passes as one: the same decoder and the same rows
        of its head. None: passes are captured, each over its own KV cache."""
        if self._bucket > 1:
            return None
        return id(self._decoder), id(self.backend), self._taps, self._first, len(self._head)

    def together(self, passes: Sequence[PackPass]) -> list[tuple[torch.Tensor, ...]]:
        """Passes of the same kin, each over its own KV cache, as one -> what each gives.

        The tokens of all go through the decoder's products side by side. Tails in one pool attend
        as one pack, every other pack by itself.
        """
        packs: dict[object, list[PackPass]] = {}
        for one in passes:
            together = one.runner.pool is not None and not one.layout.prefill
            packs.setdefault(one.runner.pool if together else one, []).append(one)
        order = [one for pack in packs.values() for one in pack]
        with torch.inference_mode():
            plans = [
                key.plan(pack) if isinstance(key, Pool) else pack[0].runner.alone(pack[0].layout)
                for key, pack in packs.items()
            ]
            rows, sizes, before = [], [], 0
            for plan, _ in plans:
                rows.append(plan.rows + before)
                sizes.append(len(plan.positions))
                before += sizes[-1]
            x = torch.cat([part for one in order for part in one.embedded()])
            positions = torch.cat([plan.positions for plan, _ in plans])
            attention = plans[0][1]
            if len(plans) > 1:
                attention = JoinedAttention([part for _, part in plans], sizes)
            given = self._give(passes[0].gives, x, positions, attention, torch.cat(rows))
            counts = [len(one.layout.rows) for one in order]
            split = zip(*(part.split(counts) for part in given), strict=True)
        found = {id(one): parts for one, parts in zip(order, split, strict=True)}
        if self._taps:
            for one in passes:
                one.runner.tapped, found[id(one)] = found[id(one)][-1], found[id(one)][:-1]
        return [found[id(one)] for one in passes]

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens int64 [t] -> [t, C]."""
        return self._decoder.embed(tokens)

    def alone(self, layout: PackLayout) -> tuple[Plan, Attention]:
        """The plan and the attention of a pack over this KV cache, not captured."""
        plan = self.planner.plan(layout)
        return plan, self._attention(plan)

    def _give(
        self,
        gives: str,
        x: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        rows: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """The result of a pass, see :class:`PackPass`, and the taps behind it."""
        taps: list[torch.Tensor] = []
        if self._taps:
            states, *taps = self._decoder.tapped(x, positions, attention, rows, self._taps)
        else:
            states = self._decoder.hidden(x, positions, attention, rows)
        if gives == HIDDEN:
            return states, *taps
        logits = linear(states, self._head)
        if gives == LOGITS:
            return logits, *taps
        maxima, choices = logits.max(dim=-1)
        return (choices + self._first if self._first else choices), maxima, *taps

    def _pass(
        self,
        gives: str,
        layouts: tuple[PackLayout, ...],
        prompt: torch.Tensor | None,
        tokens: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        plans = tuple(self.planner.plan(self._padded(layout)) for layout in layouts)
        with torch.inference_mode():
            if gives in self._graphs:
                out = self._graphs[gives](plans, prompt, tokens)
            else:
                out = self._run(gives, plans, prompt, tokens)
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
        """Embeddings [T, C] of [prompt][draft behind it][padding][tail]."""
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

    def _run(
        self,
        gives: str,
        plans: tuple[Plan, ...],
        prompt: torch.Tensor | None,
        tokens: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        """The result of a pass over plans; of several each is fed with what the one before
        chose."""
        found = []
        for plan in plans:
            x, attention = self._embed(plan, prompt, tokens), self._attention(plan)
            found.append(self._give(gives, x, plan.positions, attention, plan.rows))
            tokens, prompt = found[-1][0], None
        if len(found) == 1:
            return found[0]
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))

    def behind(self, prefill: int) -> int:
        """The first entry behind a prefill of so many tokens, and its padding."""
        return round_up(prefill, self._bucket)

    def fit(self, entries: int) -> None:
        """Tell the runner how many entries the coming requests need.

        Where tails read whole slots, the KV cache then takes a shape that wastes little. With
        graphs its shape is fixed.
        """
        wanted = min(round_up(entries, BUCKET), self.kv_cache.longest)
        if not self.backend.whole_slots or self._bucket > 1 or self.kv_cache.live:
            return
        if wanted != self.kv_cache.slot_length:
            self.kv_cache.resize(wanted)
            self.planner.forget()
            self._attention = lru_cache(PLANS)(partial(self.backend.make, self.kv_cache))


class TokenNetwork:
    """A network whose language model, of sizes ``text``, gives the actions as tokens. Every
    decoding makes itself a :class:`DecoderRunner` of it, the only way into the ``decoder``."""

    text: Any
    decoder: Decoder
    attention: Backend
    device: torch.device
    dtype: torch.dtype
    capture: CountedCapture | None
    pools: Pools | None = None  # of sessions

    @property
    def captures(self) -> int:
        """Graphs that were captured so far, a draft model's too."""
        return 0 if self.capture is None else self.capture.count

    def runner(
        self,
        slots: int,
        slot_length: int,
        window: range | None = None,
        taps: tuple[int, ...] = (),
    ) -> DecoderRunner:
        """A KV cache of its own; ``window`` names the tokens to choose among, None all of them.

        ``taps``: layers whose outputs its passes keep, see :class:`DecoderRunner`.
        """
        text, page = self.text, 1 if self.capture is None else BUCKET
        length = round_up(slot_length, page)
        sizes = text.kv_heads, text.head_dim, self.dtype, self.device
        if self.pools is not None and slots == 1:
            pool, kv_cache, slot = self.pools.take(
                length, lambda: KVCache(text.layers, ROBOTS, length, *sizes), self.attention
            )
            return DecoderRunner(
                self.decoder, kv_cache, self.attention, None, window, taps, pool, slot
            )
        kv_cache, capture = KVCache(text.layers, slots, length, *sizes), self._captures_passes()
        return DecoderRunner(self.decoder, kv_cache, self.attention, capture, window, taps)

    def _captures_passes(self) -> Capture | None:
        return self.capture


@dataclass(frozen=True, slots=True, eq=False)
class PackPass:
    """A pack that is to be run; a :class:`~vla_ros.engine.layers.pieces.Piece`.

    ``gives``: its result is that of the runner's ``run``, ``logits`` or ``hidden`` (whose
    embeddings are the ``prompt``). ``how`` runs it alone in place of these.
    """

    runner: DecoderRunner
    layout: PackLayout
    prompt: torch.Tensor | None = None
    tokens: torch.Tensor | None = None
    gives: str = CHOICES
    how: Callable[..., tuple[torch.Tensor, ...]] | None = None

    def embedded(self) -> list[torch.Tensor]:
        """Embeddings that go into the decoder: the prompt, the tokens behind it."""
        parts = [] if self.prompt is None else [self.prompt]
        return parts if self.tokens is None else [*parts, self.runner.embed(self.tokens)]

    @property
    def kin(self) -> Hashable:
        kin = self.runner.kin
        return kin and (kin, self.gives)

    def run(self) -> tuple[torch.Tensor, ...]:
        """The result of the runner's function for this pass."""
        runner, asked = self.runner, (self.layout, self.prompt, self.tokens)
        if self.how is not None:
            return self.how(runner, *asked)
        if self.gives == HIDDEN:
            assert self.prompt is not None
            return (runner.hidden(self.layout, self.prompt),)
        return runner.run(*asked) if self.gives == CHOICES else (runner.logits(*asked),)

    def together(self, others: Sequence[PackPass]) -> list[tuple[torch.Tensor, ...]]:
        """Passes of several runners as one, see :meth:`DecoderRunner.together`."""
        return self.runner.together((self, *others))
