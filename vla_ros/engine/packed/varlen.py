"""One variable-length attention call for prefill and tail together, slots being pages.

Uses flash-attn where it is installed, else torch's own ``varlen_attn``; both want CUDA and fp16
or bf16. :func:`varlen_reference` is the same call in plain torch: what tests compare with, and
what runs elsewhere. Draft trees do not fit: every query must see a prefix of its slot.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from vla_ros.engine.packed.attention import PackedAttention, RopeWrite
from vla_ros.engine.packed.pack import Plan
from vla_ros.engine.packed.ring import Ring

PAGE = 256  # flash-attn wants pages of a multiple of this many entries


class Sequences(NamedTuple):
    """A pack as the calls want it: N sequences, int32.

    ``starts`` [N + 1] of the queries; ``used`` [N] entries that each sequence looks at, ``ends``
    [N + 1] their running sum; ``pages`` [N, 1] its slot; the longest of each kind.
    """

    starts: torch.Tensor
    used: torch.Tensor
    ends: torch.Tensor
    pages: torch.Tensor
    longest_query: int
    longest_key: int


VarlenCall = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, Sequences, float, bool], torch.Tensor
]


def as_sequences(plan: Plan) -> Sequences:
    """On the plan's device; the longest ones are fixed by its shape, as a graph needs it."""
    shape, (slot, queries, seen) = plan.shape, plan.sequences.int().unbind(1)
    starts, ends = (F.pad(x.cumsum(0, dtype=torch.int32), (1, 0)) for x in (queries, seen))
    longest = max(shape.prefill, shape.width), max(shape.prefill, shape.span)
    return Sequences(starts, seen, ends, slot[:, None], *longest)


class VarlenAttention(PackedAttention):
    """Reads all K/V from the ring, the fresh ones too."""

    def __init__(
        self, ring: Ring, plan: Plan, call: VarlenCall, rope_write: RopeWrite | None = None
    ) -> None:
        super().__init__(ring, plan, rope_write)
        self._call, self._sequences = call, as_sequences(plan)

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        keys = self._ring.keys[layer].transpose(1, 2)  # [slots, S, Hkv, D]: pages
        values = self._ring.values[layer].transpose(1, 2)
        return self._call(q, keys, values, self._sequences, scale, self._plan.shape.causal)


def choose_varlen(device: torch.device, dtype: torch.dtype) -> VarlenCall:
    """The fastest call that runs here."""
    if device.type != "cuda" or dtype == torch.float32:
        return varlen_reference
    return varlen_flash if importlib.util.find_spec("flash_attn") else varlen_torch


def varlen_torch(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    sequences: Sequences,
    scale: float,
    causal: bool,
) -> torch.Tensor:
    """torch.nn.attention.varlen (torch 2.13 or newer)."""
    from torch.nn.attention.varlen import varlen_attn

    out = varlen_attn(
        q.contiguous(), keys, values, sequences.starts, None, sequences.longest_query,
        sequences.longest_key, scale=scale, window_size=(-1, 0 if causal else -1),
        enable_gqa=q.shape[1] != keys.shape[2], seqused_k=sequences.used,
        block_table=sequences.pages,
    )  # fmt: skip
    assert isinstance(out, torch.Tensor)
    return out


def varlen_flash(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    sequences: Sequences,
    scale: float,
    causal: bool,
) -> torch.Tensor:
    """flash_attn_varlen_func; grouped queries are its own business."""
    from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]

    out: torch.Tensor = flash_attn_varlen_func(
        q.contiguous(), keys, values, sequences.starts, sequences.ends, sequences.longest_query,
        sequences.longest_key, softmax_scale=scale, causal=causal, block_table=sequences.pages,
    )  # fmt: skip
    return out


def varlen_reference(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    sequences: Sequences,
    scale: float,
    causal: bool,
) -> torch.Tensor:
    """q [T, H, D], pages [slots, S, Hkv, D] -> [T, H, D], a sequence at a time."""
    out = torch.empty_like(q)
    starts, used = sequences.starts.tolist(), sequences.used.tolist()
    pages = sequences.pages[:, 0].tolist()
    group = q.shape[1] // keys.shape[2]
    for number, (page, count) in enumerate(zip(pages, used, strict=True)):
        begin, end = starts[number], starts[number + 1]
        k = keys[page, :count].repeat_interleave(group, dim=1)
        v = values[page, :count].repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[begin:end], k).float() * scale
        if causal:  # aligned at the end: the last query sees everything
            seen = torch.ones(end - begin, count, dtype=torch.bool, device=q.device)
            scores.masked_fill_(~seen.tril(count - (end - begin)), float("-inf"))
        out[begin:end] = torch.einsum("hqk,khd->qhd", scores.softmax(-1).to(q.dtype), v)
    return out
