"""Rows rounded to e4m3 in Triton, for products in fp8. Import it only where Triton runs. Not run on
a GPU yet.

A program takes a row: its largest value becomes 448, as in :func:`~..linear.rounded_rows`, whose
eight kernels this is.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

from vla_ros.engine.layers.devices import on_device


@triton.jit
def _round(x, values, factor, width, x_row, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, lanes = tl.program_id(0), tl.arange(0, BLOCK)
    here = lanes < width
    exact = tl.load(x + row * x_row + lanes, here, 0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(exact), 0) / 448.0, 1e-30)
    small = tl.minimum(tl.maximum(exact / scale, -448.0), 448.0)
    tl.store(values + row * width + lanes, small.to(tl.float8e4nv), here)
    # A largest value knows nothing of what is no number, and the row must be none either.
    damaged = tl.max((exact != exact).to(tl.int32), 0) > 0
    tl.store(factor + row, tl.where(damaged, float("nan"), scale))


def rounded_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference: x [M, K] with K in a row -> e4m3 [M, K] and the factor of each row [M]."""
    assert x.stride(1) == 1
    count, width = x.shape
    values = torch.empty(count, width, dtype=torch.float8_e4m3fn, device=x.device)
    factor = torch.empty(count, dtype=torch.float32, device=x.device)
    with on_device(x.device):
        _round[(count,)](
            x, values, factor, width, x.stride(0),
            BLOCK=triton.next_power_of_2(width), num_warps=8 if width > 1024 else 4,
        )  # fmt: skip
    return values, factor
