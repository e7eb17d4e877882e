"""What lies between two products of a layer: add + RMSNorm, SiLU times up; the reference in torch.

Each is one kernel with Triton (:mod:`between_triton`) and a few operators with torch: see
:class:`Between`, which says what a decoder calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

Pair = tuple[torch.Tensor, torch.Tensor]


class Between(NamedTuple):
    """``add_norm`` (x, added [T, C], weight [C], eps) -> x + added, and that normed;
    ``silu_mul`` [T, 2 M], gate before up -> [T, M]. Both may overwrite what they are given."""

    add_norm: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], Pair]
    silu_mul: Callable[[torch.Tensor], torch.Tensor]


def add_norm(x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    """The sum is rounded to its type before it is normed, as transformers does it."""
    total = x + added
    return total, F.rms_norm(total, (total.shape[-1],), weight, eps)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


#: torch's operators; gradients go through them
PLAIN = Between(add_norm, silu_mul)


def check_between(
    call: Between, device: torch.device, dtype: torch.dtype, width: int, middle: int
) -> None:
    """Three tokens of a layer of these widths, against the reference.

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
