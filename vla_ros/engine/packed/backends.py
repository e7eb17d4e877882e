"""Which attention runs where."""

from __future__ import annotations

from functools import partial

import torch

from vla_ros.engine.packed.attention import Backend, PackedAttention, RopeWrite
from vla_ros.engine.packed.kernels.between import PLAIN, Between, check_between
from vla_ros.engine.packed.kernels.rope_write import (
    Heads,
    check_rope_write,
    fits_triton,
    triton_may_run,
)
from vla_ros.engine.packed.masked import CpuAttention, MaskedAttention
from vla_ros.engine.packed.pack import Plan
from vla_ros.engine.packed.probe import first_that_runs
from vla_ros.engine.packed.ring import Ring
from vla_ros.engine.packed.varlen import PAGE, VarlenAttention, VarlenCall, choose_varlen

GROUPED = Heads(4, 2)  # what is tried where nobody says which heads there are


def choose_backend(
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    attention: str = "sdpa",
    heads: Heads = GROUPED,
) -> Backend:
    """The backend for a device; ``attention`` is "sdpa" or "varlen".

    What may fail on this machine is tried on a tiny pack, and left out with one line of warning.
    """
    rope_write, cpu = choose_rope_write(device, head_dim, dtype, heads), device.type == "cpu"
    if attention == "varlen":
        name, call = choose_varlen(device, dtype, head_dim, heads)
        if call is not None:
            return _varlen(name, call, rope_write, 1 if cpu else PAGE)
    if cpu:
        make = partial(CpuAttention, rope_write=rope_write)
        return Backend(make, whole_slots=True, name="two products")
    return Backend(partial(MaskedAttention, rope_write=rope_write), name="masked attention")


def _varlen(name: str, call: VarlenCall, rope_write: RopeWrite | None, page: int) -> Backend:
    def make(ring: Ring, plan: Plan) -> PackedAttention:
        if plan.shape.tree:
            return MaskedAttention(ring, plan, rope_write)
        return VarlenAttention(ring, plan, call, rope_write)

    return Backend(make, page=page, name=name)


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
