"""RoPE and the KV write in one kernel: the reference in torch, and whether Triton's can run.

Both rotate Q and K and put K and V into one layer's ring entries.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Heads:
    """``query`` heads, ``kv`` heads; a fused projection holds query + 2 kv of them."""

    query: int
    kv: int


Rotated = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE as transformers applies it: halves, not interleaved pairs."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def split_rotated(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: Heads) -> Rotated:
    """[T, H + 2 Hkv, D] and cos, sin [T, D] -> rotated q [T, H, D], k, and v [T, Hkv, D]."""
    rotated = heads.query + heads.kv
    qk = rotate(qkv[:, :rotated], cos[:, None], sin[:, None])
    return qk[:, : heads.query], qk[:, heads.query :], qkv[:, rotated:]


def rope_write_reference(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    entries: tuple[torch.Tensor, torch.Tensor],
    where: tuple[torch.Tensor, torch.Tensor],
    heads: Heads,
) -> Rotated:
    """As :func:`split_rotated`, and K, V go to ``entries`` [slots, Hkv, S, D] at ``where``.

    ``where`` is slot and index, int64 [T] each.
    """
    q, k, v = split_rotated(qkv, cos, sin, heads)
    entries[0][where[0], :, where[1]] = k
    entries[1][where[0], :, where[1]] = v
    return q, k, v


def triton_runs(device: torch.device) -> bool:
    """Triton is installed and can run on this device (its interpreter runs on a CPU)."""
    can = device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    return can and importlib.util.find_spec("triton") is not None


def fits_triton(head_dim: int) -> bool:
    """The kernel handles a head in two halves whose length is a power of two."""
    half = head_dim // 2
    return head_dim % 2 == 0 and half & (half - 1) == 0
