"""Products with int4 weights in Triton, for any number of rows. Import it only where Triton runs.
Not run on a GPU yet.

A byte holds two columns: each half is multiplied with its own columns of x. A group of 32 columns
has a scale and a middle; the values become bfloat16 in registers, so a weight is read once for all
rows of a tile, where tinygemm reads it again for every sixteen.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

from vla_ros.engine.layers.devices import on_device
from vla_ros.engine.layers.kernels.operand_triton import operand
from vla_ros.engine.layers.tiles import Tile


@triton.jit(do_not_specialize=["rows"])
def _product(  # type: ignore[no-untyped-def]
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


def product(
    x: torch.Tensor, values: torch.Tensor, scale: torch.Tensor, group: int, way: Tile
) -> torch.Tensor:
    """x [M, K], ``values`` uint8 [N, K / 2] and ``scale`` [K / ``group``, N, 2] as
    :class:`~..linear.Int4` has them -> [M, N]. ``way.depth``: columns of K at a time."""
    assert x.stride(1) == 1 and values.is_contiguous() and scale.is_contiguous()
    count, bytes_ = values.shape
    assert x.shape[1] == 2 * bytes_
    out = torch.empty(len(x), count, dtype=x.dtype, device=x.device)
    with on_device(x.device):
        _product[(triton.cdiv(len(x), way.rows) * triton.cdiv(count, way.columns),)](
            x, values, scale, out, len(x), count, bytes_, x.stride(0),
            ROWS=way.rows, COLUMNS=way.columns, BYTES=way.depth // 2, GROUP=group,
            OPERAND=operand(x.dtype), num_warps=way.warps, num_stages=way.stages,
        )  # fmt: skip
    return out
