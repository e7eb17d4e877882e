"""The tail as a grid: every slot's queries against that slot's entries, under a mask.

The tail's tokens are laid out in cells [slots, width], so that their attention is one batched
product of every slot's queries with that slot's keys, a view of the ring: no gathering, no copies.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from vla_ros.engine.packed.attention import PackedAttention, RopeWrite, prefill
from vla_ros.engine.packed.pack import Plan
from vla_ros.engine.packed.ring import Ring


class Grid(NamedTuple):
    """``tokens`` [slots * width]: the tail token in each cell (idle cells repeat the first);
    ``cells`` [tail]: the cell of each token; ``mask`` additive [slots, 1, width, span]."""

    tokens: torch.Tensor
    cells: torch.Tensor
    mask: torch.Tensor


def lay_out(plan: Plan, slots: int, span: int, dtype: torch.dtype) -> Grid:
    """The grid of a plan's tail, on the plan's device and without asking it anything."""
    n, tail, width = plan.shape.prefill, plan.shape.tail, plan.shape.width
    queries = plan.sequences[1 if n else 0 :, 1]
    ends = queries.cumsum(0)
    token = torch.arange(tail, device=plan.flat.device)
    mine = torch.searchsorted(ends, token, right=True)
    cells = plan.slot[n:] * width + token - (ends - queries)[mine]
    tokens = torch.zeros(slots * width, dtype=torch.long, device=token.device)
    if plan.tree is None:
        seen = torch.arange(span, device=token.device) <= plan.index[n:, None]
    else:
        seen = F.pad(plan.tree, (0, span - plan.shape.span))
    rows = torch.zeros(tail, span, dtype=dtype, device=token.device)
    mask = torch.zeros(slots * width, span, dtype=dtype, device=token.device)
    mask[cells] = rows.masked_fill(~seen, float("-inf"))
    return Grid(tokens.scatter(0, cells, token), cells, mask.view(slots, 1, width, span))


class MaskedAttention(PackedAttention):
    """The grid through torch's scaled dot product attention. Takes draft trees."""

    def __init__(
        self,
        ring: Ring,
        plan: Plan,
        rope_write: RopeWrite | None = None,
        span: int | None = None,
        mask_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(ring, plan, rope_write)
        self._span = plan.shape.span if span is None else span
        if plan.shape.tail:
            self._grid = lay_out(plan, ring.slots, self._span, mask_dtype or ring.dtype)

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        shape, n = self._plan.shape, self._plan.shape.prefill
        out = []
        if n:
            out.append(prefill(q[:n], k[:n], v[:n], scale, shape.causal))
        if shape.tail:
            out.append(self._tail(layer, q[n:], scale))
        return out[0] if len(out) == 1 else torch.cat(out)

    def _tail(self, layer: int, q: torch.Tensor, scale: float) -> torch.Tensor:
        keys = self._ring.keys[layer][:, :, : self._span]
        values = self._ring.values[layer][:, :, : self._span]
        slots, heads, dim = len(keys), q.shape[1], q.shape[2]
        queries = q[self._grid.tokens].view(slots, -1, heads, dim).transpose(1, 2)
        out = self.products(queries, keys, values, self._grid.mask, scale)
        return out.transpose(1, 2).reshape(-1, heads, dim)[self._grid.cells]

    def products(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """q [R, H, m, D], k and v [R, Hkv, S, D], mask [R, 1, m, S] -> [R, H, m, D]."""
        return masked_sdpa(q, k, v, mask, scale)


class CpuAttention(MaskedAttention):
    """The grid as a CPU likes it.

    A slot is read to its end (a part of it would be copied first), K and V of the prefill are put
    in place as a slice, and the tail is two plain products.
    """

    def __init__(self, ring: Ring, plan: Plan, rope_write: RopeWrite | None = None) -> None:
        super().__init__(ring, plan, rope_write, ring.slot_length, torch.float32)
        self._front = int(plan.slot[0]) if plan.shape.prefill else 0

    def write(self, entries: torch.Tensor, fresh: torch.Tensor) -> None:
        plan, n = self._plan, self._plan.shape.prefill
        if not n or torch.compiler.is_compiling():  # which would make code for every slot
            super().write(entries, fresh)
            return
        entries[self._front, :, :n] = fresh[:n].transpose(0, 1)
        if plan.shape.tail:
            entries[plan.slot[n:], :, plan.index[n:]] = fresh[n:]

    def products(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        return masked_products(q, k, v, mask, scale)


def masked_sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """q [R, H, m, D], k and v [R, Hkv, S, D], mask [R, 1, m, S] -> [R, H, m, D]."""
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def masked_products(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """The same as two plain products: a CPU's SDPA packs K and V anew on every call."""
    slots, heads, width, dim = q.shape
    kv_heads, length = k.shape[1], k.shape[2]
    group = heads // kv_heads
    folded = q.reshape(slots, kv_heads, group * width, dim)
    scores = torch.matmul(folded, k.transpose(2, 3)).view(slots, kv_heads, group, width, length)
    weights = (scores.float() * scale + mask[:, :, None]).softmax(-1).to(q.dtype)
    out = torch.matmul(weights.view(slots, kv_heads, group * width, length), v)
    return out.view(slots, heads, width, dim)
