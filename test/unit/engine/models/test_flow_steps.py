"""The steps of a flow policy's layers: one kernel each where they are tuned, the same chunk."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from support.engine import CPU, Again
from support.flow import chunk_of, chunk_of_preset, inputs_of, model_of, tiny_flow, tuned_model
from support.launches import Always, launches, stand_in
from vla_ros.engine.families.base import Placement
from vla_ros.engine.families.registry import all_presets, config_of
from vla_ros.engine.io.flow_config import FlowConfig
from vla_ros.engine.layers.flow_matching import Guidance, RtcMode
from vla_ros.engine.layers.tiles import Tile
from vla_ros.engine.load import tuned_parts
from vla_ros.engine.models import transformer
from vla_ros.engine.models.vlm_with_expert import VLMWithExpert
from vla_ros.engine.options import EngineOptions

KINDS = ("pi0", "pi05", "smolvla")
#: kernels of a chunk of the published depths (vision, prefill, all steps of the solver): with
#: torch's steps of a layer, with Triton's
COUNTED = {
    "pi0": ((275, 385, 4062), (275, 86, 984)),
    "pi05": ((275, 385, 4762), (275, 86, 982)),
    "smolvla": ((127, 356, 3570), (127, 76, 930)),
}
WAYS = (Tile(32, 16, 32, stages=1),)


@pytest.fixture(autouse=True)
def any_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ways in float32 too, and stand-ins for Triton's kernels."""
    stand_in(monkeypatch)
    for name in ("paired_ways", "sum_ways"):
        monkeypatch.setattr(transformer, name, lambda rows, dtype: WAYS)
    monkeypatch.setattr(transformer, "attention_ways", lambda dtype: WAYS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_chunk_is_the_same(kind: str) -> None:
    config = tiny_flow(kind)
    one, other = tuned_model(config, Always()), model_of(config, Again())
    for name in "ab":  # the second replays what was captured
        torch.testing.assert_close(
            chunk_of(one, config, name), chunk_of(other, config, name), atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_guided_chunk_is_the_same(kind: str) -> None:
    config = tiny_flow(kind)
    previous = torch.randn(
        config.horizon, config.action_width, generator=torch.Generator().manual_seed(3)
    )
    guidance = Guidance(previous, torch.linspace(1, 0, config.horizon), 2)
    chunks = [
        chunk_of(m, config, "a", guidance)
        for m in (tuned_model(config, Always()), model_of(config))
    ]
    torch.testing.assert_close(*chunks, atol=1e-4, rtol=1e-4)


def test_rows_with_times_of_their_own_take_torchs_steps() -> None:
    """pi0.5, some actions given: each row has a scale and a shift."""
    config = tiny_flow("pi05", rtc_trained=True)
    weights = torch.zeros(config.horizon)
    weights[:3] = 1
    previous = torch.randn(
        config.horizon, config.action_width, generator=torch.Generator().manual_seed(3)
    )
    guidance = Guidance(previous, weights, 3, mode=RtcMode.TRAINED)
    chunks = [
        chunk_of(m, config, "a", guidance)
        for m in (tuned_model(config, Always()), model_of(config))
    ]
    torch.testing.assert_close(*chunks, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "preset", [n for n, c in all_presets().items() if n.endswith("-small") and c.kind != "tokens"]
)
def test_every_familys_chunk_is_the_same(preset: str) -> None:
    """Also of those whose layers have biases, or are others: their products are tuned."""
    if preset.startswith("pi0_fast"):
        pytest.skip("it says tokens, and takes no tuner")
    chunks, tuner = [], Always()
    for place in (
        Placement(CPU, torch.float32, Again()),
        Placement(
            CPU, torch.float32, tuner.while_capturing(Again()),
            packed=tuned_parts(EngineOptions()), tuner=tuner,
        ),
    ):  # fmt: skip
        chunks.append(chunk_of_preset(preset, place))
    assert tuner._taken or preset == "turbovla-small"  # whose matrices are no decoder's
    torch.testing.assert_close(*chunks, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("groups", [(4, 1), (6, 3), (3, 3)])
@pytest.mark.parametrize("masks", [None, 1, 5])
def test_attention_as_cuda_is_asked_for_it(groups: tuple[int, int], masks: int | None) -> None:
    """Heads that share K and V as rows of one, with masks of one row and of each."""
    (heads, kv), random = groups, torch.Generator().manual_seed(0)
    q = torch.randn(5, heads + 2, 8, generator=random)[:, :heads].transpose(0, 1)
    k, v = (torch.randn(kv, 12, 8, generator=random)[:, :9] for _ in "kv")
    mask = None if masks is None else torch.zeros(masks, 9)
    if mask is not None:
        mask[:, 2] = mask[0, 4:] = float("-inf")
    given = q, k, v, mask
    one, other = transformer._attend_sdpa(*given), transformer._attend_products(*given)
    torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def deep(kind: str) -> FlowConfig:
    """The depths and steps that are published, of widths that run at once."""
    small, real = tiny_flow(kind), config_of(f"random:{kind}")
    shapes = replace(
        small.shapes,
        vision=replace(small.shapes.vision, depth=real.shapes.vision.depth),
        text=replace(small.shapes.text, layers=real.shapes.text.layers),
        expert=replace(small.shapes.expert, layers=real.shapes.expert.layers),
    )
    return replace(small, shapes=shapes, steps=real.steps)


def counted(model: VLMWithExpert, config: FlowConfig) -> tuple[int, ...]:
    """Kernels of the three functions that are captured: vision, prefill, steps."""
    chunk_of(model, config)  # what is chosen is chosen now
    pixels, ids, _ = inputs_of(config, 2, 11)
    with torch.no_grad():
        span, _ = model.embed_prefix(model.image_features(pixels), ids)
    pixels = pixels.to(model.dtype)
    calls = (
        lambda: model.encode_images(pixels),
        lambda: model.fill_kv_cache(span),
        lambda: model._steps(span, None),
    )
    return tuple(launches(call).count for call in calls)


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_of_a_chunk(kind: str) -> None:
    config = deep(kind)
    plain = counted(model_of(config, Again(), torch.bfloat16), config)
    fused = counted(tuned_model(config, Always(), torch.bfloat16), config)
    assert (plain, fused) == COUNTED[kind]
    assert sum(fused) <= 1500
