"""What runs on a device instead of plain torch, against plain torch.

On a CPU, where plain torch is all there is, the question is another: whether what compares them
would notice a wrong kernel. So nothing passes here by being held to itself.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from vla_ros.engine.layers.attention import TorchTail
from vla_ros.engine.layers.backends import (
    check_tail,
    choose_backend,
    choose_between,
    choose_rope_write,
    choose_tail,
)
from vla_ros.engine.layers.devices import reason
from vla_ros.engine.layers.graphs import CudaCapture
from vla_ros.engine.layers.kernels.fused import (
    PLAIN,
    Heads,
    check_between,
    check_rope_write,
    rope_write_reference,
)
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.pack import Plan
from vla_ros.engine.layers.tiles import ways
from vla_ros.engine.layers.tuner import check_product, choose_tuner, stopwatch

HEADS = [Heads(32, 32), Heads(8, 2), Heads(14, 2)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_rope_and_kv_write(heads: Heads, head_dim: int, dtype: torch.dtype, device: str) -> None:
    where = torch.device(device)
    kernel = choose_rope_write(where, head_dim, dtype, heads)
    if where.type == "cuda":
        assert kernel is not None, "Triton does not run here: see the warning above"
        check_rope_write(kernel, where, dtype, head_dim, heads)
        return

    def backwards(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *rest: Any) -> Any:
        return rope_write_reference(qkv, cos, -sin, *rest)

    with pytest.raises(ValueError, match="off by"):
        check_rope_write(backwards, where, dtype, head_dim, heads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_tail_attention(heads: Heads, head_dim: int, dtype: torch.dtype, device: str) -> None:
    where = torch.device(device)
    kernel = choose_tail(where, head_dim, dtype, heads)
    if where.type == "cuda":
        assert kernel is not None, "Triton does not run here: see the warning above"
        check_tail(kernel, where, dtype, head_dim, heads)
        return

    def sharper(kv_cache: KVCache, plan: Plan) -> Any:
        tail = TorchTail(kv_cache, plan)
        return lambda layer, q, scale: tail(layer, q, 1.5 * scale)

    with pytest.raises(ValueError, match="off by"):
        check_tail(sharper, where, dtype, head_dim, heads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "middle"), [(4096, 11008), (896, 4864)])
def test_what_lies_between_products(
    width: int, middle: int, dtype: torch.dtype, device: str
) -> None:
    where = torch.device(device)
    found = choose_between(where, dtype, width, middle)
    assert (found is PLAIN) == (where.type == "cpu"), "see the warning above"
    if where.type == "cuda":
        check_between(found, where, dtype, width, middle)
        return
    wrong = PLAIN._replace(silu_mul=lambda x: 1.5 * PLAIN.silu_mul(x))
    with pytest.raises(ValueError, match="off by"):
        check_between(wrong, where, dtype, width, middle)


#: sizes of a model in bf16, sizes that fit no block, and fp32: each way is compiled for each
PRODUCTS = [
    *(((4096, 4096), rows, torch.bfloat16) for rows in (1, 16, 297)),
    *(((250, 1000), rows, torch.bfloat16) for rows in (3, 40)),
    ((4864, 896), 1, torch.float32),
]


@pytest.mark.parametrize(("shape", "rows", "dtype"), PRODUCTS, ids=str)
def test_products(shape: tuple[int, int], rows: int, dtype: torch.dtype, device: str) -> None:
    """Every way that may be chosen; what has no room in shared memory says so."""
    where = torch.device(device)
    generator = torch.Generator().manual_seed(0)
    weight = (torch.randn(shape, generator=generator) * shape[1] ** -0.5).to(where, dtype)
    x, bias = (
        torch.randn(rows, shape[1], generator=generator).to(where, dtype),
        weight[:, 0].clone(),
    )
    tuner = choose_tuner(where, dtype)
    if tuner is None:
        assert where.type == "cpu", "Triton does not run here: see the warning above"
        with pytest.raises(ValueError, match="off by"):
            check_product(lambda *given: 1.02 * F.linear(*given), x, weight, bias)
        return
    ran = 0
    for way in ways(rows, dtype):
        try:
            check_product(tuner._make(way), x, weight, bias)
        except Exception as error:
            assert "resource" in reason(error).lower(), f"{way}: {error}"
        else:
            ran += 1
    assert ran or not ways(rows, dtype)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("shape", [(12288, 4096), (4096, 4096), (22016, 4096), (4096, 11008)])
@pytest.mark.parametrize("rows", [1, 8, 297])
def test_what_is_chosen_is_no_slower_than_torch(rows: int, shape: tuple[int, int]) -> None:
    """Of OpenVLA-7B's four products, captured: what the choice is for. Printed with -s."""
    where = torch.device("cuda:0")
    tuner = choose_tuner(where, torch.bfloat16)
    assert tuner is not None
    weights = [torch.randn(shape, device=where, dtype=torch.bfloat16) / 64 for _ in range(8)]
    tuned = [tuner.of(weight) for weight in weights]
    x = torch.randn(rows, shape[1], device=where, dtype=torch.bfloat16)
    capture = CudaCapture(where)
    own = capture(lambda: tuple(F.linear(x, weight) for weight in weights))
    ours = tuner.while_capturing(capture)(lambda: tuple(weight.times(x) for weight in tuned))
    watch = stopwatch(where)
    took, before = watch(ours), watch(own)
    print(f"{tuner.choices[0]}; in a graph {took / 8 * 1e6:.1f} us, torch {before / 8 * 1e6:.1f}")
    assert took <= 1.1 * before
    for one, other in zip(ours(), own(), strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)


def test_a_backend_is_chosen_whatever_is_missing(device: str) -> None:
    for dtype in DTYPES:
        for attention in ("auto", "torch"):
            assert choose_backend(torch.device(device), dtype, 128, attention).name
