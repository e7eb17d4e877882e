"""Attention of a pack over the ring. No host sync, static shapes.

A decoder calls an :class:`Attention` once a layer. :class:`PackedAttention` puts the pack's K and
V into the ring, lets the prefill see itself (torch's scaled dot product attention, which is flash)
and the tail its slots: the one primitive of :mod:`vla_ros.engine.packed.tail`, or the kernel that
does the same. It takes what it needs from the plan when it is made: once for all passes of an eager
plan, within the graph of a captured one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vla_ros.engine.packed.kernels.rope_write import Heads, Rotated, rotate_in_place, split_rotated
from vla_ros.engine.packed.pack import Plan
from vla_ros.engine.packed.ring import Ring
from vla_ros.engine.packed.tail import TailAttention, TorchTail

RopeWrite = Callable[..., Rotated]
MakeTail = Callable[[Ring, Plan], TailAttention]


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
        """The same from a fused projection [T, H + 2 Hkv, D], which may be overwritten, and cos,
        sin [T, D], the first half of sin negated."""
        return self(layer, *split_rotated(qkv, cos, sin, heads), scale)


class PackedAttention(Attention):
    """Writes the pack's K/V into the ring, then attends."""

    def __init__(
        self,
        ring: Ring,
        plan: Plan,
        rope_write: RopeWrite | None = None,
        make_tail: MakeTail = TorchTail,
    ) -> None:
        self._ring, self._plan, self._rope_write = ring, plan, rope_write
        self._tail = make_tail(ring, plan) if plan.shape.tail else None

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
            entries = (self._ring.keys[layer], self._ring.values[layer])
            where = (self._plan.slot, self._plan.index)
            q, k, v = self._rope_write(qkv, cos, sin, entries, where, heads)
        else:
            q, k, v = rotate_in_place(qkv, cos, sin, heads)
            self.write(layer, qkv[:, heads.query :])
        return self._attend(layer, q, k, v, scale)

    def write(self, layer: int, fresh: torch.Tensor) -> None:
        """Put the pack's K and V [T, 2 Hkv, D] into one layer's ring entries."""
        tokens, heads, dim = fresh.shape
        both = fresh.view(tokens, 2, heads // 2, dim)
        self._ring.both[layer][:, self._plan.slot, :, self._plan.index] = both

    def _attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """As ``__call__``; the pack's K/V are in the ring already."""
        shape, n = self._plan.shape, self._plan.shape.prefill
        if self._tail is None:
            return prefill(q, k, v, scale, shape.causal)
        behind = self._tail(layer, q[n:], scale)
        if not n:
            return behind
        return torch.cat((prefill(q[:n], k[:n], v[:n], scale, shape.causal), behind))


class CpuAttention(PackedAttention):
    """Puts K and V in place as slices, where they are few: a CPU likes them better than indices."""

    def __init__(self, ring: Ring, plan: Plan, rope_write: RopeWrite | None = None) -> None:
        super().__init__(ring, plan, rope_write)
        # Under torch.compile there would be code for every slot and entry.
        compiling = torch.compiler.is_compiling()
        self._runs = [] if compiling else _runs(plan.slot.tolist(), plan.index.tolist())

    def write(self, layer: int, fresh: torch.Tensor) -> None:
        few = 0 < len(self._runs) <= MANY
        runs = self._runs if few else self._runs[: self._plan.shape.prefill > 0]
        parts = fresh.view(len(fresh), 2, -1, fresh.shape[2]).permute(1, 2, 0, 3)
        both = self._ring.both[layer]
        for first, last, slot, entry in runs:
            both[:, slot, :, entry : entry + last - first] = parts[:, :, first:last]
        n = runs[-1][1] if runs else 0
        if n < len(fresh):
            plan = self._plan
            both[:, plan.slot[n:], :, plan.index[n:]] = parts[:, :, n:].permute(2, 0, 1, 3)


MANY = 3  # slices that are as quick as an index


def _runs(slots: list[int], entries: list[int]) -> list[tuple[int, int, int, int]]:
    """Tokens first ... last - 1 that lie in a slot from an entry on, one behind the other."""
    out: list[tuple[int, int, int, int]] = []
    for token, (slot, entry) in enumerate(zip(slots, entries, strict=True)):
        if out and out[-1][2] == slot and entry == out[-1][3] + token - out[-1][0]:
            out[-1] = (out[-1][0], token + 1, *out[-1][2:])
        else:
            out.append((token, token + 1, slot, entry))
    return out


@dataclass(frozen=True, slots=True)
class Backend:
    """Makes the attention of a plan over a ring.

    ``whole_slots``: a tail reads its slots to their end, so short slots are fast ones. ``name``:
    what runs, for a person.
    """

    make: Callable[[Ring, Plan], PackedAttention]
    whole_slots: bool = False
    name: str = ""


def prefill(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
) -> torch.Tensor:
    """[n, H, D], [n, Hkv, D] -> [n, H, D]: the fresh tokens among themselves."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out[0].transpose(0, 1)
