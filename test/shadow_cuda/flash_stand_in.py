"""flash-attn's two functions in plain torch, with the released ones' arguments and refusals (2.8.3:
``flash_attn_interface.py``, ``csrc/flash_attn/flash_api.cpp``); what we never give is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

CALLS: Counter[str] = Counter()


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, unused: dict[str, Any]) -> None:
    refused = {
        "FlashAttention only support fp16 and bf16 data type":
            q.dtype not in (torch.float16, torch.bfloat16),
        "query and key must have the same dtype": not q.dtype == k.dtype == v.dtype,
        "must be on CUDA": not (q.is_cuda and k.is_cuda and v.is_cuda),
        "Input tensor must have contiguous last dimension":
            any(x.stride(-1) != 1 for x in (q, k, v)),
        "FlashAttention forward only supports head dimension at most 256": q.shape[3] > 256,
        "head_size that is a multiple of 8": q.shape[3] % 8 != 0,
        "Number of heads in key/value must divide number of heads in query":
            q.shape[2] % k.shape[2] != 0,
        f"the stand-in has no {', '.join(unused)}": bool(unused),
    }  # fmt: skip
    for why, wrong in refused.items():
        if wrong:
            raise RuntimeError(why)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, hidden: torch.Tensor | None
) -> torch.Tensor:
    """[B, n, H, D] over [B, m, G, D]; sums in float32, rounded once."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2).float().transpose(1, 2) for x in (k, v))
    scores = q.float().transpose(1, 2) @ k.transpose(2, 3) * scale
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).to(q.dtype)


def flash_attn_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0,
    softmax_scale: float | None = None, causal: bool = False, **unused: Any,
) -> torch.Tensor:  # fmt: skip
    _check(q, k, v, unused)
    CALLS["causal" if causal else "fresh"] += 1
    hidden = None
    if causal:  # aligned to the last query and the last key
        rows, entries = q.shape[1], k.shape[1]
        every = torch.ones(rows, entries, dtype=torch.bool, device=q.device)
        hidden = every.triu(1 + entries - rows)
    return _attend(q, k, v, softmax_scale or q.shape[3] ** -0.5, hidden)


def flash_attn_with_kvcache(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
    k: None = None, v: None = None, rotary_cos: None = None, rotary_sin: None = None,
    cache_seqlens: torch.Tensor | None = None, cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: None = None, block_table: None = None, softmax_scale: float | None = None,
    causal: bool = False, **unused: Any,
) -> torch.Tensor:  # fmt: skip
    _check(q, k_cache, v_cache, unused)
    assert q.shape[1] == 1 or not causal, "the stand-in has one row where it is causal"
    assert cache_seqlens is not None and cache_seqlens.dtype == torch.int32
    CALLS["rows" if q.shape[1] == 1 else "filled"] += 1
    if cache_batch_idx is not None:
        assert cache_batch_idx.dtype == torch.int32
        k_cache, v_cache = (x.index_select(0, cache_batch_idx) for x in (k_cache, v_cache))
    behind = torch.arange(k_cache.shape[1], device=q.device) >= cache_seqlens[:, None]
    hidden = behind[:, None, None, :]
    return _attend(q, k_cache, v_cache, softmax_scale or q.shape[3] ** -0.5, hidden)
