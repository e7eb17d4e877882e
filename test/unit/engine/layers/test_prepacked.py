"""Weights as a CPU multiplies them: the same numbers, and none of them twice in memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from support.engine import CPU, TEXTS, engine_of, play, stream, tiny, tiny_config
from vla_ros.engine.layers.linear import LowBitLinear, linear, linear_gelu, plain, rows_of
from vla_ros.engine.layers.prepacked import Prepacked, can_prepack
from vla_ros.engine.models import openvla
from vla_ros.engine.models.openvla import VLAModel
from vla_ros.engine.options import EngineOptions
from vla_ros_lab.model_drafter import towers_equal

DTYPES = [dtype for dtype in (torch.float32, torch.bfloat16) if can_prepack(CPU, dtype)]
pytestmark = pytest.mark.skipif(not DTYPES, reason="oneDNN is not there")


@given(
    rows=st.integers(0, 12),
    shape=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    dtype=st.sampled_from(DTYPES),
    biased=st.booleans(),
    strided=st.booleans(),
)
def test_the_product_is_that_of_the_matrix(
    rows: int, shape: tuple[int, int], dtype: torch.dtype, biased: bool, strided: bool
) -> None:
    torch.manual_seed(0)
    count, width = shape
    weight = torch.randn(shape).to(dtype)
    bias = torch.randn(count).to(dtype) if biased else None
    x = torch.randn(rows, 2 * width).to(dtype)
    x = x[:, :width] if strided else x[:, width:].contiguous()
    packed = Prepacked.of(weight)
    assert torch.equal(packed.whole(), weight)
    wanted = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    got = linear(x, packed, bias)
    assert got.dtype == dtype and got.shape == (rows, count)
    limit = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(got.double(), wanted, atol=limit * 4, rtol=limit)


@pytest.mark.parametrize("shape", [(16,), (1, 16), (1, 3, 16), (2, 1, 16)])
def test_any_number_of_dimensions(shape: tuple[int, ...]) -> None:
    """More results than inputs, so that nothing can be cut off unseen."""
    weight, x = torch.randn(40, 16), torch.randn(shape)
    torch.testing.assert_close(linear(x, Prepacked.of(weight)), F.linear(x, weight))


def test_some_rows_of_a_packed_matrix() -> None:
    weight = torch.randn(30, 16)
    some = rows_of(Prepacked.of(weight), range(7, 19))
    assert isinstance(some, Prepacked) and len(some) == 12
    assert torch.equal(plain(some), weight[7:19])


@pytest.fixture(params=[False, True], ids=["AVX2", "AVX512"])
def wide(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the vision tower's matrices are packed too, as on a CPU with AVX-512."""
    monkeypatch.setattr(openvla, "has_wide_products", lambda device, dtype: request.param)
    return bool(request.param)


@pytest.mark.parametrize("language", ["llama_gqa", "qwen2_tied"])
def test_what_is_packed_is_kept_once_and_can_be_had_again(language: str, wide: bool) -> None:
    checkpoint = tiny(tiny_config(language))
    before = dict(checkpoint.tensors)
    model = VLAModel(checkpoint, CPU, torch.float32)
    gone = set(before) - set(model.tensors)
    eyes = {name for name in gone if not name.startswith("language_model.")}
    # a tied head is the embedding too
    assert len(gone - eyes) == 2 * 7 + (language == "llama_gqa")
    maps = [m for m in model.vision.modules() if isinstance(m, LowBitLinear)]
    assert len(eyes) == len(maps)
    assert bool(eyes) == wide
    assert wide != any(isinstance(m, torch.nn.Linear) for m in model.vision.modules())
    assert set(checkpoint.tensors) == set(before)  # whose it is
    again = model.unpacked()
    assert set(again) == set(before)
    assert all(torch.equal(again[name], before[name]) for name in before)
    assert model.parameters == sum(t.numel() for t in before.values())
    assert model.nbytes == sum(t.nbytes for t in before.values())


def test_a_packed_tower_sees_the_same_and_is_known_for_the_same(wide: bool) -> None:
    model = VLAModel(tiny(seed=3), CPU, torch.float32)
    pixels = tuple(torch.randn(1, 3, t.image_size, t.image_size) for t in model.config.towers)
    whole = VLAModel(tiny(seed=3), CPU, torch.float32, pack_vision=False)
    with torch.inference_mode():
        wanted = torch.cat([t(p) for t, p in zip(whole.vision.vision_backbone.towers, pixels)], -1)  # noqa: B905
    seen = model.features(pixels)
    torch.testing.assert_close(seen, wanted.flatten(0, 1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.project(seen), whole.project(seen), atol=1e-5, rtol=1e-5)
    assert towers_equal(model, whole)
    other = tiny(seed=3)
    name = next(n for n in other.tensors if n.startswith("vision_backbone.") and "qkv" in n)
    other.tensors[name] = other.tensors[name].clone()
    other.tensors[name].flatten()[0] += 1e-3
    assert not towers_equal(model, VLAModel(other, CPU, torch.float32))


def test_plain_weights_say_the_same() -> None:
    """In fp32, where both round alike but for the order of the sums."""
    events = stream(8, {0: TEXTS[0]})
    engine = engine_of(tiny(seed=2))
    answers = play(engine, events)
    options = EngineOptions(decoding="generate")
    other = engine_of(tiny(seed=2))
    other.model.decoder = VLAModel(tiny(seed=2), CPU, torch.float32, options).decoder
    other.decoder.decoding = type(other.decoder.decoding)(other.model, 7, 400)  # type: ignore[call-arg]
    assert {s: a.tokens for s, a in play(other, events).items()} == {
        s: a.tokens for s, a in answers.items()
    }


def test_a_torch_without_these_calls_multiplies_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object) -> torch.Tensor:
        raise NotImplementedError("Could not run 'mkldnn::_reorder_linear_weight'")

    can_prepack.cache_clear()
    monkeypatch.setattr(Prepacked, "of", missing)
    assert not can_prepack(CPU, torch.float32)
    monkeypatch.undo()
    can_prepack.cache_clear()
    assert can_prepack(CPU, torch.float32)


def test_where_nothing_is_packed() -> None:
    assert not can_prepack(torch.device("cuda"), torch.bfloat16)
    assert not can_prepack(CPU, torch.float16)
    words = {name for name in tiny().tensors if name.startswith("language_model.")}
    assert words <= set(engine_of(tiny(), "generate").model.tensors)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 5])
def test_gelu_within_the_product(rows: int, dtype: torch.dtype, approximate: str) -> None:
    plain_map = torch.nn.Linear(48, 40).to(dtype).requires_grad_(False)
    packed = LowBitLinear(Prepacked.of(plain_map.weight), plain_map.bias)
    x = torch.randn(rows, 48).to(dtype)
    sums = F.linear(x.double(), plain_map.weight.double(), plain_map.bias.double())
    wanted = F.gelu(sums, approximate=approximate)
    limit = 1e-5 if dtype == torch.float32 else 1e-2
    for each in (plain_map, packed):
        found = linear_gelu(each, x, approximate)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), wanted, atol=limit, rtol=limit)
