"""pi0 against transformers' own, in the same process, with the same random weights.

Its table of times is float32, LeRobot's float64: at the steepest sine that is 8e-5, which
weights as loud as these make 1e-3. So the model is built with transformers' precision here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from support.flow import (
    LIKE,
    MemoryWeights,
    hugging_face_pi0,
    inputs_of,
    noise_of,
    tensors_of,
    tiny_flow,
)
from vla_ros.engine.io.config import TowerConfig
from vla_ros.engine.io.flow_config import FlowConfig
from vla_ros.engine.models.golden_ints import position_ids
from vla_ros.engine.models.pi0 import Pi0

pytest.importorskip("transformers.models.pi0", reason="transformers has no pi0")

WORDS = 7
_WIDE = tiny_flow("pi0").shapes
CASES = {
    "two cameras": tiny_flow("pi0"),
    "three cameras, 14 joints": tiny_flow("pi0", cameras=("a", "b", "c"), state_dim=13),
    "one camera, other sizes": tiny_flow(
        "pi0", cameras=("a",), state_dim=6, horizon=5, steps=3, image_size=42,
        shapes=replace(_WIDE, vision=TowerConfig(24, 3, 2, 40, image_size=42, patch=6)),
    ),
    "fewer heads in the expert": tiny_flow(
        "pi0", shapes=replace(_WIDE, expert=replace(_WIDE.expert, heads=3)),
    ),
}  # fmt: skip


def ours_of(config: FlowConfig) -> Pi0:
    weights = MemoryWeights(tensors_of(config))
    positions = position_ids(config, "exact")
    return Pi0(config, weights, positions, LIKE, time_precision=torch.float32)


def theirs(
    reference: Any, config: FlowConfig, present: list[bool], padding: int
) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Chunk, and x and v of every step; ``present`` cameras, ``padding`` masked text tokens."""
    pixels, ids, state = inputs_of(config, sum(present), WORDS)
    shown = torch.zeros(len(present), *pixels.shape[1:])
    shown[torch.tensor(present)] = pixels
    image = torch.full((sum(present) * config.view_tokens,), config.shapes.text.vocab_size)
    tokens = torch.cat([image, ids, torch.zeros(padding, dtype=torch.int64)])[None]
    mask = torch.ones_like(tokens)
    if padding:
        mask[:, -padding:] = 0
    steps: list[tuple[torch.Tensor, torch.Tensor]] = []
    forward = type(reference).forward

    def record(*args: Any, **kwargs: Any) -> Any:
        out = forward(reference, *args, **kwargs)
        steps.append((kwargs["noise"][0].clone(), out.logits[0].clone()))
        return out

    reference.forward = record
    chunk = reference.sample_actions(
        state[None], tokens, shown[None], noise_of(config)[None], attention_mask=mask,
        pixel_attention_mask=torch.tensor([present]),
    )  # fmt: skip
    del reference.forward
    return chunk[0], steps


@pytest.mark.parametrize("name", CASES)
def test_velocities_every_step_and_the_chunk(name: str) -> None:
    config = CASES[name]
    model, reference = ours_of(config), hugging_face_pi0(config)
    views = len(config.cameras)
    pixels, ids, state = inputs_of(config, views, WORDS)
    features = model.image_features(pixels)
    wanted = reference.model.vlm.get_image_features(pixels).pooler_output.flatten(0, 1)
    assert torch.allclose(features, wanted, atol=1e-5)
    chunk, steps = theirs(reference, config, [True] * views, padding=0)
    prefix = model.prefill(features, ids, state)
    for number, (x, velocity) in enumerate(steps):
        assert (model.denoise_step(prefix, x, number) - velocity).abs().max() < 1e-4
        assert velocity.abs().max() > 1
    assert (model.sample_actions(prefix, None, noise_of(config)) - chunk).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("present", "padding"),
    [([True, True, True], 9), ([True, False, True], 0), ([False, True, False], 4)],
)
def test_what_they_mask_out_is_left_out_here(present: list[bool], padding: int) -> None:
    """An absent camera, padding behind the prompt: the same numbers without computing them."""
    config = CASES["three cameras, 14 joints"]
    model, reference = ours_of(config), hugging_face_pi0(config)
    pixels, ids, state = inputs_of(config, sum(present), WORDS)
    chunk, _ = theirs(reference, config, present, padding)
    prefix = model.prefill(model.image_features(pixels), ids, state)
    assert len(prefix.mask) == sum(present) * config.view_tokens + WORDS
    assert (model.sample_actions(prefix, None, noise_of(config)) - chunk).abs().max() < 1e-4


def test_the_prefix_holds_their_keys_and_values() -> None:
    config = CASES["two cameras"]
    model, reference = ours_of(config), hugging_face_pi0(config)
    pixels, ids, state = inputs_of(config, 2, WORDS)
    prefix = model.prefill(model.image_features(pixels), ids, state)
    image = torch.full((2 * config.view_tokens,), config.shapes.text.vocab_size)
    tokens = torch.cat([image, ids])[None]
    inner = reference.model
    embedded = inner.embed_prefix(tokens, pixels[None], torch.ones(1, 2, dtype=torch.bool))
    cache = inner.vlm(
        inputs_embeds=embedded, attention_mask=torch.ones_like(tokens), use_cache=True,
        position_ids=torch.arange(tokens.shape[1])[None],
        token_type_ids=torch.zeros_like(tokens),
    ).past_key_values  # fmt: skip
    for layer, keys, values in zip(cache.layers, prefix.keys, prefix.values, strict=True):
        assert torch.allclose(layer.keys[0], keys, atol=1e-4)
        assert torch.allclose(layer.values[0], values, atol=1e-4)


def test_another_state_needs_no_new_prefix_in_pi0() -> None:
    config = CASES["two cameras"]
    model = ours_of(config)
    pixels, ids, state = inputs_of(config, 2, WORDS)
    other = inputs_of(config, 2, WORDS, "b")[2]
    noise = noise_of(config)
    wanted = model.sample_actions(
        model.prefill(model.image_features(pixels), ids, other), None, noise
    )
    prefix = model.prefill(model.image_features(pixels), ids, state)
    before = model.sample_actions(prefix, None, noise)
    assert torch.equal(model.sample_actions(prefix, other, noise), wanted)
    assert not torch.allclose(before, wanted, atol=1e-3)
