"""What runs on a device instead of plain torch, against plain torch."""

from __future__ import annotations

import pytest
import torch

from vla_ros.engine.packed.backends import (
    choose_backend,
    choose_between,
    choose_rope_write,
    choose_tail,
)
from vla_ros.engine.packed.kernels.between import PLAIN, check_between
from vla_ros.engine.packed.kernels.rope_write import (
    Heads,
    check_rope_write,
    rope_write_reference,
)
from vla_ros.engine.packed.kernels.tail_attention import check_tail
from vla_ros.engine.packed.tail import TorchTail

HEADS = [Heads(32, 32), Heads(8, 2), Heads(14, 2)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_rope_and_kv_write(heads: Heads, head_dim: int, dtype: torch.dtype, device: str) -> None:
    """Of a pass: the kernel where one runs, on a CPU the reference itself."""
    where = torch.device(device)
    kernel = choose_rope_write(where, head_dim, dtype, heads)
    if where.type == "cuda":
        assert kernel is not None, "Triton does not run here: see the warning above"
    check_rope_write(kernel or rope_write_reference, where, dtype, head_dim, heads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_tail_attention(heads: Heads, head_dim: int, dtype: torch.dtype, device: str) -> None:
    where = torch.device(device)
    kernel = choose_tail(where, head_dim, dtype, heads)
    if where.type == "cuda":
        assert kernel is not None, "Triton does not run here: see the warning above"
    check_tail(kernel or TorchTail, where, dtype, head_dim, heads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "middle"), [(4096, 11008), (896, 4864)])
def test_what_lies_between_products(
    width: int, middle: int, dtype: torch.dtype, device: str
) -> None:
    where = torch.device(device)
    found = choose_between(where, dtype, width, middle)
    assert (found is PLAIN) == (where.type == "cpu"), "see the warning above"
    check_between(found, where, dtype, width, middle)


def test_a_backend_is_chosen_whatever_is_missing(device: str) -> None:
    for dtype in DTYPES:
        for attention in ("auto", "torch"):
            assert choose_backend(torch.device(device), dtype, 128, attention).name
