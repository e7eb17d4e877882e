"""Attention of a pack over the ring. No host sync, static shapes.

A decoder calls an :class:`Attention` once a layer. :class:`PackedAttention` puts the pack's K and
V into the ring; how the prefill then sees itself and the tail its slots is what the backends differ
in. Each takes what it needs from the plan when it is made: once for all passes of an eager plan,
within the graph of a captured one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vla_ros.engine.packed.kernels.rope_write import Heads, Rotated, split_rotated
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
    """Writes the pack's K/V into the ring, then attends."""

    def __init__(self, ring: Ring, plan: Plan, rope_write: RopeWrite | None = None) -> None:
        self._ring, self._plan, self._rope_write = ring, plan, rope_write

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        self.write(self._ring.keys[layer], k)
        self.write(self._ring.values[layer], v)
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

    def write(self, entries: torch.Tensor, fresh: torch.Tensor) -> None:
        """Put the pack's K or V [T, Hkv, D] into one layer's ring entries."""
        entries[self._plan.slot, :, self._plan.index] = fresh

    @abstractmethod
    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """As ``__call__``; the pack's K/V are in the ring already."""


@dataclass(frozen=True, slots=True)
class Backend:
    """Makes the attention of a plan over a ring.

    ``whole_slots``: a tail reads its slots to their end, so short slots are fast ones. Slots are
    a multiple of ``page`` entries long. ``name``: what runs, for a person.
    """

    make: Callable[[Ring, Plan], PackedAttention]
    whole_slots: bool = False
    page: int = 1
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
