"""Which attention runs where."""

from __future__ import annotations

from functools import partial

import torch

from vla_ros.engine.packed.attention import Backend, PackedAttention, RopeWrite
from vla_ros.engine.packed.kernels.rope_write import fits_triton, triton_runs
from vla_ros.engine.packed.masked import CpuAttention, MaskedAttention
from vla_ros.engine.packed.pack import Plan
from vla_ros.engine.packed.ring import Ring
from vla_ros.engine.packed.varlen import PAGE, VarlenAttention, choose_varlen


def choose_backend(
    device: torch.device, dtype: torch.dtype, head_dim: int, attention: str = "sdpa"
) -> Backend:
    """The backend for a device; ``attention`` is "sdpa" or "varlen"."""
    rope_write, cpu = choose_rope_write(device, head_dim), device.type == "cpu"
    if attention == "varlen":
        call = choose_varlen(device, dtype)

        def make(ring: Ring, plan: Plan) -> PackedAttention:
            if plan.shape.tree:
                return MaskedAttention(ring, plan, rope_write)
            return VarlenAttention(ring, plan, call, rope_write)

        return Backend(make, page=1 if cpu else PAGE)
    if cpu:
        return Backend(partial(CpuAttention, rope_write=rope_write), whole_slots=True)
    return Backend(partial(MaskedAttention, rope_write=rope_write))


def choose_rope_write(device: torch.device, head_dim: int) -> RopeWrite | None:
    """Triton's kernel where it runs; None where torch's own operations are to be used."""
    if not (triton_runs(device) and fits_triton(head_dim)):
        return None
    from vla_ros.engine.packed.kernels.rope_write_triton import rope_write

    return rope_write
