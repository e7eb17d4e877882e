"""Attention by flash-attn (Dao-AILab), where the extra ``vla_ros[flash]`` is installed.

It serves what has no mask of its own: vision towers, causal prefills, prefixes whose heads share K
and V, with padding behind them too, and single tokens over their slots of a KV cache. Packed tails
of drafts and trees, and an action head's rows behind padding, stay with Triton's kernel and
torch's. Each shape of heads is tried once, before
service, held to torch's and timed beside it; the faster one runs, and the log says which.

Source: flash-attn 2.8.3, ``flash_attn_interface.py`` and the checks of ``csrc/flash_attn/
flash_api.cpp``: Ampere or newer; float16 and bfloat16; heads of at most 256, a multiple of 8 (of
others it makes copies); heads of queries a multiple of those of K and V; numbers of a head one
after another; lengths and slots int32.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F

from vla_ros.engine.layers.devices import on_device, tried
from vla_ros.engine.layers.kernels.fused import Heads
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.pack import Plan
from vla_ros.engine.layers.tuner import stopwatch

_log = logging.getLogger("vla_ros.engine")
LARGEST, MULTIPLE = 256, 8  # heads
_TRIED = 288  # tokens of what is timed, about an image and a prompt; no multiple of a tile
_ENTRIES = 320  # of a slot


@dataclass(frozen=True, slots=True)
class Shape:
    """Attention of which one library or the other is faster: heads of this size and number."""

    device: torch.device
    dtype: torch.dtype
    head_dim: int
    heads: Heads
    causal: bool = False


def misfit(shape: Shape) -> str:
    """Why flash-attn cannot take such heads, in a few words; "" where it can."""
    if shape.dtype not in (torch.float16, torch.bfloat16):
        return f"{shape.dtype} is neither float16 nor bfloat16"
    if shape.head_dim > LARGEST or shape.head_dim % MULTIPLE:
        return f"heads of {shape.head_dim} are no multiple of {MULTIPLE} up to {LARGEST}"
    if shape.heads.query % shape.heads.kv:
        return f"{shape.heads.query} heads do not share {shape.heads.kv} evenly"
    if shape.device.type != "cuda" or torch.cuda.get_device_capability(shape.device) < (8, 0):
        return "it needs an NVIDIA GPU of generation 8.0 or newer"
    return ""


@lru_cache(1)
def installed() -> bool:
    """Whether flash-attn can be imported; where it is there and cannot, the log says why."""
    from importlib.util import find_spec

    if find_spec("flash_attn") is None:
        return False
    return tried("attention", "flash-attn", _library, "torch's") is not None


def _library() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Its function of fresh tokens, and that over a KV cache."""
    from flash_attn import flash_attn_func, flash_attn_with_kvcache

    return flash_attn_func, flash_attn_with_kvcache


def flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    causal: bool = False,
    filled: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """q [B, n, H, D], k and v [B, m, G, D], in any order but for D -> [B, n, H, D]; of m the first
    ``filled`` int32 [B]. None: torch's attention is to run here. A gradient is never taken."""
    if not q.is_cuda or torch.is_grad_enabled() or not installed():
        return None
    shape = Shape(q.device, q.dtype, q.shape[3], Heads(q.shape[2], k.shape[2]), causal)
    if not _is_faster(shape):
        return None
    return _fresh(q, k, v, scale, causal, filled)


def _fresh(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    causal: bool,
    filled: torch.Tensor | None = None,
) -> torch.Tensor:
    call, over_cache = _library()
    q, k, v = map(_rows, (q, k, v))
    with on_device(q.device):
        made: torch.Tensor
        if filled is None:
            made = call(q, k, v, softmax_scale=scale, causal=causal)
        else:
            made = over_cache(q, k, v, cache_seqlens=filled, softmax_scale=scale, causal=causal)
    return made


def _rows(x: torch.Tensor) -> torch.Tensor:
    """The same, with the numbers of a head one after another."""
    return x if x.stride(-1) == 1 else x.contiguous()


