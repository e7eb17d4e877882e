"""The Triton kernel of :mod:`products`. Import it only where Triton runs.

A program makes a tile [rows, weights] of the result. It loads a tile of packed bytes once and
multiplies each of its four planes with the columns that it belongs to: int8 times int8 into int32,
scaled in float32, rounded once.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

from vla_ros.engine.layers.devices import on_device

BLOCKS = {"ROWS": 64, "WEIGHTS": 64, "BYTES": 64}


@triton.jit
def _kernel(  # type: ignore[no-untyped-def]
    rows, factor, packed, scale, out, count, weights, bytes_,
    ROWS: tl.constexpr, WEIGHTS: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    weight = tl.program_id(1) * WEIGHTS + tl.arange(0, WEIGHTS)
    is_row, is_weight = row < count, weight < weights
    sums = tl.zeros((ROWS, WEIGHTS), dtype=tl.int32)
    for begin in range(0, bytes_, BYTES):
        byte = begin + tl.arange(0, BYTES)
        is_byte = byte < bytes_
        # 85 is 0 in every plane
        codes = tl.load(
            packed + weight[None, :] * bytes_ + byte[:, None],
            mask=is_byte[:, None] & is_weight[None, :], other=85,
        )  # fmt: skip
        for number in tl.static_range(4):
            values = ((codes >> (2 * number)) & 3).to(tl.int8) - 1
            x = tl.load(
                rows + row[:, None] * (4 * bytes_) + number * bytes_ + byte[None, :],
                mask=is_row[:, None] & is_byte[None, :], other=0,
            )  # fmt: skip
            sums += tl.dot(x, values.to(tl.int8), out_dtype=tl.int32)
    f = tl.load(factor + row, mask=is_row, other=0.0)
    s = tl.load(scale + weight, mask=is_weight, other=0.0)
    result = sums.to(tl.float32) * f[:, None] * s[None, :]
    tl.store(
        out + row[:, None] * weights + weight[None, :], result.to(out.dtype.element_ty),
        mask=is_row[:, None] & is_weight[None, :],
    )  # fmt: skip


def product(
    rows: torch.Tensor,
    factor: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """As the reference; all contiguous."""
    count, (weights, bytes_) = len(rows), packed.shape
    assert rows.shape[1] == 4 * bytes_  # ternary.PLANES
    out = torch.empty(count, weights, dtype=dtype, device=rows.device)
    grid = triton.cdiv(count, BLOCKS["ROWS"]), triton.cdiv(weights, BLOCKS["WEIGHTS"])
    with on_device(rows.device):
        _kernel[grid](
            rows, factor, packed, scale, out, count, weights, bytes_, **BLOCKS
        )  # fmt: skip
    return out
