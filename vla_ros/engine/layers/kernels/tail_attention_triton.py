"""The tail's attention in Triton. Import it only where Triton runs. Not run on a GPU yet.

As Flash-Decoding does it (pytorch.org/blog/flash-decoding): a program takes some tokens of one
slot, the query heads that share one K and V head, and one part of the entries; a second kernel puts
the parts together. So a tail of one token fills a GPU, K and V are read once for all heads and
tokens that share them, and no entry is read that no token sees. Lengths and bits are read on the
device: one graph serves every place and tree.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

from vla_ros.engine.layers.devices import on_device
from vla_ros.engine.layers.kernels.layer_triton import operand
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.pack import Plan

_ROWS = 16  # of a block of queries at least: what a tensor core takes
_MOST = 64  # and at most, where a slot has many tokens
_BLOCK = 16384  # bytes of a block of keys: two stages of K and V fit a small GPU's 99 KiB
_PROGRAMS = 264  # wanted: two for each multiprocessor of an H100 or H200
_PARTS = 16  # at most


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    q, keys, values, slot, sees, sums, weights, scale,
    q_token, q_head, slot_stride, head_stride, entry_stride,
    tail, entries, parts, words,
    KV: tl.constexpr, GROUP: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
    DIM: tl.constexpr, ENTRIES: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    tile, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, dims = tl.arange(0, ROWS), tl.arange(0, DIM)
    token, head = tile * TOKENS + row // GROUP, kv_head * GROUP + row % GROUP
    here = (row < TOKENS * GROUP) & (token < tail)
    place = q + token[:, None] * q_token + head[:, None] * q_head + dims[None, :]
    query = tl.load(place, here[:, None], 0.0).to(OPERAND)
    mine = sees + token * (3 + words)
    length, reach = tl.load(mine, here, 0), tl.load(mine + 1, here, 0)
    base, furthest = tl.load(mine + 2, here, 0), tl.minimum(tl.max(reach, 0), entries)
    # This part's entries, in whole blocks.
    each = tl.cdiv(tl.cdiv(furthest, parts), ENTRIES) * ENTRIES
    begin = part * each
    end = tl.minimum(begin + each, furthest)
    start = tl.load(slot + tile * TOKENS) * slot_stride + kv_head * head_stride
    most = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, DIM), tl.float32)
    for first in range(begin, end, ENTRIES):
        entry = first + tl.arange(0, ENTRIES)
        there = start + entry[:, None] * entry_stride + dims[None, :]
        inside = entry < end
        key = tl.load(keys + there, inside[:, None], 0.0).to(OPERAND)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        bit = entry[None, :] - base[:, None]
        known = here[:, None] & (bit >= 0) & (bit < 64 * words) & (entry[None, :] < reach[:, None])
        word = tl.load(mine[:, None] + 3 + bit // 64, known, 0)
        told = known & ((word >> (bit % 64)) & 1 != 0)
        visible = ((entry[None, :] < length[:, None]) | told) & inside[None, :]
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        safe = tl.where(higher == float("-inf"), 0.0, higher)  # nothing was seen so far
        shares = tl.exp(scores - safe[:, None])
        shrink = tl.exp(most - safe)
        total = total * shrink + tl.sum(shares, 1)
        value = tl.load(values + there, inside[:, None], 0.0).to(OPERAND)
        fresh = tl.dot(shares.to(OPERAND), value, input_precision="ieee")
        out = out * shrink[:, None] + fresh
        most = higher
    # sums [parts, tail, H, D], not divided yet; weights [parts, tail, H, 2]
    where = (part * tail + token) * (KV * GROUP) + head
    tl.store(sums + where[:, None] * DIM + dims[None, :], out, here[:, None])
    tl.store(weights + where * 2, most, here)
    tl.store(weights + where * 2 + 1, total, here)


@triton.jit
def _together(  # type: ignore[no-untyped-def]
    sums, weights, out, places, PARTS: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr
):
    place, part, dims = tl.program_id(0), tl.arange(0, PADDED), tl.arange(0, DIM)
    here = part < PARTS
    where = part * places + place
    most = tl.load(weights + where * 2, here, float("-inf"))
    shrink = tl.exp(most - tl.max(most, 0))
    total = tl.sum(tl.load(weights + where * 2 + 1, here, 0.0) * shrink, 0)
    parts = tl.load(sums + where[:, None] * DIM + dims[None, :], here[:, None], 0.0)
    made = tl.sum(parts * shrink[:, None], 0) / total
    tl.store(out + place * DIM + dims, made.to(out.dtype.element_ty))


class TritonTail:
    """Attention of a pack's tail, as :class:`~vla_ros.engine.layers.attention.TorchTail`.

    ``parts``: of the entries; None: enough of them to fill a GPU.
    """

    def __init__(self, kv_cache: KVCache, plan: Plan, parts: int | None = None) -> None:
        self._kv_cache, self._plan, self._parts = kv_cache, plan, parts
        self._slot = plan.slot[plan.shape.prefill :]

    def __call__(self, layer: int, q: torch.Tensor, scale: float) -> torch.Tensor:
        kv_cache, plan = self._kv_cache, self._plan
        keys, values, (tail, heads, dim) = kv_cache.keys[layer], kv_cache.values[layer], q.shape
        slots, kv, entries, _ = keys.shape
        group = heads // kv
        # In a KV cache of several slots a block of tokens may lie across two of them.
        tokens = max(min(tail, _MOST // group), 1) if slots == 1 else 1
        tiles = -(-tail // tokens)
        block = max(min(_BLOCK // (dim * q.element_size()), 64), 16)
        parts = self._parts or min(-(-_PROGRAMS // (tiles * kv)), -(-entries // block), _PARTS)
        sums = torch.empty(parts, tail, heads, dim, dtype=torch.float32, device=q.device)
        weights = torch.empty(parts, tail, heads, 2, dtype=torch.float32, device=q.device)
        out = torch.empty(tail, heads, dim, dtype=q.dtype, device=q.device)
        assert q.stride(2) == 1
        with on_device(q.device):
            _attend[(tiles, kv, parts)](
                q, keys, values, self._slot, plan.sees, sums, weights, scale,
                q.stride(0), q.stride(1), keys.stride(0), keys.stride(1), keys.stride(2),
                tail, entries, parts, plan.shape.words,
                KV=kv, GROUP=group, TOKENS=tokens,
                ROWS=max(triton.next_power_of_2(tokens * group), _ROWS), DIM=dim,
                ENTRIES=block, OPERAND=operand(q.dtype), num_stages=2,
            )  # fmt: skip
            _together[(tail * heads,)](
                sums, weights, out, tail * heads,
                PARTS=parts, PADDED=triton.next_power_of_2(parts), DIM=dim,
            )  # fmt: skip
        return out
