"""Attention of a pack over the ring. No host sync, static shapes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F

from vla_ros.engine.packed.kernels.rope_write import (
    Heads,
    Rotated,
    fits_triton,
    split_rotated,
    triton_runs,
)
from vla_ros.engine.packed.pack import Plan
from vla_ros.engine.packed.ring import Ring

RopeWrite = Callable[..., Rotated]


class Attention(ABC):
    """How the layers of one pack attend; a decoder calls it once per layer."""

    @abstractmethod
    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """q [T, H, D], k and v [T, Hkv, D], already rotated -> [T, H, D]."""

    def from_qkv(
        self,
        layer: int,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        heads: Heads,
        scale: float,
    ) -> torch.Tensor:
        """The same from a fused projection [T, H + 2 Hkv, D] and cos, sin [T, D]."""
        return self(layer, *split_rotated(qkv, cos, sin, heads), scale)


class PackedAttention(Attention):
    """Writes the pack's K/V into the ring, then attends prefill and tail."""

    def __init__(self, ring: Ring, plan: Plan, rope_write: RopeWrite | None = None) -> None:
        self._ring, self._plan, self._rope_write = ring, plan, rope_write

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        write(self._ring.keys[layer], k, self._plan)
        write(self._ring.values[layer], v, self._plan)
        return self.attend(layer, q, k, v, scale)

    def from_qkv(
        self,
        layer: int,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        heads: Heads,
        scale: float,
    ) -> torch.Tensor:
        if self._rope_write is None:
            return super().from_qkv(layer, qkv, cos, sin, heads, scale)
        entries = (self._ring.keys[layer], self._ring.values[layer])
        where = (self._plan.slot, self._plan.index)
        q, k, v = self._rope_write(qkv, cos, sin, entries, where, heads)
        return self.attend(layer, q, k, v, scale)

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """The pack's K/V are in the ring already."""
        plan, n = self._plan, self._plan.shape.prefill
        out = []
        if n:
            out.append(prefill(q[:n], k[:n], v[:n], scale, plan.shape.causal))
        if plan.grid is not None:
            out.append(tail(q, self._ring.keys[layer], self._ring.values[layer], plan, scale))
        return out[0] if len(out) == 1 else torch.cat(out)


def choose_rope_write(device: torch.device, head_dim: int) -> RopeWrite | None:
    """Triton's kernel where it runs; None where torch's own operations are to be used."""
    if not (triton_runs(device) and fits_triton(head_dim)):
        return None
    from vla_ros.engine.packed.kernels.rope_write_triton import rope_write

    return rope_write


def write(entries: torch.Tensor, fresh: torch.Tensor, plan: Plan) -> None:
    """Put a pack's K or V [T, Hkv, D] where the plan says, in ring entries of one layer."""
    if plan.front_slot is None or fresh.is_cuda:
        entries[plan.slot, :, plan.index] = fresh
        return
    n = plan.shape.prefill
    entries[plan.front_slot, :, :n] = fresh[:n].transpose(0, 1)
    if plan.shape.tail:
        entries[plan.slot[n:], :, plan.index[n:]] = fresh[n:]


def prefill(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
) -> torch.Tensor:
    """[n, H, D], [n, Hkv, D] -> [n, H, D]: the fresh tokens among themselves."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out[0].transpose(0, 1)


def tail(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: Plan, scale: float
) -> torch.Tensor:
    """Every slot's queries against that slot's ring entries, under the plan's mask."""
    assert plan.grid is not None and plan.cells is not None and plan.mask is not None
    length, width = plan.shape.span, plan.shape.width
    keys, values = keys[:, :, :length], values[:, :, :length]
    slots, heads, dim = len(keys), q.shape[1], q.shape[2]
    queries = q[plan.grid].view(slots, width, heads, dim).transpose(1, 2)
    attend = masked_sdpa if q.is_cuda else masked_products
    out = attend(queries, keys, values, plan.mask, scale)
    return out.transpose(1, 2).reshape(slots * width, heads, dim)[plan.cells]


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
