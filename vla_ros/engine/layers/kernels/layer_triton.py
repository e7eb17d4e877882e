"""The steps of a layer of flow policies as one Triton kernel each: norm, Q K V and RoPE; norm, gate
times up; attention. Import it only where Triton runs. Not run on a GPU yet.

Their references are in :mod:`vla_ros.engine.models.transformer`. A layer has the few rows of a
chunk, whose products wait for the weights: what torch does around them in kernels of their own
costs more than the numbers it touches. A norm without a weight is a factor of each row, so the
products are made of the rows as they are, and their sums are multiplied with it. Sums are float32
and are rounded once. The residual is :func:`~.gemm_triton.product`'s.

Sources: realtime-vla (arXiv 2510.26742) for what goes together, Triton's tutorial "Fused
Attention".
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

from vla_ros.engine.layers.devices import on_device
from vla_ros.engine.layers.kernels.operand_triton import operand
from vla_ros.engine.layers.tiles import Tile, Way


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
