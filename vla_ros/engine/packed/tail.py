"""The tail's attention: every token against what it sees of its own KV slot.

One encoding for single tokens, draft chains and draft trees: the slot and the row of ``Plan.sees``
of every token. :class:`TorchTail` is the primitive in plain torch: what a CPU runs, what a GPU runs
without Triton, and what the kernel (:mod:`kernels.tail_attention_triton`) must agree with.
"""

from __future__ import annotations

from typing import Protocol

import torch

from vla_ros.engine.packed.pack import Plan
from vla_ros.engine.packed.ring import Ring

WORD = 64


class TailAttention(Protocol):
    """Of one plan over one ring."""

    def __call__(self, layer: int, q: torch.Tensor, scale: float) -> torch.Tensor:
        """q [tail, H, D] -> [tail, H, D]; the tail's own K and V are in the ring already."""
        ...


def seen(sees: torch.Tensor, entries: int) -> torch.Tensor:
    """``Plan.sees`` [tail, 3 + words] -> bool [tail, entries]."""
    entry = torch.arange(entries, device=sees.device)
    length, base, words = sees[:, :1], sees[:, 2:3], sees[:, 3:]
    place = entry - base
    word = (place // WORD).clamp(0, words.shape[1] - 1)
    bits = words.gather(1, word) >> (place % WORD) & 1
    inside = (place >= 0) & (place < WORD * words.shape[1])
    return (entry < length) | (inside & bits.bool())


class TorchTail:
    """Two batched products of every slot's queries with that slot's entries, to its end.

    Heads that share K and V are folded into the queries. In a ring of several slots the tail's
    tokens are laid out in cells [slots, width] (idle cells repeat the first token); nothing is
    gathered of the ring, whose slots are the batch.
    """

    def __init__(self, ring: Ring, plan: Plan) -> None:
        self._ring, n = ring, plan.shape.prefill
        slots, tail, width = ring.slots, plan.shape.tail, plan.shape.width
        mask = torch.zeros(tail, ring.slot_length, dtype=ring.dtype, device=ring.device)
        mask.masked_fill_(~seen(plan.sees, ring.slot_length), float("-inf"))
        self._cells: torch.Tensor | None = None
        if slots > 1:
            token, slot = torch.arange(tail, device=ring.device), plan.slot[n:]
            first = (slot == slot[:, None]).long().argmax(1)  # of its slot
            self._cells = slot * width + token - first
            self._tokens = token.new_zeros(slots * width).scatter(0, self._cells, token)
            mask = mask.new_zeros(slots * width, len(mask[0])).index_copy(0, self._cells, mask)
        self._mask = mask.view(slots, 1, -1, ring.slot_length)  # per slot, of every head the same
        self._masks: dict[int, torch.Tensor] = {}

    def __call__(self, layer: int, q: torch.Tensor, scale: float) -> torch.Tensor:
        keys, values = self._ring.keys[layer], self._ring.values[layer]
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
