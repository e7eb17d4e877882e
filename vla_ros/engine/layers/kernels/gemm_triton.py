"""Products with few and with many rows in Triton. Import it only where Triton runs. Not run on a
GPU yet.

Sources: Triton's tutorial "Matrix Multiplication" for tiles and their order, pytorch's gpt-fast for
products of one row by plain sums (pytorch.org/blog/accelerating-generative-ai-2). How many rows
there are is no constant of the compiler's: one piece of code serves every length of a prompt.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

from vla_ros.engine.layers.devices import on_device
from vla_ros.engine.layers.kernels.operand_triton import operand
from vla_ros.engine.layers.tiles import Gemv, Way

_ADDED = 1024  # results of a program that adds parts up


@triton.jit(do_not_specialize=["rows"])
def _gemv(  # type: ignore[no-untyped-def]
    x, weight, bias, out, rows, count, width, x_row, weight_row,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    row, column = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    known, inside = row < rows, column < count
    own = weight + column.to(tl.int64)[:, None] * weight_row
    # Added up over threads once, at the end.
    total = tl.zeros((ROWS, COLUMNS, DEPTH), tl.float32)
    for first in range(0, width, DEPTH):
        at = first + tl.arange(0, DEPTH)
        here = (at < width)[None, :]
        # A weight is read once a pass; x again and again, by every program.
        w = tl.load(own + at[None, :], inside[:, None] & here, 0.0, eviction_policy="evict_first")
        v = tl.load(x + row[:, None] * x_row + at[None, :], known[:, None] & here, 0.0)
        total += v.to(tl.float32)[:, None, :] * w.to(tl.float32)[None, :, :]
    made = tl.sum(total, 2)
    if BIAS:
        made += tl.load(bias + column, inside, 0.0).to(tl.float32)[None, :]
    there = known[:, None] & inside[None, :]
    tl.store(out + row[:, None] * count + column[None, :], made.to(out.dtype.element_ty), there)


@triton.jit(do_not_specialize=["rows"])
def _tile(  # type: ignore[no-untyped-def]
    x, weight, bias, gate, added, out, rows, count, width, x_row, weight_row, parts,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SPLIT: tl.constexpr,
    BIAS: tl.constexpr, GATE: tl.constexpr, ADDED: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    # Programs that follow each other share their columns: a weight comes from memory once.
    tile, part, tiles = tl.program_id(0), tl.program_id(1), tl.cdiv(rows, ROWS)
    row = (tile % tiles) * ROWS + tl.arange(0, ROWS)
    column = (tile // tiles) * COLUMNS + tl.arange(0, COLUMNS)
    # Rows and columns behind the end are others read again, and not stored.
    own_x = x + (row % rows)[:, None] * x_row
    own_weight = weight + (column % count).to(tl.int64)[:, None] * weight_row
    each = tl.cdiv(tl.cdiv(width, parts), DEPTH) * DEPTH
    begin = part * each
    end = tl.minimum(begin + each, width)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(begin, end, DEPTH):
        at = first + tl.arange(0, DEPTH)
        here = (at < end)[None, :]
        v = tl.load(own_x + at[None, :], here, 0.0).to(OPERAND)
        w = tl.load(own_weight + at[None, :], here, 0.0).to(OPERAND)
        total = tl.dot(v, tl.trans(w), total, input_precision="ieee")
    there = (row < rows)[:, None] & (column < count)[None, :]
    if SPLIT:  # out [parts, M, N] float32
        row += part * rows
    else:
        if BIAS:
            total += tl.load(bias + column, column < count, 0.0).to(tl.float32)[None, :]
        if GATE:
            total *= tl.load(gate + column, column < count, 0.0).to(tl.float32)[None, :]
        if ADDED:
            place = added + row[:, None] * count + column[None, :]
            total += tl.load(place, there, 0.0).to(tl.float32)
    tl.store(out + row[:, None] * count + column[None, :], total.to(out.dtype.element_ty), there)


@triton.jit
def _add(  # type: ignore[no-untyped-def]
    sums, bias, gate, added, out, results, count, parts,
    BLOCK: tl.constexpr, BIAS: tl.constexpr, GATE: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < results
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(parts):
        total += tl.load(sums + part * results + at, here, 0.0)
    if BIAS:
        total += tl.load(bias + at % count, here, 0.0).to(tl.float32)
    if GATE:
        total *= tl.load(gate + at % count, here, 0.0).to(tl.float32)
    if ADDED:
        total += tl.load(added + at, here, 0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), here)


def product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    way: Way,
    gate: torch.Tensor | None = None,
    added: torch.Tensor | None = None,
) -> torch.Tensor:
    """x [M, K], ``weight`` [N, K], both with K in a row, and ``bias`` [N] -> [M, N], added up in
    float32; of a :class:`Tile` times ``gate`` [N], plus ``added`` [M, N] contiguous."""
    assert x.stride(1) == weight.stride(1) == 1
    (rows, width), count = x.shape, len(weight)
    out = torch.empty(rows, count, dtype=x.dtype, device=x.device)
    given = rows, count, width, x.stride(0), weight.stride(0)
    more = {"BIAS": bias is not None}
    bias = out if bias is None else bias  # a pointer that is not read
    with on_device(x.device):
        if isinstance(way, Gemv):
            assert gate is None and added is None
            _gemv[(triton.cdiv(count, way.columns),)](
                x, weight, bias, out, *given, ROWS=triton.next_power_of_2(rows),
                COLUMNS=way.columns, DEPTH=way.depth, **more, num_warps=way.warps,
                enable_fp_fusion=True,  # one instruction a number, whatever Triton's default
            )  # fmt: skip
            return out
        assert added is None or added.is_contiguous()
        more |= {"GATE": gate is not None, "ADDED": added is not None}
        behind = bias, out if gate is None else gate, out if added is None else added
        split, tiles = way.parts > 1, triton.cdiv(rows, way.rows) * triton.cdiv(count, way.columns)
        sums = out.new_empty(way.parts, rows, count, dtype=torch.float32) if split else out
        _tile[(tiles, way.parts)](
            x, weight, *behind, sums, *given, way.parts, ROWS=way.rows, COLUMNS=way.columns,
            DEPTH=way.depth, SPLIT=split, **more, OPERAND=operand(x.dtype), num_warps=way.warps,
            num_stages=way.stages,
        )  # fmt: skip
        if split:
            _add[(triton.cdiv(out.numel(), _ADDED),)](
                sums, *behind, out, out.numel(), count, way.parts, BLOCK=_ADDED, **more
            )
    return out
