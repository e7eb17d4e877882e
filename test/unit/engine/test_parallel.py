"""OpenVLA-OFT: one bidirectional pass and the L1 head, against a plain reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from support.engine import CLOCK, CPU, TEXTS, Again, engine_of, images, tiny_config
from vla_ros.core.types import Observation, Timeline
from vla_ros.engine.families.openvla import in_memory
from vla_ros.engine.io.checkpoint import Checkpoint
from vla_ros_lab.hugging_face import build_causal_lm

FRAMES = list(images(2, still=0.0))


def oft(proprio: int, views: int, seed: int = 0) -> Checkpoint:
    config = replace(tiny_config(), parallel=True, chunk=8, proprio_dim=proprio, images=views)
    checkpoint = in_memory(config, seed, CPU, torch.float32, 7)
    stats = {"q01": [-2.0] * proprio, "q99": [2.0] * proprio, "mask": [True] * proprio}
    norm = {"random": {**checkpoint.norm_stats["random"], "proprio": stats}}
    return replace(checkpoint, norm_stats=norm)


def see(proprio: np.ndarray | None) -> Observation:
    return Observation(3, 3, CLOCK.steady_ns(), FRAMES[0], FRAMES[1], proprio)


def reference(engine, checkpoint: Checkpoint, state: np.ndarray | None) -> np.ndarray:  # type: ignore[no-untyped-def]
    """transformers' Llama under a mask that hides nothing, and the head written out."""
    t, model = checkpoint.tensors, engine.model
    request = engine.encode(see(state), Timeline(0), CLOCK)
    prompt, patches = request.prompt, model.config.patches
    parts = [prompt[: 1 + patches]]
    if state is not None:
        scaled = torch.tensor(np.clip(state / 2.0, -1, 1), dtype=torch.float32)
        p = "proprio_projector."
        inner = F.gelu(F.linear(scaled[None], t[p + "fc1.weight"], t[p + "fc1.bias"]))
        parts.append(F.linear(inner, t[p + "fc2.weight"], t[p + "fc2.bias"]))
    parts += [prompt[1 + patches :], torch.zeros(56, 64), model.decoder.embed(torch.tensor([2]))]
    x = torch.cat(parts)[None]
    hidden = build_causal_lm(model.config.text, t).model(
        inputs_embeds=x, attention_mask=torch.zeros(1, 1, x.shape[1], x.shape[1]), use_cache=False
    )
    states = hidden.last_hidden_state[0, -58:-2].reshape(8, 7 * 64)
    h = "action_head.model."
    y = F.layer_norm(states, (448,), t[h + "layer_norm1.weight"], t[h + "layer_norm1.bias"])
    y = F.relu(F.linear(y, t[h + "fc1.weight"], t[h + "fc1.bias"]))
    for i in range(2):
        b = f"{h}mlp_resnet_blocks.{i}.ffn."
        z = F.layer_norm(y, (64,), t[b + "0.weight"], t[b + "0.bias"])
        y = y + F.relu(F.linear(z, t[b + "1.weight"], t[b + "1.bias"]))
    y = F.layer_norm(y, (64,), t[h + "layer_norm2.weight"], t[h + "layer_norm2.bias"])
    values: np.ndarray = F.linear(y, t[h + "fc2.weight"], t[h + "fc2.bias"]).double().numpy()
    return values


@pytest.mark.parametrize(("proprio", "views"), [(0, 1), (8, 2)])
def test_a_chunk_equals_the_reference(proprio: int, views: int) -> None:
    checkpoint = oft(proprio, views)
    engine = engine_of(checkpoint, "parallel")
    engine.reset(TEXTS[0])
    state = np.linspace(-3, 3, proprio) if proprio else None
    with torch.inference_mode():
        wanted = reference(engine, checkpoint, state)
    inference = engine.step(see(state), Timeline(0), CLOCK)
    assert inference is not None
    assert inference.actions.shape == (8, 7)
    assert inference.target_passes == 1
    assert engine.info.chunk_length == 8
    expected = engine.robot.normalizer.restore(wanted)
    np.testing.assert_allclose(inference.actions, expected, atol=1e-4)
    assert np.ptp(inference.actions) > 1e-3


@pytest.mark.parametrize(("proprio", "views"), [(0, 1), (8, 2)])
def test_captured_it_says_the_same_and_captures_nothing_in_service(
    proprio: int, views: int
) -> None:
    """Whatever the instruction's length: a graph's prompt is padded, and the padding is not
    seen."""
    checkpoint, capture = oft(proprio, views), Again()
    plain, graphed = engine_of(checkpoint, "parallel"), engine_of(checkpoint, "parallel", capture)
    state = np.linspace(-3, 3, proprio) if proprio else None
    found = []
    for text in TEXTS:
        for engine in (plain, graphed):
            engine.reset(text)
        wanted, got = (e.step(see(state), Timeline(0), CLOCK) for e in (plain, graphed))
        assert wanted is not None and got is not None
        np.testing.assert_allclose(got.actions, wanted.actions, atol=1e-5)
        found.append(capture.captured)
    assert found[0] == found[-1] > 0, "all at the first frame"


def test_the_robots_state_and_the_wrist_are_asked_for() -> None:
    engine = engine_of(oft(8, 2), "parallel")
    engine.reset(TEXTS[0])
    with pytest.raises(ValueError, match="needs 8 values of robot state, there are none"):
        engine.step(see(None), Timeline(0), CLOCK)
    with pytest.raises(ValueError, match="there are 5"):
        engine.step(see(np.zeros(5)), Timeline(0), CLOCK)
    with pytest.raises(ValueError, match="needs a wrist image"):
        engine.step(replace(see(np.zeros(8)), wrist_image=None), Timeline(0), CLOCK)


def test_an_oft_checkpoint_has_no_tokens_to_decode() -> None:
    with pytest.raises(ValueError, match="an OFT checkpoint"):
        engine_of(oft(0, 1), "autoregressive")
