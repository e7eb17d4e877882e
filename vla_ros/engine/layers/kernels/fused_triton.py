"""The Triton kernels of :mod:`~vla_ros.engine.layers.kernels.fused`: add + RMSNorm, SiLU times up,
RoPE and KV write. Import it only where Triton runs. Not run on a GPU yet.

The arithmetic is fp32. The sum of add + RMSNorm is rounded once, before it is normed; every result
is rounded once.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

from vla_ros.engine.layers.devices import on_device
from vla_ros.engine.layers.kernels.fused import AddNorm, Heads, Pair, Rotated

_BLOCK = 1024  # of silu_mul: columns a program


@triton.jit
def _add_norm(  # type: ignore[no-untyped-def]
    x, added, weight, total, normed, width, eps, BLOCK: tl.constexpr
):
    row, lanes = tl.program_id(0), tl.arange(0, BLOCK)
    here = lanes < width
    place = row * width + lanes
    both = tl.load(x + place, here, 0.0).to(tl.float32)
    both += tl.load(added + place, here, 0.0).to(tl.float32)
    rounded = both.to(total.dtype.element_ty)
    tl.store(total + place, rounded, here)
    both = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(both * both, 0) / width + eps)
    out = both * scale * tl.load(weight + lanes, here, 0.0).to(tl.float32)
    tl.store(normed + place, out.to(normed.dtype.element_ty), here)


@triton.jit
def _silu_mul(gate_up, out, middle, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, lanes = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = lanes < middle
    gate = tl.load(gate_up + row * 2 * middle + lanes, here, 0.0).to(tl.float32)
    up = tl.load(gate_up + (row * 2 + 1) * middle + lanes, here, 0.0).to(tl.float32)
    # As torch: the activation is rounded before it is multiplied.
    act = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * middle + lanes, (act * up).to(out.dtype.element_ty), here)


def add_norm(x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    """As the reference; x and ``added`` contiguous."""
    count, width = x.shape
    total, normed = torch.empty_like(x), torch.empty_like(x)
    with on_device(x.device):
        _add_norm[(count,)](
            x, added, weight, total, normed, width, eps,
            BLOCK=triton.next_power_of_2(width), num_warps=8,
        )  # fmt: skip
    return total, normed


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As the reference; contiguous."""
    count, middle = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty(count, middle)
    with on_device(gate_up.device):
        _silu_mul[(count, triton.cdiv(middle, _BLOCK))](gate_up, out, middle, BLOCK=_BLOCK)
    return out


KERNELS = AddNorm(add_norm, silu_mul)


@triton.jit
def _rope_write(  # type: ignore[no-untyped-def]
    qkv, cos, sin, keys, values, slot, index,
    slot_stride, head_stride, entry_stride, total_heads,
    QUERY: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0), tl.program_id(1)
    lanes = tl.arange(0, HALF)
    place = qkv + (token * total_heads + head) * (2 * HALF) + lanes
    first = tl.load(place).to(tl.float32)
    second = tl.load(place + HALF).to(tl.float32)
    if head < QUERY + KV:
        angle = token * (2 * HALF) + lanes
        c = tl.load(cos + angle).to(tl.float32)
        s = tl.load(sin + angle + HALF).to(tl.float32)  # the first half is negated
        turned = first * c - second * s
        second = second * c + first * s
        first = turned
        tl.store(place, first.to(qkv.dtype.element_ty))
        tl.store(place + HALF, second.to(qkv.dtype.element_ty))
    if head >= QUERY:
        kv_head = (head - QUERY) % KV
        target = tl.load(slot + token) * slot_stride + tl.load(index + token) * entry_stride
        target += kv_head * head_stride + lanes
        if head < QUERY + KV:
            tl.store(keys + target, first.to(keys.dtype.element_ty))
            tl.store(keys + target + HALF, second.to(keys.dtype.element_ty))
        else:
            tl.store(values + target, first.to(values.dtype.element_ty))
            tl.store(values + target + HALF, second.to(values.dtype.element_ty))


def rope_write(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    entries: tuple[torch.Tensor, torch.Tensor],
    where: tuple[torch.Tensor, torch.Tensor],
    heads: Heads,
) -> Rotated:
    """As the reference; ``qkv`` [T, H + 2 Hkv, D], contiguous, is overwritten.

    One program handles one head of one token. Q and K are rotated in place in the fused projection
    and K and V are copied from there into the KV cache.
    """
    keys, values = entries
    tokens, total, dim = qkv.shape
    with on_device(qkv.device):
        _rope_write[(tokens, total)](
            qkv, cos, sin, keys, values, where[0], where[1],
            keys.stride(0), keys.stride(1), keys.stride(2), total,
            QUERY=heads.query, KV=heads.kv, HALF=dim // 2,
        )  # fmt: skip
    rotated = heads.query + heads.kv
    return qkv[:, : heads.query], qkv[:, heads.query : rotated], qkv[:, rotated:]
