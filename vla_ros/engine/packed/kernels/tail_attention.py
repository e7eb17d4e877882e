"""Whether the Triton kernel of the tail's attention runs here, and does what torch does."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vla_ros.engine.packed.kernels.rope_write import Heads
from vla_ros.engine.packed.pack import PackLayout, Plan, branching, chain
from vla_ros.engine.packed.planner import Planner
from vla_ros.engine.packed.ring import Ring
from vla_ros.engine.packed.tail import TailAttention, TorchTail

_LENGTH = 192  # of a slot: more than one block, and no multiple of a larger one


def fits_tail(head_dim: int) -> bool:
    """The kernel multiplies blocks of 16, and takes a head whole."""
    return head_dim >= 16 and head_dim & (head_dim - 1) == 0


def check_tail(
    make: Callable[[Ring, Plan], TailAttention],
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    heads: Heads,
) -> None:
    """A tree in a slot of its own; chains, one of them behind a prefill, in three; a chain that
    fills the largest block of queries.

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
        ring = Ring(1, slots, _LENGTH, heads.kv, head_dim, dtype, device)
        entries = torch.randn(ring.both[0].shape, generator=random)
        ring.both[0].copy_(entries)
        plan = Planner(ring).plan(layout)
        q = torch.randn(plan.shape.tail, heads.query, head_dim, generator=random).to(device, dtype)
        wanted, got = (tail(ring, plan)(0, q, head_dim**-0.5) for tail in (TorchTail, make))
        off = (got.float() - wanted.float()).abs().max().item()
        if not off < (1e-4 if dtype == torch.float32 else 0.05):  # of values up to 2
            raise ValueError(f"its result is off by {off:.2g}")
