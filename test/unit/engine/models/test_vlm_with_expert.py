"""Static memory: what a CUDA graph would capture, tested with a capture that only runs again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from support.flow import inputs_of, model_of, noise_of, tiny_flow
from vla_ros.engine.layers.flow_matching import Guidance
from vla_ros.engine.models.base import BUCKET, Prefix
from vla_ros.engine.models.vlm_with_expert import VLMWithExpert

KINDS = ("pi0", "pi05", "smolvla")
Run = Callable[[], tuple[torch.Tensor, ...]]


class Again:
    """A capture that keeps functions, as a graph keeps kernels, and runs them again."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, function: Run) -> Run:
        for _ in range(3):  # as CUDA warms up: it must leave nothing behind
            function()
        self.captured += 1
        result = function()

        def replay() -> tuple[torch.Tensor, ...]:
            self.replayed += 1
            fresh = function()
            assert [t.shape for t in fresh] == [t.shape for t in result]
            return fresh

        return replay


def encode(model: VLMWithExpert, views: int, words: int, name: str = "a") -> Prefix:
    pixels, ids, state = inputs_of(model.config, views, words, name)
    return model.prefill(model.image_features(pixels), ids, state)


def addresses(model: VLMWithExpert) -> list[int]:
    """Of everything that two replays have in common."""
    sample = model.sample
    tensors = (
        model.key_cache, model.value_cache, model.cos, model.sin, model.state, model._x,
        model._prefix_mask, model._suffix_mask, sample.noise, sample.x, sample.previous,
        sample.weights, sample.gains, *model._pixels.values(),
    )  # fmt: skip
    return [t.data_ptr() for t in tensors]


@pytest.mark.parametrize("kind", KINDS)
def test_with_graphs_the_same_chunks_from_padded_prefixes(kind: str) -> None:
    config = tiny_flow(kind)
    plain, padded = model_of(config), model_of(config, Again())
    for views, words in ((2, 5), (1, 9), (2, 6), (2, 30), (2, 5)):
        name = f"{views} {words}"
        want = plain.sample_actions(encode(plain, views, words, name), None, noise_of(config, name))
        got = padded.sample_actions(
            encode(padded, views, words, name), None, noise_of(config, name)
        )
        assert (got - want).abs().max() < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_moves_and_a_graph_serves_a_bucket_of_lengths(kind: str) -> None:
    config, capture = tiny_flow(kind), Again()
    model = model_of(config, capture)
    first = encode(model, 2, 5)
    model.sample_actions(first, None, noise_of(config))
    assert capture.captured == 3  # vision, prefix, all solver steps
    before, length = addresses(model), len(first.mask)
    assert length % BUCKET == 0
    most = length - int(first.mask.sum()) + 5
    for words in range(5, most + 1):
        prefix = encode(model, 2, words, str(words))
        model.sample_actions(prefix, None, noise_of(config, str(words)))
        assert len(prefix.mask) == length
        assert prefix.keys[0].data_ptr() == first.keys[0].data_ptr()
    assert capture.captured == 3
    assert addresses(model) == before
    encode(model, 2, most + 1)
    assert capture.captured == 4  # a longer prefix, the same memory
    assert addresses(model) == before
    model.sample_actions(encode(model, 2, 5), None, noise_of(config), guidance_for(model))
    assert capture.captured == 5
    assert addresses(model) == before


def guidance_for(model: VLMWithExpert) -> Guidance:
    return Guidance(torch.ones(model.horizon, model.width), torch.ones(model.horizon))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("capture", [None, Again])
def test_nothing_of_the_chunk_before_is_left(kind: str, capture: type[Again] | None) -> None:
    """Not even after a prefix and a chunk that were not finite, guided and longer."""
    config = tiny_flow(kind)
    model = model_of(config, capture and capture())
    want = model.sample_actions(encode(model, 2, 5), None, noise_of(config))
    pixels, ids, state = inputs_of(config, 2, 28, "other")
    bad = model.prefill(model.image_features(pixels * float("nan")), ids, state * float("nan"))
    noise = noise_of(config, "other")
    chunk = model.sample_actions(bad, None, noise * float("inf"), guidance_for(model))
    assert not chunk.isfinite().all()
    again = model.sample_actions(encode(model, 2, 5), None, noise_of(config))
    assert torch.equal(again, want)


@pytest.mark.parametrize("kind", KINDS)
def test_keys_and_values_are_written_once_and_never_copied(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prefix's rows hold still while the solver steps; only suffix rows change."""
    config = tiny_flow(kind)
    model = model_of(config)
    prefix = encode(model, 2, 5)
    kept = [t.clone() for t in (*prefix.keys, *prefix.values)]
    versions = []
    velocity = model.velocity
    monkeypatch.setattr(
        model, "velocity", lambda *a: versions.append(prefix.keys[0].data_ptr()) or velocity(*a)
    )
    model.sample_actions(prefix, None, noise_of(config))
    assert len(versions) == config.steps
    for before, now in zip(kept, (*prefix.keys, *prefix.values), strict=True):
        assert torch.equal(before, now)
    assert prefix.keys[0].data_ptr() == model.key_cache[0].data_ptr()


@pytest.mark.parametrize("kind", KINDS)
def test_every_input_moves_the_chunk(kind: str) -> None:
    config = tiny_flow(kind)
    model = model_of(config)
    pixels, ids, state = inputs_of(config, 2, 5)

    def chunk(p: torch.Tensor, i: torch.Tensor, s: torch.Tensor, n: str = "a") -> torch.Tensor:
        return model.sample_actions(
            model.prefill(model.image_features(p), i, s), None, noise_of(config, n)
        )

    want = chunk(pixels, ids, state)
    other = pixels.clone()
    other[1, :, :7, :7] += 0.5
    assert (chunk(other, ids, state) - want).abs().max() > 1e-3
    assert (chunk(pixels.flip(0), ids, state) - want).abs().max() > 1e-3
    assert (chunk(pixels, ids.flip(0), state) - want).abs().max() > 1e-3
    assert (chunk(pixels, ids, state, "b") - want).abs().max() > 1e-3
    moved = (chunk(pixels, ids, state + 0.1) - want).abs().max()
    assert moved == 0 if kind == "pi05" else moved > 1e-3  # pi0.5's state is in the words


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_stays_near_float32(kind: str) -> None:
    config = tiny_flow(kind)
    exact, low = model_of(config), model_of(config, dtype=torch.bfloat16)
    want = exact.sample_actions(encode(exact, 2, 5), None, noise_of(config))
    got = low.sample_actions(encode(low, 2, 5), None, noise_of(config))
    assert got.dtype == torch.float32
    assert (got - want).norm() < 0.1 * want.norm()
    assert encode(low, 2, 5).keys[0].dtype == torch.bfloat16
