"""What runs on a device instead of plain torch, against plain torch."""

from __future__ import annotations

import pytest
import torch

from vla_ros.engine.packed import varlen
from vla_ros.engine.packed.backends import choose_backend, choose_rope_write
from vla_ros.engine.packed.kernels.rope_write import (
    Heads,
    check_rope_write,
    rope_write_reference,
)
from vla_ros.engine.packed.masked import masked_products, masked_sdpa

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_variable_length_attention(heads: Heads, dtype: torch.dtype, device: str) -> None:
    where = torch.device(device)
    name, call = varlen.choose_varlen(where, dtype, 128, heads)
    if call is None:
        pytest.skip(f"neither FlashAttention 3 nor flash-attn runs here: {name} does")
    varlen.check_varlen(call, where, dtype, 128, heads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_masked_attention(heads: Heads, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    q = torch.randn(3, heads.query, 5, 64).to(device, dtype)
    k, v = (torch.randn(3, heads.kv, 96, 64).to(device, dtype) for _ in "kv")
    seen = torch.rand(3, 1, 5, 96) < 0.5
    seen[..., 0] = True
    mask = torch.zeros(3, 1, 5, 96).masked_fill_(~seen, float("-inf")).to(device)
    got = masked_sdpa(q, k, v, mask.to(dtype), 0.125)
    wanted = masked_products(q.float(), k.float(), v.float(), mask, 0.125)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.float(), wanted, atol=tolerance, rtol=tolerance)


def test_a_backend_is_chosen_whatever_is_missing(device: str) -> None:
    for dtype in DTYPES:
        for attention in ("sdpa", "varlen"):
            assert choose_backend(torch.device(device), dtype, 128, attention).name
