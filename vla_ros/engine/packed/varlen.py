"""One variable-length attention call for prefill and tail together, slots being pages.

Torch's own ``varlen_attn`` pages on FlashAttention 3 only (pytorch#175924), which is activated for
it; else flash-attn is used. Both want CUDA and fp16 or bf16, and are tried once, on a tiny pack:
where neither runs, masked attention does. :func:`varlen_reference` is the same call in plain torch:
what they must agree with, and what runs on a CPU. Draft trees do not fit: every query must see a
prefix of its slot.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from vla_ros.engine.packed.attention import PackedAttention, RopeWrite
from vla_ros.engine.packed.kernels.rope_write import Heads
from vla_ros.engine.packed.pack import Plan
from vla_ros.engine.packed.probe import first_that_runs
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


def choose_varlen(
    device: torch.device, dtype: torch.dtype, head_dim: int, heads: Heads = Heads(4, 2)
) -> tuple[str, VarlenCall | None]:
    """The first call that runs here, and its name; None where masked attention is to run."""
    if device.type != "cuda":
        return "varlen in plain torch", varlen_reference

    def tried(call: VarlenCall) -> VarlenCall:
        check_varlen(call, device, dtype, head_dim, heads)
        return call

    def flash_3() -> VarlenCall:
        with_flash_3()
        try:
            return tried(varlen_torch)
        except Exception:
            without_flash_3()  # which torch's other attention would use too
            raise

    ways: dict[str, Callable[[], VarlenCall]] = {
        "torch's varlen": flash_3,
        "flash-attn": partial(tried, varlen_flash),
    }
    return first_that_runs("attention varlen", ways, "masked attention")


def with_flash_3() -> None:
    """Have torch use FlashAttention 3. Raises where there is none (package flash_attn_3)."""
    from torch.nn.attention import activate_flash_attention_impl

    activate_flash_attention_impl("FA3")


def without_flash_3() -> None:
    """Undo it."""
    from torch.nn.attention import restore_flash_attention_impl

    restore_flash_attention_impl()


def check_varlen(
    call: VarlenCall, device: torch.device, dtype: torch.dtype, head_dim: int, heads: Heads
) -> None:
    """A prefill of 5 and a tail of 2 and 1, as a pass has them, against the reference.

    Raises whatever the call raises, and ValueError where it gives something else.
    """
    if dtype == torch.float32:
        raise ValueError("there is none in float32")
    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random).to(device, dtype)

    def whole(*numbers: int) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=device)

    q = normal(8, heads.query, head_dim)
    # As the ring has them: head major, so that pages have strides.
    keys, values = (normal(4, heads.kv, PAGE, head_dim).transpose(1, 2) for _ in "kv")
    sequences = Sequences(
        whole(0, 5, 7, 8), whole(5, 40, 9), whole(0, 5, 45, 54), whole(2, 0, 3)[:, None], 5, 64
    )
    scale = head_dim**-0.5
    for causal in (True, False):
        wanted = varlen_reference(q, keys, values, sequences, scale, causal)
        got = call(q, keys, values, sequences, scale, causal)
        off = (got.float() - wanted.float()).abs().max().item()
        if not off < 0.05:  # of values around 1: bf16 is within 0.02
            raise ValueError(f"its result is off by {off:.2g}")


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
