from dataclasses import replace

import pytest
import torch

from support.engine import engine_of, images, observation
from support.train import CPU, SENTENCES, STATS, greedy
from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Timeline
from vla_ros.engine.families.lerobot import expected_tensors
from vla_ros.engine.families.openvla import (
    expected_shapes,
    load_checkpoint,
    random_tensors,
    save_checkpoint,
)
from vla_ros.engine.families.random import write_tokenizer
from vla_ros_lab.train.batches import TreePrefixLayout
from vla_ros_lab.train.flow import FLOW_ARCHITECTURES, FlowNetwork
from vla_ros_lab.train.network import Network, attend, sincos
from vla_ros_lab.train.trainer import ARCHITECTURES

CLOCK = SystemClock()


def warm(config, seed=0):
    """A network whose greedy tokens are actions and depend on the image."""
    network = Network(config, 6, seed)
    network.load_tensors(random_tensors(config, seed, CPU, torch.float32))
    return network


@pytest.mark.parametrize("arch", ["tiny", "tiny-draft"])
@pytest.mark.parametrize("cameras", [1, 2])
def test_the_exported_engine_says_what_the_network_says(tmp_path, arch, cameras):
    config = replace(ARCHITECTURES[arch], images=cameras)
    network = warm(config)
    tensors = {n: t.detach().to(torch.bfloat16) for n, t in network.tensors().items()}
    save_checkpoint(tmp_path / "policy", config, tensors, STATS, write_tokenizer)
    checkpoint = load_checkpoint(str(tmp_path / "policy"), CPU, torch.float32)
    network.load_tensors(checkpoint.tensors)
    engine = engine_of(checkpoint)
    said = set()
    for sentence in SENTENCES:
        engine.reset(sentence)
        for stamp, image in enumerate(images(4, seed=3, still=0.0)):
            seen = replace(observation(stamp, image), wrist_image=image[::-1].copy())
            answer = engine.step(seen, Timeline(CLOCK.steady_ns()), CLOCK)
            pixels = engine.robot.prepare(seen)[0]
            tokens = greedy(network, pixels, engine.policy.tokenizer(sentence), 7)
            assert tuple(tokens) == answer.tokens
            said.add(answer.tokens)
    assert len(said) > 2  # it did look at the images


def test_padding_and_neighbors_change_nothing():
    config = ARCHITECTURES["tiny"]
    network = warm(config)
    torch.manual_seed(1)
    pixels = torch.randn(3, 1, 3, 32, 32)
    lengths = [5, 12, 9]
    ids = torch.zeros(3, 12, dtype=torch.long)
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = torch.randint(1, 700, (length,))
    rows = torch.tensor([[length + config.patches - 1] for length in lengths])
    together, _, features = network(pixels, ids, rows, TreePrefixLayout(12 + config.patches))
    for n, length in enumerate(lengths):
        layout = TreePrefixLayout(length + config.patches)
        alone, _, seen = network(
            pixels[n : n + 1], ids[n : n + 1, :length], rows[n : n + 1], layout
        )
        assert torch.allclose(together[n], alone[0], atol=1e-4)
        assert torch.allclose(features[n], seen[0], atol=1e-4)


@pytest.mark.parametrize("arch", ["tiny", "tiny-draft"])
def test_a_branch_says_what_its_sentence_says_alone(arch):
    config = ARCHITECTURES[arch]
    network = warm(config)
    torch.manual_seed(2)
    pixels = torch.randn(2, 1, 3, 32, 32)
    common, branches = torch.randint(1, 700, (2, 4)), torch.randint(1, 700, (2, 3, 5))
    layout = TreePrefixLayout(4 + config.patches, 3, 5)
    rows = torch.arange(layout.common, layout.total).repeat(2, 1)
    together, _, _ = network(pixels, torch.cat((common, branches.flatten(1)), 1), rows, layout)
    for n in range(3):
        ids = torch.cat((common, branches[:, n]), 1)
        whole = TreePrefixLayout(9 + config.patches)
        last = torch.arange(layout.common, whole.common).repeat(2, 1)
        alone, _, _ = network(pixels, ids, last, whole)
        assert torch.allclose(together[:, 5 * n : 5 * n + 5], alone, atol=1e-4)


def test_every_parameter_learns():
    network = Network(ARCHITECTURES["tiny-draft"], 6)
    ids = torch.randint(0, 700, (2, 8))
    rows = torch.tensor([[20, 22], [21, 23]])
    logits, hidden, features = network(
        torch.randn(2, 1, 3, 32, 32), ids, rows, TreePrefixLayout(24)
    )
    outputs = (logits, network.place_head(hidden), network.patch_head(features))
    sum(out.square().mean() for out in outputs).backward()
    assert not [n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()]


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES | FLOW_ARCHITECTURES))
def test_tensors_are_those_of_a_checkpoint(arch):
    if arch in ARCHITECTURES:
        network, wanted = Network(ARCHITECTURES[arch], 6), expected_shapes(ARCHITECTURES[arch])
    else:
        config = FLOW_ARCHITECTURES[arch]
        network, wanted = FlowNetwork(config, 6), dict(expected_tensors(config).must)
    assert {name: tuple(t.shape) for name, t in network.tensors().items()} == wanted


def test_the_draft_has_other_tokens_and_fewer_parameters_than_its_target():
    target, draft = ARCHITECTURES["small"], ARCHITECTURES["qwen2-draft"]
    assert target.action_vocab != draft.action_vocab
    assert draft.text.kind == "qwen2" and draft.prompt_style == "qwen"
    language = [
        sum(p.numel() for p in Network(c, 6).text_tensors().values()) for c in (target, draft)
    ]
    assert language[1] < language[0] / 3


def test_positions_tell_every_patch_apart():
    table = sincos(64, 192)[0]
    assert table.shape == (64, 192)
    apart = torch.cdist(table, table) + 10 * torch.eye(64)
    assert apart.min() > 0.3
    assert torch.allclose(table.norm(dim=1), table.norm(dim=1)[0].expand(64))


@pytest.mark.parametrize(
    ("kind", "config"),
    [(Network, ARCHITECTURES["tiny"]), (FlowNetwork, FLOW_ARCHITECTURES["tiny-flow"])],
)
def test_the_same_seed_makes_the_same_network_and_leaves_the_generator_alone(kind, config):
    torch.manual_seed(5)
    first, other = kind(config, 6, 1), kind(config, 6, 2)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))
    again = kind(config, 6, 1).state_dict()
    assert all(torch.equal(t, again[n]) for n, t in first.state_dict().items())
    assert any(not torch.equal(t, again[n]) for n, t in other.state_dict().items())


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_torchs_with_its_gradients(masked):
    torch.manual_seed(0)
    q = torch.randn(2, 4, 9, 8, requires_grad=True)
    k, v = (torch.randn(2, 2, 9, 8, requires_grad=True) for _ in range(2))
    mask = (torch.rand(9, 9) > 0.5) | torch.eye(9, dtype=torch.bool) if masked else None
    got = attend(q, k, v, mask, 0.3)
    both = (x.repeat_interleave(2, 1) for x in (k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q, *both, attn_mask=mask, is_causal=not masked, scale=0.3
    ).transpose(1, 2)
    torch.testing.assert_close(got, wanted)
    aim = torch.randn_like(got)
    found, expected = (torch.autograd.grad(x, (q, k, v), aim) for x in (got, wanted))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
