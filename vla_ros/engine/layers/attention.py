"""Attention of a pack over the KV cache: the prefill over itself, the tail over its slots.

A decoder calls an :class:`Attention` once a layer: the one seam between a language model and where
its K and V are. :class:`PackedAttention` writes the pack's K and V into the cache, lets the prefill
see itself (torch's scaled dot product attention, which is flash) and the tail its slots. It takes
what it needs from the plan when it is made: once for all passes of an eager plan, within the graph
of a captured one. No host sync, static shapes.

The tail is single tokens, draft chains and draft trees in one encoding: the slot and the row of
``Plan.sees`` of every token. :class:`TorchTail` is the reference in plain torch: what a CPU runs,
what a GPU runs without Triton, and what ``kernels/tail_attention_triton.py`` must agree with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from vla_ros.engine.layers.flash import flash
from vla_ros.engine.layers.kernels.fused import Heads, Rotated, rotate_in_place, split_rotated
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.pack import Plan

WORD = 64


class TailAttention(Protocol):
    """Attention of one plan's tail over one KV cache."""

    def __call__(self, layer: int, q: torch.Tensor, scale: float) -> torch.Tensor:
        """q [tail, H, D] -> [tail, H, D]; the tail's own K and V are in the KV cache already."""
        ...


def seen(sees: torch.Tensor, entries: int) -> torch.Tensor:
    """Entries that each token of a tail sees: ``Plan.sees`` [tail, 3 + words] -> bool [tail,
    entries]."""
    entry = torch.arange(entries, device=sees.device)
    length, base, words = sees[:, :1], sees[:, 2:3], sees[:, 3:]
    offset = entry - base
    word = (offset // WORD).clamp(0, words.shape[1] - 1)
    bits = words.gather(1, word) >> (offset % WORD) & 1
    inside = (offset >= 0) & (offset < WORD * words.shape[1])
    return (entry < length) | (inside & bits.bool())


class TorchTail:
    """A tail's attention in torch: two batched products of every slot's queries with its entries.

    Heads that share K and V are folded into the queries. In a KV cache of several slots the tail's
    tokens are laid out in cells [slots, width] (idle cells repeat the first token); nothing is
    gathered of the KV cache, whose slots are the batch.
    """

    def __init__(self, kv_cache: KVCache, plan: Plan) -> None:
        self._kv_cache, n = kv_cache, plan.shape.prefill
        slots, tail, width = kv_cache.slots, plan.shape.tail, plan.shape.width
        mask = torch.zeros(tail, kv_cache.slot_length, dtype=kv_cache.dtype, device=kv_cache.device)
        mask.masked_fill_(~seen(plan.sees, kv_cache.slot_length), float("-inf"))
        self._cells: torch.Tensor | None = None
        if slots > 1:
            token, slot = torch.arange(tail, device=kv_cache.device), plan.slot[n:]
            first = (slot == slot[:, None]).long().argmax(1)  # of its slot
            self._cells = slot * width + token - first
            self._tokens = token.new_zeros(slots * width).scatter(0, self._cells, token)
            mask = mask.new_zeros(slots * width, len(mask[0])).index_copy(0, self._cells, mask)
        self._mask = mask.view(slots, 1, -1, kv_cache.slot_length)  # the same for all heads
        self._masks: dict[int, torch.Tensor] = {}

    def __call__(self, layer: int, q: torch.Tensor, scale: float) -> torch.Tensor:
        keys, values = self._kv_cache.keys[layer], self._kv_cache.values[layer]
        slots, kv, length, dim = keys.shape
        cells = q if self._cells is None else q[self._tokens]
        width, group = len(cells) // slots, q.shape[1] // kv
        folded = cells.view(slots, width, kv, group, dim).permute(0, 2, 3, 1, 4)
        scores = torch.baddbmm(
            self._of_heads(kv, group), folded.reshape(slots * kv, group * width, dim),
            keys.view(-1, length, dim).transpose(1, 2), alpha=scale,
        )  # fmt: skip
        out = torch.bmm(scores.softmax(-1), values.view(-1, length, dim))
        out = out.view(slots, kv, group, width, dim).permute(0, 3, 1, 2, 4)
        out = out.reshape(len(cells), -1, dim)
        return out if self._cells is None else out[self._cells]

    def _of_heads(self, kv: int, group: int) -> torch.Tensor:
        """The mask [slots * Hkv, group * width, entries] of folded heads."""
        if group not in self._masks:
            slots, _, width, length = self._mask.shape
            wide = self._mask[:, :, None].expand(slots, kv, group, width, length)
            self._masks[group] = wide.reshape(slots * kv, group * width, length)
        return self._masks[group]


RopeWrite = Callable[..., Rotated]
MakeTail = Callable[[KVCache, Plan], TailAttention]


@dataclass(frozen=True, slots=True)
class SingleToken:
    """A pack of one token: its slot, the entry that its K and V go to, and int64 [n] those that it
    sees, its own among them."""

    kv_cache: KVCache
    slot: int
    index: int
    sees: np.ndarray[Any, Any]


class Attention(ABC):
    """How the layers of one pass attend, made for that pass: its KV cache and masks are its own.

    A :class:`~vla_ros.engine.layers.runner.Decoder` calls it once for each layer, in their order,
    with all T tokens of the pass: H query and Hkv key-value heads (H a multiple of Hkv) of size D,
    in the model's dtype and on its device. Whoever implements it gives :meth:`__call__`;
    :meth:`from_qkv` is for those that rotate Q and K, or write K and V, in a way of their own.
    """

    #: the pass where it is a single token over a KV cache that a CPU's function for one row reads
    alone: SingleToken | None = None

    @abstractmethod
    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """q [T, H, D], k and v [T, Hkv, D], q and k rotated -> [T, H, D]; ``scale`` of the
        scores."""

    def from_qkv(
        self,
        layer: int,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        heads: Heads,
        scale: float,
    ) -> torch.Tensor:
        """A fused projection [T, H + 2 Hkv, D], not rotated, and cos, sin [T, D], the first half of
        sin negated -> [T, H, D]. ``qkv`` may be overwritten."""
        return self(layer, *split_rotated(qkv, cos, sin, heads), scale)


class PackedAttention(Attention):
    """Attention of a pack over its KV cache, into which it writes K and V first."""

    def __init__(
        self,
        kv_cache: KVCache,
        plan: Plan,
        rope_write: RopeWrite | None = None,
        make_tail: MakeTail = TorchTail,
        library: bool = True,
    ) -> None:
        self._library = library  # whether flash-attn may do the prefill, where it is installed
        self._kv_cache, self._plan, self._rope_write = kv_cache, plan, rope_write
        self._tail = make_tail(kv_cache, plan) if plan.shape.tail else None
        self._seen: torch.Tensor | None = None  # of the prefill, where some of it is padding
        if plan.shape.masked:
            self._seen = torch.arange(plan.shape.prefill, device=kv_cache.device) < plan.filled

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        self.write(layer, torch.cat((k, v), 1))
        return self._attend(layer, q, k, v, scale)

    def from_qkv(
        self,
        layer: int,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        heads: Heads,
        scale: float,
    ) -> torch.Tensor:
        if self._rope_write is not None:
            entries = (self._kv_cache.keys[layer], self._kv_cache.values[layer])
            where = (self._plan.slot, self._plan.index)
            q, k, v = self._rope_write(qkv, cos, sin, entries, where, heads)
        else:
            q, k, v = rotate_in_place(qkv, cos, sin, heads)
            self.write(layer, qkv[:, heads.query :])
        return self._attend(layer, q, k, v, scale)

    def write(self, layer: int, fresh: torch.Tensor) -> None:
        """Put the pack's K and V [T, 2 Hkv, D] into one layer's KV cache entries."""
        tokens, heads, dim = fresh.shape
        both = fresh.view(tokens, 2, heads // 2, dim)
        self._kv_cache.both[layer][:, self._plan.slot, :, self._plan.index] = both

    def _attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """The result of ``__call__``; the pack's K and V are in the KV cache already."""
        shape, n = self._plan.shape, self._plan.shape.prefill
        if self._tail is None:
            return prefill(q, k, v, scale, shape.causal, self._seen, self._library)
        behind = self._tail(layer, q[n:], scale)
        if not n:
            return behind
        qkv = q[:n], k[:n], v[:n]
        fresh = prefill(*qkv, scale, shape.causal, self._seen, self._library)
        return torch.cat((fresh, behind))


class JoinedAttention(Attention):
    """Attention of several packs in one pass, each over a KV cache of its own: ``parts`` for the
    tokens of ``sizes``, one behind the other."""

    def __init__(self, parts: Sequence[Attention], sizes: Sequence[int]) -> None:
        self._parts, self._sizes = parts, list(sizes)

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        each = zip(self._parts, *(x.split(self._sizes) for x in (q, k, v)), strict=True)
        return torch.cat([part(layer, *qkv, scale) for part, *qkv in each])

    def from_qkv(
        self,
        layer: int,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        heads: Heads,
        scale: float,
    ) -> torch.Tensor:
        each = zip(self._parts, *(x.split(self._sizes) for x in (qkv, cos, sin)), strict=True)
        return torch.cat([part.from_qkv(layer, *own, heads, scale) for part, *own in each])


class CpuAttention(PackedAttention):
    """A pack's attention on a CPU: where K and V go to few runs of entries, as slices, which are
    quicker there than indices."""

    def __init__(self, kv_cache: KVCache, plan: Plan, rope_write: RopeWrite | None = None) -> None:
        super().__init__(kv_cache, plan, rope_write)
        # Under torch.compile there would be code for every slot and entry.
        compiling = torch.compiler.is_compiling()
        self._runs = [] if compiling else _runs(plan.slot.tolist(), plan.index.tolist())
        if not compiling and not plan.shape.prefill and plan.shape.tail == 1:
            sees = seen(plan.sees, kv_cache.slot_length)[0].nonzero()[:, 0].numpy()
            self.alone = SingleToken(kv_cache, int(plan.slot), int(plan.index), sees)

    def write(self, layer: int, fresh: torch.Tensor) -> None:
        few = 0 < len(self._runs) <= MANY
        runs = self._runs if few else self._runs[: self._plan.shape.prefill > 0]
        parts = fresh.view(len(fresh), 2, -1, fresh.shape[2]).permute(1, 2, 0, 3)
        both = self._kv_cache.both[layer]
        for first, last, slot, entry in runs:
            both[:, slot, :, entry : entry + last - first] = parts[:, :, first:last]
        n = runs[-1][1] if runs else 0
        if n < len(fresh):
            plan = self._plan
            both[:, plan.slot[n:], :, plan.index[n:]] = parts[:, :, n:].permute(2, 0, 1, 3)


MANY = 3  # slices that are as quick as an index


def _runs(slots: list[int], entries: list[int]) -> list[tuple[int, int, int, int]]:
    """Runs (first, last, slot, entry): tokens first ... last - 1 lie in a slot from an entry on."""
    out: list[tuple[int, int, int, int]] = []
    for token, (slot, entry) in enumerate(zip(slots, entries, strict=True)):
        if out and out[-1][2] == slot and entry == out[-1][3] + token - out[-1][0]:
            out[-1] = (out[-1][0], token + 1, *out[-1][2:])
        else:
            out.append((token, token + 1, slot, entry))
    return out


@dataclass(frozen=True, slots=True)
class Backend:
    """A maker of attentions, of a plan over a KV cache.

    ``whole_slots``: a tail reads its slots to their end, so short slots are fast ones. ``name`` is
    logged and reported.
    """

    make: Callable[[KVCache, Plan], PackedAttention]
    whole_slots: bool = False
    name: str = ""


def prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    causal: bool,
    seen: torch.Tensor | None = None,
    library: bool = True,
) -> torch.Tensor:
    """Attention of the fresh tokens among themselves: q [n, H, D], k and v [n, Hkv, D] -> [n, H,
    D]; ``seen`` bool [n]: those that may be attended to; without ``library`` never by flash-attn.
    """
    if library and seen is None:
        made = flash(q[None], k[None], v[None], scale, causal)
        if made is not None:
            return made[0]
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    mask = None if seen is None else seen.expand(q.shape[2], -1)
    out = F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out[0].transpose(0, 1)
