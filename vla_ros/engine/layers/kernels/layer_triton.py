"""Products with few and with many rows in Triton, and the steps of a layer as one kernel each:
norm, Q K V and RoPE; norm, gate times up; attention; product and residual. Import it only where
Triton runs. Not run on a GPU yet.

The references are torch's product and the steps of :mod:`vla_ros.engine.models.transformer`. A
layer of a flow policy has the few rows of a chunk, whose products wait for the weights: what torch
does around them in kernels of their own costs more than the numbers it touches. A norm without a
weight is a factor of each row, so the products are made of the rows as they are, and their sums are
multiplied with it. Sums are float32 and are rounded once. How many rows there are is no constant of
the compiler's: one piece of code serves every length of a prompt.

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
from vla_ros.engine.layers.tiles import Gemv, Tile, Way

_ADDED = 1024  # results of a program that adds parts up


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
        TURNED=True, QUERY=query, KV=kv, WRITE=into is not None, GELU=False,
    )  # fmt: skip
    return out


def norm_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None,
    eps: float, way: Way,
) -> torch.Tensor:  # fmt: skip
    """x [n, C], ``weight`` [N, C] with N even -> [n, N] of the normed rows times ``scale`` [C]."""
    out = x.new_empty(len(x), len(weight))
    _run_paired(
        x, weight, bias, scale, out, eps, len(weight) // 2, way, cos=out, sin=out, keys=out,
        values=out, head_stride=0, entry_stride=0, TURNED=True, QUERY=0, KV=0, WRITE=False,
        GELU=False,
    )  # fmt: skip
    return out


def norm_gate_up(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None,
    eps: float, gelu: bool, way: Way,
) -> torch.Tensor:  # fmt: skip
    """x [n, C], ``weight`` [2 M, C], gate before up -> act(gate) up [n, M]: SiLU or GELU."""
    middle = len(weight) // 2
    out = x.new_empty(len(x), middle)
    _run_paired(
        x, weight, bias, scale, out, eps, middle, way, cos=out, sin=out, keys=out, values=out,
        head_stride=0, entry_stride=0, TURNED=False, QUERY=0, KV=0, WRITE=False, GELU=gelu,
    )  # fmt: skip
    return out


def _run_paired(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None,
    out: torch.Tensor, eps: float, half: int, way: Way, **more: Any,
) -> None:  # fmt: skip
    assert isinstance(way, Tile) and x.stride(1) == 1
    assert weight.is_contiguous() and len(weight) % 2 == 0
    rows, width, pairs = len(x), x.shape[1], len(weight) // 2
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
