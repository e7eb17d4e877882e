"""flash-attn on a GPU, against torch's attention and the tails of ours."""

from __future__ import annotations

import importlib.util

import pytest
import torch
import torch.nn.functional as F

from support.gpu import NO_GPU
from vla_ros.engine.layers.attention import TorchTail
from vla_ros.engine.layers.flash import FlashRows, flash, installed, misfit
from vla_ros.engine.layers.flash import Shape as Heading
from vla_ros.engine.layers.graphs import CudaCapture
from vla_ros.engine.layers.kernels.fused import Heads
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.pack import PackLayout, Planner, chain

pytestmark = [
    pytest.mark.gpu,
    NO_GPU,
    pytest.mark.skipif(
        importlib.util.find_spec("flash_attn") is None,
        reason="flash-attn is not installed: pip install 'vla_ros[flash]' --no-build-isolation",
    ),
]
GPU = torch.device("cuda:0")
#: OpenVLA's decoder and towers, MiniVLA's, pi0's expert
SHAPES = [(Heads(32, 32), 128), (Heads(16, 16), 64), (Heads(14, 2), 64), (Heads(8, 1), 256)]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs, whatever is faster here."""
    assert installed(), "it is there and cannot be imported: see the warning above"
    monkeypatch.setattr("vla_ros.engine.layers.flash._is_faster", lambda shape: not misfit(shape))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "dim"), SHAPES, ids=str)
def test_fresh_tokens(heads: Heads, dim: int, dtype: torch.dtype, causal: bool) -> None:
    assert misfit(Heading(GPU, dtype, dim, heads, causal)) == ""
    q, k, v = (
        torch.randn(297, count, dim, device=GPU).to(dtype).transpose(0, 1)[None]
        for count in (heads.query, heads.kv, heads.kv)
    )
    with torch.inference_mode():
        made = flash(*(x.transpose(1, 2) for x in (q, k, v)), dim**-0.5, causal)
    assert made is not None
    wanted = F.scaled_dot_product_attention(
        *(x.float() for x in (q, k, v)), is_causal=causal, scale=dim**-0.5, enable_gqa=True
    ).transpose(1, 2)
    torch.testing.assert_close(made.float(), wanted, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("slots", [1, 5])
@pytest.mark.parametrize(("heads", "dim"), SHAPES, ids=str)
def test_single_tokens_over_their_slots_within_a_graph(heads: Heads, dim: int, slots: int) -> None:
    kv_cache = KVCache(1, slots, 320, heads.kv, dim, torch.bfloat16, GPU)
    kv_cache.both[0].normal_()
    planner = Planner(kv_cache)
    first, second = (
        planner.plan(PackLayout((0,), tail=sum((chain(n, at + n, 1) for n in range(slots)), ())))
        for at in (280, 37)
    )
    plan, q = first.copy(), torch.randn(slots, heads.query, dim, device=GPU).bfloat16()
    with torch.inference_mode():
        replay = CudaCapture(GPU)(lambda: (FlashRows(kv_cache, plan)(0, q, dim**-0.5),))
        for now in (first, second):
            plan.load(now)
            wanted = TorchTail(kv_cache, now)(0, q, dim**-0.5)
            torch.testing.assert_close(replay()[0].float(), wanted.float(), atol=0.02, rtol=0.02)