class FlashRows:
    """Attention of single tokens, each over the entries of its own slot that it sees, as
    :class:`~vla_ros.engine.layers.attention.TorchTail`: of plans in which no slot has two tokens
    and no token sees entries behind a gap."""

    def __init__(self, kv_cache: KVCache, plan: Plan) -> None:
        self._kv_cache = kv_cache
        self._slots = plan.slot[plan.shape.prefill :].int()
        self._lengths = plan.sees[:, 0].int()

    def __call__(self, layer: int, q: torch.Tensor, scale: float) -> torch.Tensor:
        both = self._kv_cache.keys, self._kv_cache.values
        keys, values = (every[layer].transpose(1, 2) for every in both)
        with on_device(q.device):
            made: torch.Tensor = _library()[1](
                _rows(q)[:, None], keys, values, cache_seqlens=self._lengths,
                cache_batch_idx=self._slots, softmax_scale=scale, causal=True,
            )  # fmt: skip
        return made[:, 0]


@lru_cache
def _is_faster(shape: Shape) -> bool:
    """Of fresh tokens: held to torch's, and timed. Not within a capture."""
    what = f"attention of {'causal prefills' if shape.causal else 'images and prefixes'}"

    def both() -> tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]:
        draw = partial(_drawn, shape)
        q, k, v = draw(shape.heads.query), draw(shape.heads.kv), draw(shape.heads.kv)
        scale = shape.head_dim**-0.5

        def torchs() -> torch.Tensor:
            grouped = shape.heads.query != shape.heads.kv
            across = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            made = F.scaled_dot_product_attention(
                *across, is_causal=shape.causal, scale=scale, enable_gqa=grouped
            )
            return made.transpose(1, 2)

        return partial(_fresh, q, k, v, scale, shape.causal), torchs

    return _wins(what, shape, both)


def _drawn(shape: Shape, heads: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(heads)
    made = torch.randn(1, _TRIED, heads, shape.head_dim, generator=random)
    return made.to(shape.device, shape.dtype)


def choose_rows(
    shape: Shape, other: Callable[[KVCache, Plan], Any], plan: Callable[[KVCache, int], Plan]
) -> bool:
    """Whether single tokens over a KV cache are attended to faster than by ``other``; ``plan``
    makes that of a token in some entry."""
    if shape.device.type != "cuda" or not installed():
        return False

    def both() -> tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]:
        heads, dim = shape.heads, shape.head_dim
        kv_cache = KVCache(1, 1, _ENTRIES, heads.kv, dim, shape.dtype, shape.device)
        random = torch.Generator().manual_seed(0)
        kv_cache.both[0].copy_(torch.randn(kv_cache.both[0].shape, generator=random))
        q = torch.randn(1, heads.query, dim, generator=random).to(shape.device, shape.dtype)
        made = plan(kv_cache, _ENTRIES - 20)
        ours, theirs = FlashRows(kv_cache, made), other(kv_cache, made)
        return partial(ours, 0, q, dim**-0.5), partial(theirs, 0, q, dim**-0.5)

    return _wins("attention of single tokens", shape, both)


def _wins(
    what: str,
    shape: Shape,
    both: Callable[[], tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]],
) -> bool:
    """Whether flash-attn gives what the other gives, in less time; the log says either."""
    heads = f"{shape.heads.query} heads of {shape.head_dim}"
    if why := misfit(shape):
        _log.info("%s, %s: flash-attn does not fit (%s)", what, heads, why)
        return False

    def trial() -> tuple[float, float]:
        ours, theirs = both()
        with torch.inference_mode():
            off = float((ours().float() - theirs().float()).abs().max())
            if not off < 0.05:  # of values up to 3, rounded to bfloat16
                raise ValueError(f"its result is off by {off:.2g}")
            watch = stopwatch(shape.device)
            return watch(ours), watch(theirs)

    times = tried(what, "flash-attn", trial, "torch's or Triton's")
    if times is None:
        return False
    own, before = times
    runs = "flash-attn runs" if own < before else "stays as it is"
    _log.info("%s, %s: %s: %.1f us by flash-attn, %.1f without", what, heads, runs, own * 1e6,
              before * 1e6)  # fmt: skip
    return own < before
