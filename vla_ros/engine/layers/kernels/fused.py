"""Operators that Triton fuses (``layer_triton.py``), as references in torch, with the checks that
Triton's must pass.

:class:`AddNorm`: what lies between two products of a layer, add + RMSNorm and SiLU times up. RoPE
and the KV write rotate Q and K and put K and V into one layer's entries of the KV cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

Pair = tuple[torch.Tensor, torch.Tensor]


class AddNorm(NamedTuple):
    """``add_norm`` (x, added [T, C], weight [C], eps) -> x + added, and that normed;
    ``silu_mul`` [T, 2 M], gate before up -> [T, M]. Both may overwrite what they are given."""

    add_norm: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], Pair]
    silu_mul: Callable[[torch.Tensor], torch.Tensor]


def add_norm(x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    """Sum and its RMSNorm; the sum is rounded to its type before it is normed, as transformers does
    it."""
    total = x + added
    return total, F.rms_norm(total, (total.shape[-1],), weight, eps)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


#: torch's operators; gradients go through them
PLAIN = AddNorm(add_norm, silu_mul)


def check_between(
    call: AddNorm, device: torch.device, dtype: torch.dtype, width: int, middle: int
) -> None:
    """Hold :class:`AddNorm` to the reference, on three tokens of a layer of these widths.

    Raises whatever the calls raise, and ValueError where they give something else.
    """
    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random).to(device, dtype)

    x, added, weight, gate_up = (
        normal(3, width),
        normal(3, width),
        normal(width),
        normal(3, 2 * middle),
    )
    results = []
    for each in (PLAIN, call):
        pair = each.add_norm(x.clone(), added.clone(), weight, 1e-6)
        parts = (*pair, each.silu_mul(gate_up.clone()))
        results.append(torch.cat([part.float().flatten() for part in parts]))
    off = (results[0] - results[1]).abs().max().item()
    limit = 1e-4 if dtype == torch.float32 else 0.15  # of values up to 15
    if not off < limit:
        raise ValueError(f"its result is off by {off:.2g}")


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
    """[T, H + 2 Hkv, D] and cos, sin [T, D] -> rotated q [T, H, D], k, and v [T, Hkv, D].

    The first half of ``sin`` is negated, see :func:`signed`.
    """
    rotated = heads.query + heads.kv
    qk = qkv[:, :rotated]
    qk = qk * cos[:, None] + qk.roll(qk.shape[-1] // 2, -1) * sin[:, None]
    return qk[:, : heads.query], qk[:, heads.query :], qkv[:, rotated:]


def rotate_in_place(
    qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: Heads
) -> Rotated:
    """Rotated queries and keys as views of ``qkv``, which is overwritten."""
    rotated = heads.query + heads.kv
    qk = qkv[:, :rotated]
    other = qk.roll(qk.shape[-1] // 2, -1)
    qk.mul_(cos[:, None]).addcmul_(other, sin[:, None])
    return qk[:, : heads.query], qk[:, heads.query :], qkv[:, rotated:]


def signed(sin: torch.Tensor) -> torch.Tensor:
    """sin [..., D] with its first half negated: a rotation is then x * cos + rolled x * sin."""
    first, second = sin.chunk(2, -1)
    return torch.cat((-first, second), -1)


def rope_write_reference(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    entries: tuple[torch.Tensor, torch.Tensor],
    where: tuple[torch.Tensor, torch.Tensor],
    heads: Heads,
) -> Rotated:
    """RoPE and KV write: :func:`split_rotated`, and K, V go to ``entries`` [slots, Hkv, S, D] at
    ``where``, slot and index, int64 [T] each."""
    q, k, v = split_rotated(qkv, cos, sin, heads)
    entries[0][where[0], :, where[1]] = k
    entries[1][where[0], :, where[1]] = v
    return q, k, v


def check_rope_write(
    call: Callable[..., Rotated],
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    heads: Heads,
) -> None:
    """Hold a RoPE and KV write to the reference: three tokens into a KV cache of two slots.

    Raises whatever the call raises, and ValueError where it gives something else.
    """
    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random).to(device, dtype)

    cos, sin = (normal(3, head_dim // 2).repeat(1, 2) for _ in "cs")  # both halves alike
    sin = signed(sin)
    qkv = normal(3, heads.query + 2 * heads.kv, head_dim)
    where = torch.tensor([1, 0, 1], device=device), torch.tensor([0, 3, 2], device=device)
    results = []
    for function in (rope_write_reference, call):
        keys = qkv.new_zeros(2, heads.kv, 4, head_dim)
        entries = keys, keys.clone()
        rotated = function(qkv.clone(), cos, sin, entries, where, heads)
        results.append(torch.cat([t.float().flatten() for t in (*rotated, *entries)]))
    off = (results[0] - results[1]).abs().max().item()
    limit = 1e-4 if dtype == torch.float32 else 0.1  # of values around 1, up to 10
    if not off < limit:
        raise ValueError(f"its result is off by {off:.2g}")


def fits_triton(head_dim: int) -> bool:
    """Head sizes that Triton's RoPE takes: two halves whose length is a power of two."""
    half = head_dim // 2
    return head_dim % 2 == 0 and half & (half - 1) == 0
