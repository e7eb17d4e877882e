"""Kernels that a decoder runs on a device: flash attention, Triton's tail, RoPE write, RMSNorm.

Each choice is tried once and held to torch's reference before it is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from vla_ros.engine.layers.attention import (
    Backend,
    CpuAttention,
    MakeTail,
    PackedAttention,
    RopeWrite,
    TailAttention,
    TorchTail,
)
from vla_ros.engine.layers.devices import tried, triton_may_run
from vla_ros.engine.layers.flash import FlashRows, Shape, choose_rows
from vla_ros.engine.layers.kernels.fused import (
    PLAIN,
    AddNorm,
    Heads,
    check_between,
    check_rope_write,
    fits_triton,
)
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.pack import PackLayout, Plan, Planner, branching, chain

_LENGTH = 192  # of a slot: more than one block, and no multiple of a larger one


def fits_tail(head_dim: int) -> bool:
    """Head sizes that Triton's tail takes: its kernel multiplies blocks of 16, and takes a head
    whole."""
    return head_dim >= 16 and head_dim & (head_dim - 1) == 0


def check_tail(
    make: Callable[[KVCache, Plan], TailAttention],
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    heads: Heads,
) -> None:
    """A tail's attention against :class:`TorchTail`: a tree in a slot of its own; chains, one of
    them behind a prefill, in three; a chain that fills the largest block of queries.

    Raises whatever the call raises, and ValueError where it gives something else.
    """
    random = torch.Generator().manual_seed(0)
    tree = branching(0, 150, 140, ((0,), (1,), (1, 2), (0, 3), (1, 2, 4)))
    layouts = (
        (1, PackLayout((0,), tail=(*chain(0, 139, 1), *tree))),
        (3, PackLayout((0,), 5, 1, (*chain(2, 9, 2), *chain(1, 5, 1), *chain(0, 180, 3)))),
        (1, PackLayout((0,), tail=chain(0, 60, 70))),
    )
    for slots, layout in layouts:
        kv_cache = KVCache(1, slots, _LENGTH, heads.kv, head_dim, dtype, device)
        entries = torch.randn(kv_cache.both[0].shape, generator=random)
        kv_cache.both[0].copy_(entries)
        plan = Planner(kv_cache).plan(layout)
        q = torch.randn(plan.shape.tail, heads.query, head_dim, generator=random).to(device, dtype)
        wanted, got = (tail(kv_cache, plan)(0, q, head_dim**-0.5) for tail in (TorchTail, make))
        off = (got.float() - wanted.float()).abs().max().item()
        if not off < (1e-4 if dtype == torch.float32 else 0.05):  # of values up to 2
            raise ValueError(f"its result is off by {off:.2g}")


GROUPED = Heads(4, 2)  # what is tried where nobody says which heads there are


def choose_backend(
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    attention: str = "auto",
    heads: Heads = GROUPED,
) -> Backend:
    """The backend for a device; ``attention`` "torch" is the same plain torch on every device.

    What may fail on this machine is tried on a tiny pack, and left out with one line of warning.
    """
    rope_write = choose_rope_write(device, head_dim, dtype, heads)
    if attention != "auto":
        plain = partial(PackedAttention, rope_write=rope_write, library=False)
        return Backend(plain, whole_slots=True, name="two products")
    tail = choose_tail(device, head_dim, dtype, heads)
    if device.type == "cpu" and tail is None:  # else Triton's interpreter
        on_cpu = partial(CpuAttention, rope_write=rope_write)
        return Backend(on_cpu, whole_slots=True, name="two products")
    name = "two products" if tail is None else "Triton's tail attention"
    make = tail or TorchTail
    shape = Shape(device, dtype, head_dim, heads, causal=True)
    if choose_rows(shape, make, _single):
        name, make = f"{name}, flash-attn for single tokens", partial(_rows_or, make)
    packed = partial(PackedAttention, rope_write=rope_write, make_tail=make)
    return Backend(packed, whole_slots=tail is None, name=name)


def _single(kv_cache: KVCache, entry: int) -> Plan:
    return Planner(kv_cache).plan(PackLayout((0,), tail=chain(0, entry, 1)))


def _rows_or(other: MakeTail, kv_cache: KVCache, plan: Plan) -> TailAttention:
    """flash-attn's where every slot has a single token that sees what is before it."""
    alone = plan.shape.width == 1 and not plan.shape.gaps
    return FlashRows(kv_cache, plan) if alone else other(kv_cache, plan)


def choose_tail(
    device: torch.device, head_dim: int, dtype: torch.dtype, heads: Heads
) -> MakeTail | None:
    """The attention of a tail by Triton's kernel where it runs; None where torch's two products are
    to be used."""
    if not (triton_may_run(device) and fits_tail(head_dim)):
        return None

    def kernel() -> MakeTail:
        from vla_ros.engine.layers.kernels.tail_attention_triton import TritonTail

        check_tail(TritonTail, device, dtype, head_dim, heads)
        return TritonTail

    return tried("tail attention", "Triton's kernel", kernel, "two products")


def choose_rope_write(
    device: torch.device,
    head_dim: int,
    dtype: torch.dtype = torch.float32,
    heads: Heads = GROUPED,
) -> RopeWrite | None:
    """RoPE and KV write by Triton's kernel where it runs; None where torch's own operations are to
    be used."""
    if not (triton_may_run(device) and fits_triton(head_dim)):
        return None

    def kernel() -> RopeWrite:
        from vla_ros.engine.layers.kernels.layer_triton import rope_write

        check_rope_write(rope_write, device, dtype, head_dim, heads)
        return rope_write

    return tried("RoPE and KV write", "Triton's kernel", kernel, "torch")


def choose_between(device: torch.device, dtype: torch.dtype, width: int, middle: int) -> AddNorm:
    """What lies between two products by Triton's kernels where they run, else by torch's
    operators."""
    if not triton_may_run(device):
        return PLAIN

    def kernels() -> AddNorm:
        from vla_ros.engine.layers.kernels.layer_triton import KERNELS

        check_between(KERNELS, device, dtype, width, middle)
        return KERNELS

    return tried("add + norm, SiLU", "Triton's kernels", kernels, "torch") or PLAIN
