"""The flow network in training against the engine that serves it."""

from dataclasses import replace

import pytest
import torch

from support.flow import MemoryWeights
from vla_ros.engine.families.lerobot import build_model
from vla_ros_lab.train.flow import FLOW_ARCHITECTURES, FlowNetwork

TINY = FLOW_ARCHITECTURES["tiny-flow"]
TWO = replace(TINY, cameras=("front", "wrist"))


def stirred(config, seed=0):
    """A network none of whose parameters is nothing."""
    network = FlowNetwork(config, 6, seed)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=draw))
    return network


def served(network):
    config = network.config
    tensors = {n: t.detach().clone() for n, t in network.tensors().items()}
    positions = torch.arange(config.shapes.vision.patches)
    return build_model(config, MemoryWeights(tensors), positions, torch.empty(0))


def inputs(config, images=2, sentences=2, samples=2, seed=1):
    """Random images, instructions of 9 and 5 tokens, states, samples and times."""
    draw = torch.Generator().manual_seed(seed)
    side, shape = config.image_size, (images, sentences, samples)
    return {
        "pixels": torch.randn(images, len(config.cameras), 3, side, side, generator=draw),
        "ids": torch.randint(0, 700, (images, sentences, 12), generator=draw),
        "lengths": torch.tensor([[9, 5]]).expand(images, -1)[:, :sentences],
        "state": torch.randn(images, config.state_width, generator=draw),
        "x": torch.randn(*shape, config.horizon, config.action_width, generator=draw),
        "time": torch.rand(shape, generator=draw),
        "given": torch.zeros(*shape, config.horizon, dtype=torch.bool),
    }


@pytest.mark.parametrize("config", [TINY, TWO], ids=["one camera", "two cameras"])
@pytest.mark.parametrize("given", [0, 3])
def test_it_says_what_the_engine_says(config, given):
    network = stirred(config)
    model, step = served(network), 1
    data = inputs(config)
    data["time"][:] = model.solver.times[step]
    data["given"][..., :given] = True
    with torch.no_grad():
        speed, _, _ = network(**data)
    model.given = (torch.arange(config.horizon) < given)[:, None] if given else None
    for image in range(2):
        features = model.image_features(data["pixels"][image])
        for sentence in range(2):
            words = data["ids"][image, sentence, : data["lengths"][image, sentence]]
            prefix = model.prefill(features, words, data["state"][image])
            for sample in range(2):
                x = data["x"][image, sentence, sample]
                model.denoise_step(prefix, x, 0)  # leaves what is the same for all steps
                wanted = model.denoise_step(prefix, x, step, begin=False)
                torch.testing.assert_close(
                    speed[image, sentence, sample], wanted, atol=1e-5, rtol=1e-4
                )


def test_a_time_for_each_action_is_the_time_of_all_where_they_are_the_same():
    network, data = stirred(TINY), inputs(TINY)
    with torch.no_grad():
        data["time"][:] = 0.0
        plain, _, _ = network(**data)
        data["time"][:], data["given"][:] = 0.7, True  # every row given: every row at time 0
        torch.testing.assert_close(network(**data)[0], plain)
        data["given"][..., 2:] = False
        assert (network(**data)[0] - plain).abs().max() > 1e-3


def test_only_what_no_action_depends_on_has_no_gradient():
    """Of the last layer of the language model nothing but K and V is read."""
    network, data = stirred(TINY), inputs(TINY)
    speed, features, _ = network(**data)
    (speed.square().mean() + features.mean()).backward()
    unused = {n for n, t in network.named_parameters() if t.grad is None}
    last = "language_model/layers/1/"
    for name in unused:
        assert "_head" in name or last in name or "language_model/norm" in name, name
    assert not any("k_proj" in name or "v_proj" in name for name in unused)


def test_padding_of_a_sentence_is_not_seen():
    network, data = stirred(TINY), inputs(TINY)
    with torch.no_grad():
        before, _, _ = network(**data)
        data["ids"] = data["ids"].clone()
        data["ids"][0, 0, 9:] = 3
        data["ids"][:, 1, 5:] = 4
        torch.testing.assert_close(network(**data)[0], before)
        data["ids"][:, :, 2] = 5
        assert (network(**data)[0] - before).abs().max() > 1e-4
