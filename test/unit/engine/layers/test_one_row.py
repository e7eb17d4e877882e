"""A pass of one token on one core: what torch's operators say, faster and a little more exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from support.engine import CPU, TEXTS, engine_of, play, stream, tiny, tiny_config
from vla_ros.engine.layers import prepacked as layers
from vla_ros.engine.layers.attention import CpuAttention, SingleToken
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.linear import Int8, for_one_row, linear
from vla_ros.engine.layers.pack import PackLayout, Planner, TailToken, chain
from vla_ros.engine.layers.prepacked import Prepacked
from vla_ros.engine.models import openvla
from vla_ros.engine.models.language.llama import LlamaDecoder

KINDS = ["float32", "bfloat16", "int8"]


@pytest.fixture(autouse=True)
def functions() -> Iterator[Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = layers.one_row()
    if found is None:
        pytest.skip("no AVX-512, or no Numba: pip install '.[cpu]'")
    yield found
    torch.set_num_threads(threads)


def weight_of(kind: str, rows: int, width: int) -> tuple[Any, torch.Tensor]:
    """Ready to be multiplied, and as it is."""
    exact = torch.randn(rows, width, generator=torch.Generator().manual_seed(1)) * width**-0.5
    if kind == "int8":
        few = Int8.of(exact.bfloat16())
        return for_one_row(few.ready()), few.whole()
    exact = exact.to(getattr(torch, kind))
    return for_one_row(Prepacked.of(exact)), exact


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(64, 64), (192, 320), (2304, 768)])
@pytest.mark.parametrize("biased", [False, True])
def test_one_row_is_what_it_is_among_others(
    kind: str, shape: tuple[int, int], biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, exact = weight_of(kind, *shape)
    held = weight.packed if kind == "int8" else weight
    assert held.blocks is not None
    dtype = torch.float32 if kind == "float32" else torch.bfloat16
    x = torch.randn(5, shape[1], generator=torch.Generator().manual_seed(2)).to(dtype)
    bias = torch.randn(shape[0]).to(dtype) if biased else None
    among = linear(x, weight, bias)
    alone = linear(x[2:3], weight, bias)
    limit = 1e-5 if kind == "float32" else 2**-7
    torch.testing.assert_close(alone, among[2:3], rtol=limit, atol=limit)
    if kind != "int8":
        wanted = F.linear(x.double(), exact.double(), None if bias is None else bias.double())
        torch.testing.assert_close(alone.double(), wanted[2:3], rtol=limit, atol=limit)
    monkeypatch.setattr(layers, "_numba", lambda: None)  # and so without Numba
    torch.testing.assert_close(linear(x[2:3], weight, bias), alone, rtol=limit, atol=limit)


@pytest.mark.parametrize("shape", [(64, 64), (192, 320), (704, 11008)])
@pytest.mark.parametrize("count", range(1, 10))
def test_up_to_eight_rows_of_int8_are_multiplied_alike(
    count: int, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By integers, so to the bit whatever stands beside a row; as oneDNN does it but for the last
    rounding. The widest codes are too large for a heap that keeps what is freed."""
    weight, _ = weight_of("int8", *shape)
    x = torch.randn(count, shape[1], generator=torch.Generator().manual_seed(2)).bfloat16()
    x *= torch.arange(1, count + 1)[:, None]
    found = linear(x, weight)
    if count <= 8:
        assert torch.equal(found, torch.cat([linear(row[None], weight) for row in x]))
    monkeypatch.setattr(layers, "_numba", lambda: None)
    torch.testing.assert_close(found, linear(x, weight), rtol=2**-7, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_stays_so(kind: str) -> None:
    weight, _ = weight_of(kind, 128, 128)
    x = torch.ones(1, 128).to(torch.float32 if kind == "float32" else torch.bfloat16)
    assert linear(x, weight).isfinite().all()
    x[0, 77] = float("nan")
    assert linear(x, weight).isnan().all()


@pytest.mark.parametrize("shape", [(65, 64), (64, 50), (96, 64)])
def test_a_matrix_of_another_size_is_torchs(shape: tuple[int, int]) -> None:
    weight, exact = weight_of("float32", *shape)
    assert weight.blocks is None
    x = torch.randn(1, shape[1])
    torch.testing.assert_close(linear(x, weight), F.linear(x, exact), rtol=1e-5, atol=1e-5)


def test_memory_in_another_order_is_not_read(functions: Any) -> None:
    weight, exact = weight_of("bfloat16", 128, 128)
    assert functions.blocks(weight.values, exact) is not None
    assert functions.blocks(weight.values, exact.flip(0)) is None
    assert functions.blocks(weight.values, exact.repeat(2, 1)) is None  # more than there is


def decoder_of(language: str, kind: str) -> LlamaDecoder:
    config = tiny_config(language)
    text = replace(config.text, intermediate_size=192)  # int8 is read 64 columns at a time
    checkpoint = tiny(replace(config, text=text))
    dtype = torch.float32 if kind == "float32" else torch.bfloat16
    tensors = {name: tensor.to(dtype) for name, tensor in checkpoint.tensors.items()}
    few = {}
    if kind == "int8":
        names = [n for n in tensors if n.startswith("language_model.") and "_proj.weight" in n]
        few = {name: Int8.of(tensors.pop(name)) for name in names}
    decoder = LlamaDecoder(text, tensors, quantized=few, prepack=True)
    decoder.prepare_one_row()
    assert decoder._one_row is not None
    return decoder


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("language", ["llama_gqa", "qwen2_tied"])
@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("taps", [(), (0, 1)])
def test_a_layer_is_that_of_torchs_operators(
    kind: str, language: str, tree: bool, taps: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads that share K and V, a bias, a tree's token that does not see all before it; what is
    written to the KV cache too."""
    decoder = decoder_of(language, kind)
    cfg, dtype = decoder.config, torch.float32 if kind == "float32" else torch.bfloat16
    random = torch.Generator().manual_seed(3)
    token = TailToken(1, 12, position=9, sees=(9, 12), trunk=8) if tree else chain(1, 9, 1)[0]
    x = torch.randn(1, cfg.hidden_size, generator=random).to(dtype)
    filling = torch.randn(2 * cfg.layers, 2, cfg.kv_heads, 24, cfg.head_dim, generator=random).to(
        dtype
    )
    found = []
    for functions in (layers._numba(), None):
        monkeypatch.setattr(layers, "_numba", lambda functions=functions: functions)
        cache = KVCache(cfg.layers, 2, 24, cfg.kv_heads, cfg.head_dim, dtype, CPU, filling.clone())
        cache.resize(20)
        plan = Planner(cache).plan(PackLayout((0,), tail=(token,)))
        attention = CpuAttention(cache, plan)
        assert isinstance(attention.alone, SingleToken)
        with torch.inference_mode():
            states, tapped = decoder.tapped(x, plan.positions, attention, plan.rows, taps)
        assert tapped.shape == (1, len(taps) * cfg.hidden_size)
        found.append((states, tapped, torch.stack(list(cache.both))))
    assert not torch.equal(found[0][2], filling.unflatten(0, (-1, 2))[:, :, :, :, :20])
    limit = {"float32": 1e-5, "bfloat16": 0.01, "int8": 0.03}[kind]
    for own, wanted in zip(*found, strict=True):
        assert own.dtype == wanted.dtype
        assert float((own - wanted).norm()) <= limit * float(wanted.norm())


def test_a_policy_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frame after frame, each token of ``autoregressive`` a pass of one."""
    monkeypatch.setattr(openvla, "_CACHES", 0)
    answers, events = [], stream(6, {0: TEXTS[0], 3: TEXTS[1]})
    for functions in (layers._numba(), None):
        monkeypatch.setattr(layers, "_numba", lambda functions=functions: functions)
        engine = engine_of(tiny(seed=2), decoding="autoregressive")
        answers.append({s: a.tokens for s, a in play(engine, events).items()})
        assert (engine.model.decoder._one_row is not None) == (functions is not None)
    assert answers[0] == answers[1]


def test_what_the_caches_hold_is_left_as_it_is() -> None:
    assert engine_of(tiny(), decoding="autoregressive").model.decoder._one_row is None


def test_more_threads_are_torchs() -> None:
    torch.set_num_threads(2)
    assert layers.one_row() is None
