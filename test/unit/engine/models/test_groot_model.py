"""A whole GR00T N1.7 against NVIDIA's, and what is done once, in graphs, or never."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unit.engine.models import groot_small as small
from vla_ros.engine.layers.flow_matching import Guidance, RtcMode
from vla_ros.engine.models.base import Prefix
from vla_ros.engine.models.groot import GrootModel

BOUND = 2e-5  # of up to 2; 1.1e-5 on a CPU without AVX-512


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    return small.golden()


@pytest.fixture(scope="module")
def model() -> GrootModel:
    return small.model()


def prefix_of(model: GrootModel) -> Prefix:
    return model.prefill(model.image_features(small.pixels()), small.ids(), small.state())


def test_pixels_to_a_chunk_are_nvidias(model: GrootModel, golden: dict[str, np.ndarray]) -> None:
    prefix = prefix_of(model)
    found = {"chunk": small.off(model.sample_actions(prefix, None, small.noise()), golden["chunk"])}
    x = small.noise()
    for step, theirs in enumerate(golden["velocities"]):
        v = model.denoise_step(prefix, x, step, begin=step == 0)
        found[f"velocity {step}"] = small.off(v, theirs)
        x = x + v / model.config.steps
    assert np.abs(golden["chunk"]).max() > 1
    assert max(found.values()) < BOUND, found


def recorded(runs: list[object]) -> object:
    def capture(function):  # type: ignore[no-untyped-def]
        function()
        runs.append(function)
        return function

    return capture


def test_graphs_say_the_same_at_every_length_and_are_made_before(
    golden: dict[str, np.ndarray],
) -> None:
    runs: list[object] = []
    model = small.model(recorded(runs))  # type: ignore[arg-type]
    features = model.image_features(small.pixels())
    model.capture_graphs(len(features), (None, RtcMode.GUIDED))
    made = len(runs)
    prefix = prefix_of(model)
    assert len(prefix.mask) > int(prefix.mask.sum()) == len(small.ids())
    assert small.off(model.sample_actions(prefix, None, small.noise()), golden["chunk"]) < BOUND
    assert len(runs) == made == model.captured.count


def test_a_shorter_prompt_after_a_longer_one_leaves_nothing_of_it(model: GrootModel) -> None:
    short = torch.cat((small.ids()[:24], small.ids()[-2:]))
    first = model.prefill(model.image_features(small.pixels()), short, small.state())
    alone = model.sample_actions(first, None, small.noise())
    prefix_of(model)
    again = model.prefill(model.image_features(small.pixels()), short, small.state())
    assert torch.equal(model.sample_actions(again, None, small.noise()), alone)
    assert not torch.equal(model.sample_actions(prefix_of(model), None, small.noise()), alone)


def test_a_state_that_was_rolled_ahead_replaces_the_prefixs(model: GrootModel) -> None:
    chunk = model.sample_actions(prefix_of(model), small.state() + 1, small.noise())
    prefix = model.prefill(model.image_features(small.pixels()), small.ids(), small.state() + 1)
    assert torch.equal(chunk, model.sample_actions(prefix, None, small.noise()))


def test_a_robot_with_fewer_actions_gets_the_first_ones(golden: dict[str, np.ndarray]) -> None:
    model = small.model(horizon=4)
    chunk = model.sample_actions(prefix_of(model), None, small.noise())
    assert small.off(chunk, golden["chunk"][:4]) < BOUND
    held = Guidance(chunk + 0.5, torch.ones(4), limit=100.0)
    guided = model.sample_actions(prefix_of(model), None, small.noise(), held)
    assert (guided - held.previous).abs().max() < (chunk - held.previous).abs().max()


@pytest.mark.parametrize("how", [RtcMode.GUIDED, RtcMode.GUIDED_VJP])
def test_guidance_pulls_a_chunk_towards_the_one_before(model: GrootModel, how: RtcMode) -> None:
    prefix = prefix_of(model)
    free = model.sample_actions(prefix, None, small.noise())
    guidance = Guidance(free + 0.3, torch.ones(7), mode=how)
    guided = model.sample_actions(prefix, None, small.noise(), guidance)
    assert (guided - guidance.previous).abs().mean() < 0.2
    nothing = Guidance(free + 0.3, torch.zeros(7), mode=how)
    assert torch.equal(model.sample_actions(prefix, None, small.noise(), nothing), free)


def test_what_cannot_be_is_refused(model: GrootModel) -> None:
    prefix = prefix_of(model)
    with pytest.raises(ValueError, match="noise"):
        model.sample_actions(prefix, None, None)
    with pytest.raises(ValueError, match="one time for all"):
        model.sample_actions(
            prefix,
            None,
            small.noise(),
            Guidance(small.noise(), torch.ones(7), mode=RtcMode.TRAINED),
        )
    with pytest.raises(ValueError, match="18 rows of images, there are 9"):
        model.prefill(model.image_features(small.pixels()[:1]), small.ids(), small.state())
    with pytest.raises(ValueError, match="at most 42 rows, wanted 50"):
        model.prefill(model.image_features(small.pixels()), torch.arange(50), small.state())
    prefix_of(model)
    with pytest.raises(ValueError, match="written over"):
        model.sample_actions(prefix, None, small.noise())
