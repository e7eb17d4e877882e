"""One variable-length attention call for prefill and tail together, slots being pages.

Uses flash-attn where it is installed, else torch's own ``varlen_attn``; both want CUDA and fp16
or bf16. :func:`varlen_reference` is the same call in plain torch: what tests compare with, and
what runs elsewhere. Draft trees do not fit (every query must see a prefix of its slot); their
packs have no :class:`~vla_ros.engine.packed.pack.Varlen` and take the masked path.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch

from vla_ros.engine.packed.attention import PackedAttention, RopeWrite
from vla_ros.engine.packed.pack import Plan, Varlen
from vla_ros.engine.packed.ring import Ring

PAGE = 256  # flash-attn wants pages of a multiple of this many entries

VarlenCall = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Varlen, float, bool], torch.Tensor]


class VarlenAttention(PackedAttention):
    """Reads all K/V from the ring, the fresh ones too."""

    def __init__(
        self, ring: Ring, plan: Plan, call: VarlenCall, rope_write: RopeWrite | None = None
    ) -> None:
        super().__init__(ring, plan, rope_write)
        self._call = call

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        plan = self._plan
        if plan.varlen is None:
            return super().attend(layer, q, k, v, scale)
        keys = self._ring.keys[layer].transpose(1, 2)  # [slots, S, Hkv, D]: pages
        values = self._ring.values[layer].transpose(1, 2)
        return self._call(q, keys, values, plan.varlen, scale, plan.shape.causal)


def choose_varlen(device: torch.device, dtype: torch.dtype) -> VarlenCall:
    """The fastest call that runs here."""
    if device.type != "cuda" or dtype == torch.float32:
        return varlen_reference
    return varlen_flash if importlib.util.find_spec("flash_attn") else varlen_torch


def varlen_torch(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    varlen: Varlen,
    scale: float,
    causal: bool,
) -> torch.Tensor:
    """torch.nn.attention.varlen (torch 2.13 or newer)."""
    from torch.nn.attention.varlen import varlen_attn

    out = varlen_attn(
        q.contiguous(), keys, values, varlen.starts, None, varlen.longest_query,
        varlen.longest_key, scale=scale, window_size=(-1, 0 if causal else -1),
        enable_gqa=q.shape[1] != keys.shape[2], seqused_k=varlen.used, block_table=varlen.pages,
    )  # fmt: skip
    assert isinstance(out, torch.Tensor)
    return out


def varlen_flash(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    varlen: Varlen,
    scale: float,
    causal: bool,
) -> torch.Tensor:
    """flash_attn_varlen_func; grouped queries are its own business."""
    from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]

    ends = torch.nn.functional.pad(varlen.used.cumsum(0, dtype=torch.int32), (1, 0))
    out: torch.Tensor = flash_attn_varlen_func(
        q.contiguous(), keys, values, varlen.starts, ends, varlen.longest_query,
        varlen.longest_key, softmax_scale=scale, causal=causal, block_table=varlen.pages,
    )  # fmt: skip
    return out


def varlen_reference(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    varlen: Varlen,
    scale: float,
    causal: bool,
) -> torch.Tensor:
    """q [T, H, D], pages [slots, S, Hkv, D] -> [T, H, D], a sequence at a time."""
    out = torch.empty_like(q)
    starts, used, pages = (x.tolist() for x in (varlen.starts, varlen.used, varlen.pages[:, 0]))
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
