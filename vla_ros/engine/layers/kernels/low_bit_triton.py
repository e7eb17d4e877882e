"""Products with weights of few bits in Triton: int4 and ternary, and rows rounded to e4m3 for
products in fp8. Import it only where Triton runs. Not run on a GPU yet.

The references are in :mod:`~vla_ros.engine.layers.kernels.torch_products`, of ternary ones in
:mod:`vla_ros.engine.layers.ternary`. (Int8 is multiplied by
:func:`~vla_ros.engine.layers.kernels.layer_triton.product`.)
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

from vla_ros.engine.layers.devices import on_device
from vla_ros.engine.layers.kernels.layer_triton import operand
from vla_ros.engine.layers.tiles import Tile

TERNARY_BLOCKS = {"ROWS": 64, "WEIGHTS": 64, "BYTES": 64}


@triton.jit(do_not_specialize=["rows"])
def _int4(  # type: ignore[no-untyped-def]
    x, values, scale, out, rows, count, bytes_, x_row,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BYTES: tl.constexpr, GROUP: tl.constexpr,
    OPERAND: tl.constexpr,
):  # fmt: skip
    # Programs that follow each other share their columns: a weight comes from memory once.
    tile, tiles = tl.program_id(0), tl.cdiv(rows, ROWS)
    row = (tile % tiles) * ROWS + tl.arange(0, ROWS)
    column = (tile // tiles) * COLUMNS + tl.arange(0, COLUMNS)
    near = column % count
    own_x = x + (row % rows)[:, None] * x_row
    own = values + near.to(tl.int64)[None, :] * bytes_
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, bytes_, BYTES):
        byte = first + tl.arange(0, BYTES)
        here = byte < bytes_
        pair = tl.load(own + byte[:, None], here[:, None], 0x88)
        group = scale + ((2 * byte // GROUP)[:, None] * count + near[None, :]) * 2
        step = tl.load(group, here[:, None], 0.0).to(tl.float32)
        middle = tl.load(group + 1, here[:, None], 0.0).to(tl.float32)
        low = ((pair & 15).to(tl.float32) - 8.0) * step + middle
        high = ((pair >> 4).to(tl.float32) - 8.0) * step + middle
        even = tl.load(own_x + 2 * byte[None, :], here[None, :], 0.0).to(OPERAND)
        odd = tl.load(own_x + 2 * byte[None, :] + 1, here[None, :], 0.0).to(OPERAND)
        total = tl.dot(even, low.to(tl.bfloat16).to(OPERAND), total, input_precision="ieee")
        total = tl.dot(odd, high.to(tl.bfloat16).to(OPERAND), total, input_precision="ieee")
    there = (row < rows)[:, None] & (column < count)[None, :]
    tl.store(out + row[:, None] * count + column[None, :], total.to(out.dtype.element_ty), there)


def int4_product(
    x: torch.Tensor, values: torch.Tensor, scale: torch.Tensor, group: int, way: Tile
) -> torch.Tensor:
    """x [M, K], ``values`` uint8 [N, K / 2] and ``scale`` [K / ``group``, N, 2] as
    :class:`~vla_ros.engine.layers.int4.Int4` has them -> [M, N]. ``way.depth``: columns of K at a
    time.

    A byte holds two columns: each half is multiplied with its own columns of x. The values become
    bfloat16 in registers, so a weight is read once for all rows of a tile, where tinygemm reads it
    again for every sixteen.
    """
    assert x.stride(1) == 1 and values.is_contiguous() and scale.is_contiguous()
    count, bytes_ = values.shape
    assert x.shape[1] == 2 * bytes_
    out = torch.empty(len(x), count, dtype=x.dtype, device=x.device)
    with on_device(x.device):
        _int4[(triton.cdiv(len(x), way.rows) * triton.cdiv(count, way.columns),)](
            x, values, scale, out, len(x), count, bytes_, x.stride(0),
            ROWS=way.rows, COLUMNS=way.columns, BYTES=way.depth // 2, GROUP=group,
            OPERAND=operand(x.dtype), num_warps=way.warps, num_stages=way.stages,
        )  # fmt: skip
    return out


@triton.jit
def _round_rows(x, values, factor, width, x_row, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
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
    """x [M, K] with K in a row -> e4m3 [M, K] and the factor of each row [M]: as the reference,
    whose eight kernels this is. A program takes a row: its largest value becomes 448."""
    assert x.stride(1) == 1
    count, width = x.shape
    values = torch.empty(count, width, dtype=torch.float8_e4m3fn, device=x.device)
    factor = torch.empty(count, dtype=torch.float32, device=x.device)
    with on_device(x.device):
        _round_rows[(count,)](
            x, values, factor, width, x.stride(0),
            BLOCK=triton.next_power_of_2(width), num_warps=8 if width > 1024 else 4,
        )  # fmt: skip
    return values, factor


@triton.jit
def _ternary(  # type: ignore[no-untyped-def]
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


def ternary_product(
    rows: torch.Tensor,
    factor: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """As the reference in :mod:`~vla_ros.engine.layers.ternary`; all contiguous.

    A program makes a tile [rows, weights] of the result. It loads a tile of packed bytes once and
    multiplies each of its four planes with the columns that it belongs to: int8 times int8 into
    int32, scaled in float32, rounded once.
    """
    count, (weights, bytes_) = len(rows), packed.shape
    assert rows.shape[1] == 4 * bytes_  # ternary.PLANES
    out = torch.empty(count, weights, dtype=dtype, device=rows.device)
    grid = (
        triton.cdiv(count, TERNARY_BLOCKS["ROWS"]),
        triton.cdiv(weights, TERNARY_BLOCKS["WEIGHTS"]),
    )
    with on_device(rows.device):
        _ternary[grid](
            rows, factor, packed, scale, out, count, weights, bytes_, **TERNARY_BLOCKS
        )  # fmt: skip
    return out
