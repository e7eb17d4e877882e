"""The Triton kernel of :mod:`rope_write`. Import it only where Triton runs.

One program handles one head of one token. Q and K are rotated in place in the fused projection
and K and V are copied from there into the KV cache; the arithmetic is fp32, rounded once.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

from vla_ros.engine.layers.devices import on_device
from vla_ros.engine.layers.kernels.fused import Heads, Rotated


@triton.jit
def _kernel(  # type: ignore[no-untyped-def]
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
    """As the reference; ``qkv`` [T, H + 2 Hkv, D], contiguous, is overwritten."""
    keys, values = entries
    tokens, total, dim = qkv.shape
    with on_device(qkv.device):
        _kernel[(tokens, total)](
            qkv, cos, sin, keys, values, where[0], where[1],
            keys.stride(0), keys.stride(1), keys.stride(2), total,
            QUERY=heads.query, KV=heads.kv, HALF=dim // 2,
        )  # fmt: skip
    rotated = heads.query + heads.kv
    return qkv[:, : heads.query], qkv[:, heads.query : rotated], qkv[:, rotated:]
