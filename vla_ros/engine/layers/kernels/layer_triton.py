"""Triton kernels of a layer: products, its steps as one kernel each, what lies between products.
Import it only where Triton runs. Not run on a GPU yet. A pack's tail has a file of its own.

Products: plain ones of few and of many rows, int8's among them, int4, ternary, and rows rounded to
e4m3. Steps: norm, Q K V and RoPE; norm, gate times up; attention; product and residual. Between:
add + RMSNorm, SiLU times up, RoPE and KV write. The references are torch's:
:mod:`vla_ros.engine.models.transformer` of the steps,
:mod:`~vla_ros.engine.layers.kernels.torch_products` and :mod:`vla_ros.engine.layers.ternary` of
products, :mod:`~vla_ros.engine.layers.kernels.fused` of what lies between. Sums are float32 and are
rounded once.

A layer of a flow policy has the few rows of a chunk, whose products wait for the weights: what
torch does around them in kernels of their own costs more than the numbers it touches. A norm
without a weight is a factor of each row, so the products are made of the rows as they are, and
their sums are multiplied with it. How many rows there are is no constant of the compiler's: one
piece of code serves every length of a prompt.

Sources: Triton's tutorials "Matrix Multiplication" for tiles and their order, "Fused Attention",
pytorch's gpt-fast for products of one row by plain sums
(pytorch.org/blog/accelerating-generative-ai-2), realtime-vla (arXiv 2510.26742) for what goes
together.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

from vla_ros.engine.layers.devices import on_device
from vla_ros.engine.layers.kernels.fused import AddNorm, Heads, Pair, Rotated
from vla_ros.engine.layers.tiles import Gemv, Tile, Way

_ADDED = 1024  # results of a program that adds parts up
_BLOCK = 1024  # of silu_mul: columns a program
#: of :func:`_paired`: nothing is rotated or written elsewhere, and SiLU
_NO_HEADS = {"head_stride": 0, "entry_stride": 0, "TURNED": False, "QUERY": 0, "KV": 0,
             "WRITE": False, "GELU": False}  # fmt: skip
TERNARY_BLOCKS = {"ROWS": 64, "WEIGHTS": 64, "BYTES": 64}


def operand(dtype: torch.dtype) -> tl.dtype:
    """What blocks are multiplied in: the type of a model, or float32 in the interpreter, which has
    no products in bfloat16."""
    if dtype == torch.float32 or os.environ.get("TRITON_INTERPRET") == "1":
        return tl.float32
    return tl.bfloat16 if dtype == torch.bfloat16 else tl.float16


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
    """Ternary product, as the reference in :mod:`~vla_ros.engine.layers.ternary`; all contiguous.

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


