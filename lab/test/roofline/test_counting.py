"""The arithmetic is what torch counts on the same shapes; the weights are those loaded."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from vla_ros.engine.families.base import LoadOptions, Placement
from vla_ros.engine.families.lerobot import PRESETS as FLOW_PRESETS
from vla_ros.engine.families.openvla import PRESETS, expected_shapes, write_random
from vla_ros.engine.families.registry import family_of, write_folder
from vla_ros.engine.io.config import ModelConfig, TextConfig, TowerConfig, text_json
from vla_ros.engine.io.weights import Expected
from vla_ros.engine.models.towers import Projector, VisionBackbone
from vla_ros_lab.roofline import roofline as stages
from vla_ros_lab.roofline.shapes import (
    KNOWN,
    DecoderShape,
    ExpertShape,
    TowerShape,
    flow_shape_of,
    load_model,
    shape_of,
)
from vla_ros_lab.roofline.work import Precision, Segment, attention, linear, parse_precision

TOWERS = (
    TowerConfig(96, 4, 3, 256, image_size=64, patch=8, class_token=True, registers=4),
    TowerConfig(64, 3, 2, 192, image_size=64, patch=8),
)
LLAMA = TextConfig(
    "llama", vocab_size=320, hidden_size=128, intermediate_size=352, layers=3, heads=4,
    kv_heads=4, head_dim=32,
)  # fmt: skip
GQA = replace(LLAMA, kind="qwen2", kv_heads=2, tied=True)


def flops(run) -> float:
    torch.set_num_threads(1)
    # the fused attention of a CPU is not counted, its plain matrix products are
    plain = sdpa_kernel(SDPBackend.MATH)
    with torch.no_grad(), plain, FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def total(ops) -> float:
    return sum(op.flops for op in ops)


@pytest.mark.parametrize("towers", [TOWERS, TOWERS[:1]])
def test_vision_and_projector_are_what_torch_counts(towers):
    model = shape_of(ModelConfig(LLAMA, towers, 256), "tiny")
    backbone = VisionBackbone(towers)
    pixels = tuple(torch.zeros(1, 3, 64, 64) for _ in towers)
    counted = flops(lambda: backbone(pixels))
    assert total(stages.vision(model)) == pytest.approx(counted, rel=0.001)
    width = sum(t.width for t in towers)
    project = Projector(width, LLAMA.hidden_size, len(towers) == 2)
    counted = flops(lambda: project(torch.zeros(1, 64, width)))
    assert total(stages.projector(model)) == pytest.approx(counted, rel=0.001)


@pytest.mark.parametrize("text", [LLAMA, GQA])
def test_a_decoder_pass_is_what_torch_counts(text):
    config = (Qwen2Config if text.kind == "qwen2" else LlamaConfig)(**text_json(text))
    config._attn_implementation = "eager"  # whole square of scores, counted as such
    net = (Qwen2ForCausalLM if text.kind == "qwen2" else LlamaForCausalLM)(config)
    counted = flops(lambda: net(torch.zeros(1, 20, dtype=torch.long)))
    shape = shape_of(ModelConfig(text, TOWERS, 256), "tiny").decoder
    ours = total(stages.decoder_pass(shape, (Segment(20, causal=False),), 20))
    assert ours == pytest.approx(counted, rel=0.002)  # RoPE's outer product is theirs alone


@pytest.mark.parametrize("name", ["openvla-7b", "minivla", "small"])
def test_weights_in_memory_are_the_tensors_of_the_checkpoint(name):
    shapes = expected_shapes(PRESETS[name])
    elements = sum(math.prod(shape) for shape in shapes.values())
    ones = dict.fromkeys(("vision", "decoder", "head", "expert"), 1.0)
    # without biases, norms and position embeddings: some per mille in a large model
    assert stages.weight_bytes(load_model(name), ones) == pytest.approx(elements, rel=0.02)


@pytest.mark.parametrize(
    ("name", "parameters"), [("pi0", 3.3e9), ("smolvla", 0.45e9), ("openvla-oft", 7.7e9)]
)
def test_models_of_others_are_as_large_as_published(name, parameters):
    ones = dict.fromkeys(("vision", "decoder", "head", "expert"), 1.0)
    assert stages.weight_bytes(load_model(name), ones) == pytest.approx(parameters, rel=0.12)


def test_the_figures_of_openvla_7b():
    model = load_model("openvla-7b")
    assert model.prompt == 281
    assert model.decoder.weights == pytest.approx(6.476e9, rel=1e-3)
    assert total(stages.prefill(model)) == pytest.approx(3.66e12, rel=0.005)
    front = stages.vision(model) + stages.projector(model)
    assert total(front) == pytest.approx(0.405e12, rel=0.005)
    bf16 = Precision()
    read = sum(bf16.traffic(op, activations=False) for op in stages.decode(model))
    assert read == pytest.approx(13.36e9, rel=0.002)
    assert sum(bf16.traffic(op, False) for op in front) == pytest.approx(1.51e9, rel=0.01)
    kv = sum(op.kv for op in stages.prefill(model)) * 2
    assert kv == pytest.approx(147e6, rel=0.005)


def test_a_packed_pass_is_a_prefill_and_one_decode_for_each_other_frame():
    model = load_model("small")
    apart = total(stages.prefill(model)) + 6 * total(stages.decode(model))
    assert total(stages.packed(model)) == pytest.approx(apart)


def test_attention_sees_the_past_and_half_of_its_own_square():
    op = attention("decoder", (Segment(3, past=10),), queries=8, keys=4)
    pairs = 3 * 10 + (1 + 2 + 3)
    assert op.flops == 4 * pairs * 2 * 4
    assert op.kv == 2 * 13 * 4  # keys and values of one head
    both = attention("decoder", (Segment(3, 10, causal=False),), 8, 4)
    assert both.flops == 4 * (3 * 10 + 9) * 2 * 4


def test_formats_change_the_traffic_of_their_part_alone():
    weights, cache = (
        linear("x", "decoder", 1, 10, 10),
        attention("decoder", (Segment(1, 9),), 8, 8),
    )
    int4 = parse_precision("int4")
    assert int4.traffic(weights, False) == 100 * 4.5 / 8
    assert int4.compute(weights) == "bf16"  # weight-only
    assert int4.traffic(cache, False) == cache.kv * 2
    assert int4.vision == "bf16"
    assert parse_precision("decoder=int8,kv=fp8") == Precision(decoder="int8", kv="fp8")
    assert parse_precision("fp32").kv == "fp32"
    assert parse_precision("int8").compute(weights) == "int8"


def test_two_bits_a_weight_are_computed_in_int8():
    weights = linear("x", "decoder", 1, 10, 10)
    ternary = parse_precision("vision=ternary,decoder=ternary")
    assert ternary.traffic(weights, False) == 25
    assert (ternary.compute(weights), ternary.head) == ("int8", "bf16")
    published = load_model("bitvla").decoder
    assert 2.0e9 < published.weights < 2.1e9
    assert (published.vocab, published.table) == (0, 0)  # no tokens said, its words on the disk


@pytest.mark.parametrize("text", ["fp7", "brain=int8", "kv=int4", "decoder="])
def test_formats_nobody_has_are_refused(text):
    with pytest.raises(ValueError, match=r"give|there are"):
        parse_precision(text)


def test_a_checkpoint_directory_is_a_model(tmp_path):
    write_random(tmp_path, PRESETS["small"], seed=0)
    found = load_model(str(tmp_path))
    assert found.decoder == load_model("small").decoder
    assert load_model(str(tmp_path / "config.json")).towers == load_model("small").towers


@pytest.mark.parametrize("name", KNOWN)
def test_a_model_goes_by_the_name_that_bench_and_the_policy_know(name):
    assert load_model(f"random:{name}") == load_model(name)


def test_a_shipped_policy_is_a_model():
    assert load_model("shipped:tabletop").decoder == load_model("small").decoder


def test_a_hub_id_is_read_from_the_local_copy_and_never_downloaded(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=r"somebody/policy.*no copy of it on this machine"):
        load_model("somebody/policy")
    repository = tmp_path / "models--somebody--policy"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    write_random(repository / "snapshots" / "abc", PRESETS["small"], seed=0)
    assert load_model("somebody/policy").decoder == load_model("small").decoder


@pytest.mark.parametrize("name", ["random:nope", "shipped:nope", "nope", "a/b/c"])
def test_a_name_nobody_knows_is_refused_with_those_there_are(name):
    with pytest.raises(ValueError, match=name):
        load_model(name)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"text_config": {"hidden_size": "x"}}'])
def test_what_is_no_checkpoint_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json"):
        load_model(str(tmp_path))


def test_a_prompt_shorter_than_its_images_is_refused():
    with pytest.raises(ValueError, match="256"):
        load_model("openvla-7b").with_prompt(256)
    assert load_model("openvla-7b").with_prompt(300).prompt == 300
    assert load_model("pi0").with_images(3).prompt == 3 * 256 + 48


def test_the_expert_without_cross_attention_is_a_decoder():
    pi0 = load_model("pi0")
    expert = pi0.expert
    assert expert is not None
    assert isinstance(expert.decoder, DecoderShape)
    ends = sum(2 * expert.rows * i * o for i, o in expert.ends)
    layers = stages.layer(expert.decoder, (Segment(50, pi0.prompt + 1, causal=False),), "expert")
    assert total(stages.expert_step(pi0)) == pytest.approx(18 * total(layers) + ends)


@pytest.mark.parametrize(
    ("name", "front", "prefix", "step", "read_prefix", "read_step"),
    [
        ("smolvla", 425, 58, 10.9, 0.51, 0.20),
        ("pi0", 437, 2266, 36, 4.8, 0.62),
        ("pi05", 656, 3975, 39, 4.8, 0.86),  # three views
    ],
)
def test_flow_policies_cost_what_was_counted_by_hand(
    name, front, prefix, step, read_prefix, read_step
):
    """GFLOP and GB of weights in bf16, as the original programs run them, within 2 %.

    Counted from the shapes in lerobot's and vla.cpp's sources, without this file.
    """
    model = load_model(name)
    seen = stages.vision(model) + stages.projector(model)
    filled, moved = stages.flow_prefix(model, naive=True), stages.expert_step(model, naive=True)
    assert total(seen) / 1e9 == pytest.approx(front, rel=0.02)
    assert total(filled) / 1e9 == pytest.approx(prefix, rel=0.02)
    assert total(moved) / 1e9 == pytest.approx(step, rel=0.02)
    weights = [2e-9 * sum(op.weights for op in ops) for ops in (seen + filled, moved)]
    assert weights == pytest.approx([read_prefix, read_step], rel=0.02)


#: Read by hand off the authors' sources: what the tensors' names and shapes must give.
GROOT_HEAD = DecoderShape(1536, 6144, 32, 1536, 1536, gated=False)
EXPERTS = {
    "groot-n1.7": ExpertShape(
        GROOT_HEAD, rows=41, steps=4, cross_layers=16, cross_width=2048,
        ends=((132, 1536), (3072, 1536), (1536, 1536), (1536, 1024), (1024, 1024), (1024, 132)),
        timed_weights=2 * 1536**2 * 33 + 1536 * (1536 + 256), reads_hidden=True, cross_share=0.5,
        refine=((2048, 8192), (2048, 8192), (8192, 2048)) * 4,
    ),
    "groot-n1.5": ExpertShape(
        replace(GROOT_HEAD, layers=16), rows=49, steps=4, cross_layers=8, cross_width=2048,
        ends=((32, 1536), (3072, 1536), (1536, 1536), (1536, 1024), (1024, 1024), (1024, 32)),
        timed_weights=2 * 1536**2 * 17 + 1536 * (1536 + 256), reads_hidden=True,
        refine=((2048, 8192), (2048, 8192), (8192, 2048)) * 4,
    ),
}  # fmt: skip
TOWERS_AND_DECODERS = {
    "groot-n1.6": (
        TowerShape(1152, 27, 4304, 324), DecoderShape(2048, 6144, 16, 2048, 1024, 0, 151680),
    ),
    "turbovla": (
        TowerShape(768, 12, 3072, 256, prefix=5, patch=16),
        DecoderShape(256, 1024, 0, 256, 256, gated=False),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPERTS)
def test_an_expert_is_what_its_tensors_say(name):
    assert load_model(name).expert == EXPERTS[name]


@pytest.mark.parametrize("name", TOWERS_AND_DECODERS)
def test_tower_and_language_model_are_what_their_tensors_say(name):
    found = load_model(f"random:{name}")
    assert (*found.towers, found.decoder) == TOWERS_AND_DECODERS[name]


def test_tensors_under_other_names_are_refused_in_one_line(monkeypatch):
    family = SimpleNamespace(expected=lambda config: Expected({"blocks.0.up.weight": (8, 4)}))
    monkeypatch.setattr("vla_ros.engine.families.registry.family_of_kind", lambda kind: family)
    with pytest.raises(ValueError, match="mine: its tensors are not named as other families' are"):
        flow_shape_of(SimpleNamespace(kind="mine", steps=4), "mine")


@pytest.mark.parametrize("preset", ["smolvla-small", "pi0-small", "pi05-small"])
def test_a_flow_policy_runs_what_is_counted(preset):
    """The engine's own matrix products and attention, as torch counts them."""
    policy = family_of(f"random:{preset}").load(
        f"random:{preset}", LoadOptions(), Placement(torch.device("cpu"), torch.float32)
    )
    config, engine = policy.config, policy.model
    model = flow_shape_of(config, preset)
    pixels = torch.zeros(2, 3, config.image_size, config.image_size)
    ids, state = torch.arange(config.max_text), torch.zeros(config.state_width)
    noise = torch.zeros(config.horizon, config.action_width)
    features = engine.image_features(pixels)
    prefix = engine.prefill(features, ids, state)
    seen = total(stages.vision(model)) + total(stages.projector(model))
    assert flops(lambda: engine.image_features(pixels)) == pytest.approx(seen, rel=0.01)
    counted = flops(lambda: engine.prefill(features, ids, state))
    assert counted == pytest.approx(total(stages.flow_prefix(model)), rel=0.03)
    step = flops(lambda: engine.denoise_step(engine.prefill(features, ids, state), noise, 0, False))
    step -= counted
    # the two maps before the SiLU are one matrix here
    assert step == pytest.approx(total(stages.expert_step(model)), rel=0.1)
    prefix = engine.prefill(features, ids, state)
    chunk = flops(lambda: engine.sample_actions(prefix, None, noise))
    once = total(stages.expert_once(model))
    assert chunk == pytest.approx(config.steps * step + once, rel=0.03)


