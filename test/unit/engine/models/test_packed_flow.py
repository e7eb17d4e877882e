"""Flow policies whose matrices are laid out for the CPU say what plain ones say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from support.engine import CLOCK, images
from vla_ros.core.types import Executing, Observation, Timeline
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.engine import Engine
from vla_ros.engine.io.quantize import DECODER, HEAD, VISION
from vla_ros.engine.layers.int8 import Int8
from vla_ros.engine.layers.linear import LowBitLinear
from vla_ros.engine.layers.prepacked import Prepacked, can_prepack
from vla_ros.engine.load import packed_parts

CPU = torch.device("cpu")
FRONT, WRIST = images(2, still=0.0)
PRESETS = (
    "pi0-small", "pi05-small", "smolvla-small", "evo1-small", "groot-n1.5-small",
    "groot-n1.6-small", "groot-n1.7-small",
)  # fmt: skip
PACKS = pytest.mark.skipif(not can_prepack(CPU, torch.float32), reason="oneDNN packs nothing here")


@pytest.fixture(params=["AVX2", "AVX512"])
def capability(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As if the processor had it: which parts are packed is a rule, packing runs on any."""
    name: str = request.param
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: name)
    return name


def engine_of(preset: str, **options: Any) -> Engine:
    engine = load_engine(EngineOptions(f"random:{preset}", **options))
    engine.reset("pick up the red cube")
    return engine


def chunk(engine: Engine, stamp: int = 1, executing: Executing | None = None) -> np.ndarray:
    proprio = np.random.default_rng(stamp).normal(size=9)
    seen = Observation(stamp, stamp, 0, FRONT, WRIST, proprio, executing=executing)
    return engine.step(seen, Timeline(0), CLOCK).actions


def weights_of(model: Any) -> list[Any]:
    """All matrices of a model, wherever they hang."""
    found, open_, known = [], [model], set()
    while open_:
        one = open_.pop()
        if id(one) in known or isinstance(one, type):
            continue
        known.add(id(one))
        if isinstance(one, Prepacked | Int8):
            found.append(one)
        elif isinstance(one, torch.nn.Module):
            open_ += [*one.modules(), *vars(one).values()]
        elif isinstance(one, dict):
            open_ += one.values()
        elif isinstance(one, list | tuple):
            open_ += one
        elif type(one).__module__.startswith("vla_ros.engine"):
            names = getattr(type(one), "__slots__", ()) or vars(one)
            open_ += [getattr(one, name, None) for name in names]
    return found


@PACKS
@pytest.mark.parametrize("preset", PRESETS)
def test_the_chunk_is_that_of_plain_products(
    preset: str, capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = engine_of(preset)
    assert any(isinstance(w, Prepacked) for w in weights_of(packed.model))
    said = chunk(packed)
    monkeypatch.setattr("vla_ros.engine.load.packed_parts", lambda *_: frozenset())
    plain = engine_of(preset)
    assert not weights_of(plain.model)
    assert np.abs(said - chunk(plain)).max() < 2e-5
    assert np.array_equal(said, chunk(packed)), "the same at every call"


@PACKS
def test_towers_and_prefixes_are_packed_where_that_is_faster(capability: str) -> None:
    parts = packed_parts(CPU, torch.float32, EngineOptions())
    assert parts == ({HEAD, VISION, DECODER} if capability == "AVX512" else {HEAD})
    model = engine_of("smolvla-small").model
    packed = capability == "AVX512"
    assert isinstance(model.tower.blocks[0].mlp.fc1, LowBitLinear) == packed
    assert isinstance(model.layers[0].qkv, Prepacked) == packed
    assert isinstance(model._expert[0].qkv, Prepacked)
    assert packed_parts(torch.device("cuda"), torch.float32, EngineOptions()) == frozenset()


@PACKS
def test_what_a_gradient_goes_through_stays_plain(capability: str) -> None:
    options = EngineOptions(rtc_mode="guided_vjp")
    assert HEAD not in packed_parts(CPU, torch.float32, options)
    engine = engine_of("pi0-small", rtc_mode="guided_vjp")
    chunk(engine)
    assert np.isfinite(chunk(engine, 2, Executing(1, 2, 2))).all()


@PACKS
def test_a_format_goes_before_packing(capability: str) -> None:
    """Of a policy whose expert is in int8 the other parts are packed, if any."""
    if capability == "AVX512" and not can_prepack(CPU, torch.bfloat16):
        pytest.skip("oneDNN packs no bfloat16 here")
    engine = engine_of("smolvla-small", dtype="bfloat16", weights="head=int8")
    found = weights_of(engine.model)
    assert any(isinstance(w, Int8) for w in found)
    assert any(isinstance(w, Prepacked) for w in found) == (capability == "AVX512")
    assert np.isfinite(chunk(engine)).all()
