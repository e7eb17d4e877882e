"""A pass of one token on one core: what torch's operators say, faster and a little more exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from support.engine import CPU, TEXTS, engine_of, play, stream, tiny, tiny_config
from support.onednn import LIMIT, run_limited
from vla_ros.engine.layers import devices
from vla_ros.engine.layers import prepacked as layers
from vla_ros.engine.layers.attention import CpuAttention, SingleToken
from vla_ros.engine.layers.int8 import Int8
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.linear import for_one_row, linear
from vla_ros.engine.layers.pack import PackLayout, Planner, TailToken, chain
from vla_ros.engine.layers.prepacked import Prepacked, can_prepack
from vla_ros.engine.layers.tuner import multiplies_integers
from vla_ros.engine.models import openvla
from vla_ros.engine.models.language.llama import LlamaDecoder

KINDS = ["float32", "bfloat16", "int8"]
#: of oneDNN's: with it every kind is read in blocks of 64; with the others bfloat16 is not, and
#: float32 is not
WITHOUT_AMX, WITHOUT_BFLOAT16, WITHOUT_AVX2 = "AVX512_CORE_BF16", "AVX512_CORE_VNNI", "AVX"


@pytest.fixture(autouse=True)
def functions() -> Iterator[Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = layers.one_row()
    if found is None:
        pytest.skip("no AVX2, or no Numba: pip install '.[cpu]'")
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


def held(weight: Any) -> Any:
    """What its memory is read of."""
    return weight.packed if isinstance(weight, Int8) else weight


@cache
def why_not(kind: str) -> str:
    """Why weights of this kind are not read on this CPU, "" where they are."""
    if kind == "int8" and not multiplies_integers(CPU):
        return "this CPU has no VNNI"
    if kind == "bfloat16" and not can_prepack(CPU, torch.bfloat16):
        return "oneDNN does not multiply bfloat16 on this CPU"
    read = held(weight_of(kind, 64, 64)[0]).blocks is not None
    return "" if read else f"oneDNN keeps {kind} in another order on this CPU"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """A kind of weights that is read on this CPU."""
    if why_not(request.param):
        pytest.skip(why_not(request.param))
    return str(request.param)


def test_every_kind_is_read_with_amx_and_without() -> None:
    """Here, and as on a CPU without AMX, where those of bfloat16 run once more."""
    if not torch.cpu._is_avx512_bf16_supported():
        pytest.skip("this CPU has no AVX-512 for bfloat16")
    assert not [kind for kind in KINDS if why_not(kind)]
    amx, limited = torch.cpu._is_amx_tile_supported(), os.environ.get(LIMIT) == WITHOUT_AMX
    wide = held(weight_of("bfloat16", 64, 64)[0]).blocks.shape[2]
    assert wide == (32 if amx and not limited else 64)
    if amx and not limited:
        run_limited(WITHOUT_AMX, __file__, "-k", "bfloat16 or with_amx")


@pytest.mark.parametrize("shape", [(64, 64), (192, 320), (2304, 768)])
@pytest.mark.parametrize("biased", [False, True])
def test_one_row_is_what_it_is_among_others(
    kind: str, shape: tuple[int, int], biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, exact = weight_of(kind, *shape)
    assert held(weight).blocks is not None
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
    if why_not("int8"):
        pytest.skip(why_not("int8"))
    weight, _ = weight_of("int8", *shape)
    x = torch.randn(count, shape[1], generator=torch.Generator().manual_seed(2)).bfloat16()
    x *= torch.arange(1, count + 1)[:, None]
    found = linear(x, weight)
    if count <= 8:
        assert torch.equal(found, torch.cat([linear(row[None], weight) for row in x]))
    monkeypatch.setattr(layers, "_numba", lambda: None)
    torch.testing.assert_close(found, linear(x, weight), rtol=2**-7, atol=1e-4)


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


def test_memory_in_another_order_is_not_read(functions: Any, kind: str) -> None:
    own = held(weight_of(kind, 128, 128)[0])
    matrix = own.codes() if kind == "int8" else own.whole()
    assert functions.blocks(own.values, matrix) is not None
    assert functions.blocks(own.values, matrix.flip(0)) is None
    assert functions.blocks(own.values, matrix.repeat(2, 1)) is None  # more than there is


def test_another_order_is_torchs_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """As bfloat16 has it without instructions for it."""
    if not why_not("bfloat16") and os.environ.get(LIMIT) != WITHOUT_BFLOAT16:
        own = test_another_order_is_torchs_and_logged.__name__
        run_limited(WITHOUT_BFLOAT16, f"{__file__}::{own}")
        return
    if not can_prepack(CPU, torch.bfloat16):
        pytest.skip(why_not("bfloat16"))
    devices.warn_once.cache_clear()
    caplog.clear()
    weight, exact = weight_of("bfloat16", 192, 320)
    x = torch.randn(1, 320).bfloat16()
    torch.testing.assert_close(linear(x, weight), F.linear(x, exact), rtol=2**-7, atol=2**-7)
    assert decoder_of("llama_gqa", "bfloat16")._one_row is None
    assert caplog.messages == [
        "a pass of one token: Numba's product does not read oneDNN's order of bfloat16 on this CPU:"
        " torch runs instead"
    ]


def test_another_order_of_float32_is_torchs_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The same on any CPU, by an oneDNN that takes no AVX2: a policy loads, one line says what is
    taken, and products are torch's."""
    if os.environ.get(LIMIT) != WITHOUT_AVX2:
        own = test_another_order_of_float32_is_torchs_and_logged.__name__
        run_limited(WITHOUT_AVX2, f"{__file__}::{own}")
        return
    devices.warn_once.cache_clear()
    decoder = decoder_of("llama_gqa", "float32")
    assert decoder._one_row is None
    weight, exact = weight_of("float32", 192, 320)
    assert weight.blocks is None
    x = torch.randn(1, 320)
    torch.testing.assert_close(linear(x, weight), F.linear(x, exact), rtol=1e-5, atol=1e-5)
    assert caplog.messages == [
        "a pass of one token: Numba's product does not read oneDNN's order of float32 on this CPU:"
        " torch runs instead"
    ]


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
    return decoder


@pytest.mark.parametrize("language", ["llama_gqa", "qwen2_tied"])
@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("taps", [(), (0, 1)])
def test_a_layer_is_that_of_torchs_operators(
    kind: str, language: str, tree: bool, taps: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads that share K and V, a bias, a tree's token that does not see all before it; what is
    written to the KV cache too."""
    decoder = decoder_of(language, kind)
    assert decoder._one_row is not None
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


OTHER_CPU = """
from numba import types
from vla_ros.engine.layers.kernels import one_row_numba as functions
words, floats = types.Array(types.uint32, 3, "C"), types.Array(types.float32, 1, "C")
functions.multiply.compile((words, floats, floats))
print("VNNI" if functions.HAS_VNNI else "without VNNI")
"""


@pytest.mark.parametrize("cpu", ["skylake-avx512", "haswell"])
def test_a_processor_without_vnni_is_given_none_of_its_instructions(
    cpu: str, tmp_path: Path
) -> None:
    """LLVM ends the process over one: a Xeon Gold 61xx could load no token policy."""
    names = {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    command, env = [sys.executable, "-c", OTHER_CPU], {**os.environ, **names}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, "without VNNI"), done.stderr[-500:]