def test_evo1_costs_what_was_counted_by_hand():
    """GFLOP and GB of weights in bf16 with three views and 1024 tokens, counted from LeRobot's
    sources; the causal half of the prefix's attention is not counted there."""
    model = load_model("evo1").with_images(3).with_prompt(1024)
    seen = stages.vision(model) + stages.projector(model)
    filled, moved = stages.flow_prefix(model), stages.expert_step(model, naive=True)
    assert total(seen) / 1e9 == pytest.approx(2167, rel=0.02)
    assert total(filled) / 1e9 == pytest.approx(480, rel=0.1)
    assert total(moved) / 1e9 == pytest.approx(34, rel=0.02)
    weights = [2e-9 * sum(op.weights for op in ops) for ops in (seen + filled, moved)]
    assert weights == pytest.approx([1.0, 0.24], rel=0.05)


def test_evo1_runs_what_is_counted():
    """The engine's own matrix products and attention, as torch counts them."""
    family = family_of("random:evo1-small")
    place = Placement(torch.device("cpu"), torch.float32)
    policy = family.load("random:evo1-small", LoadOptions(), place)
    config, engine = policy.config, policy.model
    given = engine.example(9, torch.Generator().manual_seed(0))
    noise = torch.zeros(config.horizon, config.action_width)
    features = engine.image_features(given.pixels)
    prefix = engine.prefill(features, given.ids, given.state)
    model = flow_shape_of(config, "evo1-small").with_prompt(len(prefix.mask) - 1)
    seen = total(stages.vision(model)) + total(stages.projector(model))
    assert flops(lambda: engine.image_features(given.pixels)) == pytest.approx(seen, rel=0.01)
    once = total(stages.expert_once(model))  # with the prefix: it depends on nothing else
    counted = flops(lambda: engine.prefill(features, given.ids, given.state))
    causal = total(stages.flow_prefix(model)) + once
    assert counted == pytest.approx(causal, rel=0.1)  # masked, not left out
    prefix = engine.prefill(features, given.ids, given.state)
    step = flops(lambda: engine.denoise_step(prefix, noise, 0, False))
    assert step == pytest.approx(total(stages.expert_step(model)), rel=0.02)
    chunk = flops(lambda: engine.sample_actions(prefix, None, noise))
    assert chunk == pytest.approx(config.steps * step, rel=0.01)
    naive = flops(lambda: engine.denoise_step(prefix, noise, 0))
    assert naive == pytest.approx(total(stages.expert_step(model, naive=True)), rel=0.02)


def test_a_folder_of_lerobot_is_a_model(tmp_path):
    write_folder(tmp_path, FLOW_PRESETS["pi05-small"], seed=0)
    assert load_model(str(tmp_path)).expert == load_model("random:pi05-small").expert
