"""Which attention runs where."""

from __future__ import annotations

from functools import partial

import torch

from vla_ros.engine.packed.attention import (
    Backend,
    CpuAttention,
    MakeTail,
    PackedAttention,
    RopeWrite,
)
from vla_ros.engine.packed.devices import triton_may_run
from vla_ros.engine.packed.kernels.between import PLAIN, Between, check_between
from vla_ros.engine.packed.kernels.rope_write import (
    Heads,
    check_rope_write,
    fits_triton,
)
from vla_ros.engine.packed.kernels.tail_attention import check_tail, fits_tail
from vla_ros.engine.packed.probe import first_that_runs

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
    tail = choose_tail(device, head_dim, dtype, heads) if attention == "auto" else None
    if tail is not None:
        make = partial(PackedAttention, rope_write=rope_write, make_tail=tail)
        return Backend(make, name="Triton's tail attention")
    made = CpuAttention if device.type == "cpu" and attention == "auto" else PackedAttention
    return Backend(partial(made, rope_write=rope_write), whole_slots=True, name="two products")


def choose_tail(
    device: torch.device, head_dim: int, dtype: torch.dtype, heads: Heads
) -> MakeTail | None:
    """Triton's kernel where it runs; None where torch's two products are to be used."""
    if not (triton_may_run(device) and fits_tail(head_dim)):
        return None

    def kernel() -> MakeTail:
        from vla_ros.engine.packed.kernels.tail_attention_triton import TritonTail

        check_tail(TritonTail, device, dtype, head_dim, heads)
        return TritonTail

    return first_that_runs("tail attention", {"Triton's kernel": kernel}, "two products")[1]


def choose_rope_write(
    device: torch.device,
    head_dim: int,
    dtype: torch.dtype = torch.float32,
    heads: Heads = GROUPED,
) -> RopeWrite | None:
    """Triton's kernel where it runs; None where torch's own operations are to be used."""
    if not (triton_may_run(device) and fits_triton(head_dim)):
        return None

    def kernel() -> RopeWrite:
        from vla_ros.engine.packed.kernels.rope_write_triton import rope_write

        check_rope_write(rope_write, device, dtype, head_dim, heads)
        return rope_write

    ways = {"Triton's kernel": kernel}
    return first_that_runs("RoPE and KV write", ways, "torch")[1]


def choose_between(device: torch.device, dtype: torch.dtype, width: int, middle: int) -> Between:
    """Triton's kernels where they run, else torch's operators."""
    if not triton_may_run(device):
        return PLAIN

    def kernels() -> Between:
        from vla_ros.engine.packed.kernels.between_triton import KERNELS

        check_between(KERNELS, device, dtype, width, middle)
        return KERNELS

    ways = {"Triton's kernels": kernels}
    return first_that_runs("add + norm, SiLU", ways, "torch")[1] or PLAIN
