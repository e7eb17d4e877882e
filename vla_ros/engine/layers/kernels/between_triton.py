"""The Triton kernels of :mod:`between`. Import it only where Triton runs. Not run on a GPU yet.

One program handles one token. The arithmetic is fp32; the sum is rounded once, before it is normed,
and the result once.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

from vla_ros.engine.layers.devices import on_device
from vla_ros.engine.layers.kernels.fused import Between, Pair

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


KERNELS = Between(add_norm, silu_mul)