@triton.jit(do_not_specialize=["rows"])
def _paired(  # type: ignore[no-untyped-def]
    x, weight, scale, bias, out, cos, sin, keys, values,
    rows, pairs, width, half, x_row, eps, head_stride, entry_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, OPERAND: tl.constexpr,
    SCALE: tl.constexpr, BIAS: tl.constexpr, TURNED: tl.constexpr, QUERY: tl.constexpr,
    KV: tl.constexpr, WRITE: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    # Programs that follow each other share their columns: a weight comes from memory once.
    tile, tiles = tl.program_id(0), tl.cdiv(rows, ROWS)
    row = (tile % tiles) * ROWS + tl.arange(0, ROWS)
    pair = (tile // tiles) * COLUMNS + tl.arange(0, COLUMNS)
    # Rows and columns behind the end are others read again, and not stored.
    near = (pair % pairs) // half * (2 * half) + (pair % pairs) % half
    own_x = x + (row % rows)[:, None] * x_row
    own = weight + near.to(tl.int64)[:, None] * width
    first = tl.zeros((ROWS, COLUMNS), tl.float32)
    second = tl.zeros((ROWS, COLUMNS), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    for begin in range(0, width, DEPTH):
        at = begin + tl.arange(0, DEPTH)
        here = (at < width)[None, :]
        v = tl.load(own_x + at[None, :], here, 0.0)
        exact = v.to(tl.float32)
        squares += tl.sum(exact * exact, 1)
        if SCALE:
            v = (exact * tl.load(scale + at, at < width, 0.0).to(tl.float32)[None, :]).to(v.dtype)
        v = v.to(OPERAND)
        w = tl.load(own + at[None, :], here, 0.0).to(OPERAND)
        first = tl.dot(v, tl.trans(w), first, input_precision="ieee")
        w = tl.load(own + half * width + at[None, :], here, 0.0).to(OPERAND)
        second = tl.dot(v, tl.trans(w), second, input_precision="ieee")
    factor = tl.rsqrt(squares / width + eps)[:, None]
    first, second = first * factor, second * factor
    if BIAS:
        first += tl.load(bias + near).to(tl.float32)[None, :]
        second += tl.load(bias + near + half).to(tl.float32)[None, :]
    there = (row < rows)[:, None] & (pair < pairs)[None, :]
    if TURNED:  # K and Q by their positions, into heads beside each other; K and V also elsewhere
        head, lane = (pair // half)[None, :], (pair % half)[None, :]
        angle = row[:, None] * (2 * half) + lane
        turns = there & (head < QUERY + KV)
        c, s = tl.load(cos + angle, turns, 1.0), tl.load(sin + angle, turns, 0.0)
        first, second = first * c - second * s, second * c + first * s
        first, second = first.to(out.dtype.element_ty), second.to(out.dtype.element_ty)
        place = out + row[:, None] * (2 * pairs) + near[None, :]
        tl.store(place, first, there)
        tl.store(place + half, second, there)
        if WRITE:
            number = head - QUERY
            entry = row[:, None] * entry_stride + lane
            place = keys + number * head_stride + entry
            tl.store(place, first, turns & (number >= 0))
            tl.store(place + half, second, turns & (number >= 0))
            place = values + (number - KV) * head_stride + entry
            tl.store(place, first, there & (number >= KV))
            tl.store(place + half, second, there & (number >= KV))
    else:
        if GELU:  # tanh(z) is 2 sigmoid(2 z) - 1
            inner = 0.7978845608028654 * (first + 0.044715 * first * first * first)
            act = first / (1.0 + tl.exp(-2.0 * inner))
        else:
            act = first / (1.0 + tl.exp(-first))
        made = (act * second).to(out.dtype.element_ty)
        tl.store(out + row[:, None] * pairs + pair[None, :], made, there)


@triton.jit(do_not_specialize=["tokens", "entries"])
def _attend(  # type: ignore[no-untyped-def]
    q, keys, values, mask, out, scale, tokens, entries,
    q_head, q_token, key_head, key_entry, value_head, value_entry, mask_row,
    GROUP: tl.constexpr, SIZE: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr,
    ENTRIES: tl.constexpr, MASK: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    kv_head, dims = tl.program_id(1), tl.arange(0, DIM)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token, head = row // GROUP, kv_head * GROUP + row % GROUP
    here, real = (token < tokens)[:, None], (dims < SIZE)[None, :]
    place = q + head[:, None] * q_head + token[:, None] * q_token + dims[None, :]
    query = tl.load(place, here & real, 0.0).to(OPERAND)
    most = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    made = tl.zeros((ROWS, DIM), tl.float32)
    for begin in range(0, entries, ENTRIES):
        entry = begin + tl.arange(0, ENTRIES)
        inside = entry < entries
        both = inside[:, None] & real
        at = keys + kv_head * key_head + entry[:, None] * key_entry + dims[None, :]
        key = tl.load(at, both, 0.0).to(OPERAND)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if MASK:
            hidden = mask + token[:, None] * mask_row + entry[None, :]
            scores += tl.load(hidden, here & inside[None, :], 0.0).to(tl.float32)
        scores = tl.where(inside[None, :], scores, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen so far
        kept, weights = tl.exp(most - base), tl.exp(scores - base[:, None])
        most = higher
        total = total * kept + tl.sum(weights, 1)
        at = values + kv_head * value_head + entry[:, None] * value_entry + dims[None, :]
        value = tl.load(at, both, 0.0).to(OPERAND)
        made = made * kept[:, None]
        made = tl.dot(weights.to(OPERAND), value, made, input_precision="ieee")
    made = made / total[:, None]
    heads = tl.num_programs(1) * GROUP
    place = out + (token[:, None] * heads + head[:, None]) * SIZE + dims[None, :]
    tl.store(place, made.to(out.dtype.element_ty), here & real)


def norm_qkv_rope(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None,
    eps: float, heads: tuple[int, int], cos: torch.Tensor, sin: torch.Tensor,
    into: tuple[torch.Tensor, torch.Tensor] | None, way: Way,
) -> torch.Tensor:  # fmt: skip
    """x [n, C], ``weight`` [(H + 2 G) d, C] (or without K and V), ``scale`` [C] of the normed rows,
    ``bias`` behind -> [n, H + 2 G, d], Q and K rotated by cos and sin [n, d] float32; K and V also
    to ``into``, two [G, n, d] that lie alike. ``heads``: H, G."""
    query, kv = heads
    total = query + 2 * kv
    half = len(weight) // total // 2
    out = x.new_empty(len(x), total, 2 * half)
    keys, values = (out, out) if into is None else into
    assert into is None or keys.stride() == values.stride()
    assert cos.stride() == sin.stride() == (2 * half, 1)
    _run_paired(
        x, weight, bias, scale, out, eps, half, way, cos=cos, sin=sin, keys=keys, values=values,
        head_stride=0 if into is None else keys.stride(0),
        entry_stride=0 if into is None else keys.stride(1),
        TURNED=True, QUERY=query, KV=kv, WRITE=into is not None,
    )  # fmt: skip
    return out


def norm_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None,
    eps: float, way: Way,
) -> torch.Tensor:  # fmt: skip
    """x [n, C], ``weight`` [N, C] with N even -> [n, N] of the normed rows times ``scale`` [C]."""
    out = x.new_empty(len(x), len(weight))
    _run_paired(x, weight, bias, scale, out, eps, len(weight) // 2, way, TURNED=True)
    return out


def norm_gate_up(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None,
    eps: float, gelu: bool, way: Way,
) -> torch.Tensor:  # fmt: skip
    """x [n, C], ``weight`` [2 M, C], gate before up -> act(gate) up [n, M]: SiLU or GELU."""
    middle = len(weight) // 2
    out = x.new_empty(len(x), middle)
    _run_paired(x, weight, bias, scale, out, eps, middle, way, GELU=gelu)
    return out


def _run_paired(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None,
    out: torch.Tensor, eps: float, half: int, way: Way, **more: Any,
) -> None:  # fmt: skip
    assert isinstance(way, Tile) and x.stride(1) == 1
    assert weight.is_contiguous() and len(weight) % 2 == 0
    rows, width, pairs = len(x), x.shape[1], len(weight) // 2
    more = dict.fromkeys(("cos", "sin", "keys", "values"), out) | _NO_HEADS | more
    with on_device(x.device):
        _paired[(triton.cdiv(rows, way.rows) * triton.cdiv(pairs, way.columns),)](
            x, weight, x if scale is None else scale, x if bias is None else bias, out,
            rows=rows, pairs=pairs, width=width, half=half, x_row=x.stride(0), eps=eps,
            ROWS=way.rows, COLUMNS=way.columns, DEPTH=way.depth, OPERAND=operand(x.dtype),
            SCALE=scale is not None, BIAS=bias is not None, num_warps=way.warps,
            num_stages=way.stages, **more,
        )  # fmt: skip


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, way: Way
) -> torch.Tensor:
    """q [H, m, d] (scaled), k and v [G, S, d], mask [m or 1, S] added to the scores -> [m, H d]."""
    assert isinstance(way, Tile) and q.stride(2) == k.stride(2) == v.stride(2) == 1
    (heads, tokens, size), (kv, entries, _) = q.shape, k.shape
    group = heads // kv
    out = q.new_empty(tokens, heads * size)
    assert mask is None or mask.stride(1) == 1
    mask_row = 0 if mask is None or len(mask) == 1 else mask.stride(0)
    with on_device(q.device):
        _attend[(triton.cdiv(tokens * group, way.rows), kv)](
            q, k, v, q if mask is None else mask, out, 1.0, tokens, entries,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), mask_row,
            GROUP=group, SIZE=size, DIM=max(triton.next_power_of_2(size), 16), ROWS=way.rows,
            ENTRIES=way.columns, MASK=mask is not None, OPERAND=operand(q.dtype),
            num_warps=way.warps, num_stages=way.stages,
        )  # fmt: skip
    return out


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
    """Sum and RMS norm, as the reference; x and ``added`` contiguous."""
    count, width = x.shape
    total, normed = torch.empty_like(x), torch.empty_like(x)
    with on_device(x.device):
        _add_norm[(count,)](
            x, added, weight, total, normed, width, eps,
            BLOCK=triton.next_power_of_2(width), num_warps=8,
        )  # fmt: skip
    return total, normed


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """SiLU(gate) * up, as the reference; contiguous."""
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
    """RoPE and the write of K and V, as the reference; ``qkv`` [T, H + 2 Hkv, D], contiguous, is
    overwritten.

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
