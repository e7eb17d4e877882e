"""BitVLA: its decoder against transformers' BitNet, what it holds in memory, what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from support.engine import CLOCK, CPU, images
from vla_ros.core.types import Observation, Timeline
from vla_ros.engine import Engine, EngineOptions, load_engine
from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.families.openvla import (
    FAMILY,
    PRESETS,
    expected_shapes,
    load_checkpoint,
    write_random,
)
from vla_ros.engine.families.random import write_tokenizer
from vla_ros.engine.io.bitvla import EMBEDDING, FileRows
from vla_ros.engine.io.config import ModelConfig, bitvla_json, parse_config
from vla_ros.engine.layers.pack import PackLayout
from vla_ros.engine.layers.ternary import Ternary
from vla_ros.engine.load import inspect

TEXT = "pick up the red cube"
FRAMES = list(images(3, still=0.0))
Change = Callable[[dict[str, torch.Tensor]], None]


def tiny() -> ModelConfig:
    whole = PRESETS["bitvla-small"]
    text = replace(
        whole.text, hidden_size=64, intermediate_size=160, layers=2, heads=4, head_dim=16
    )
    tower = replace(whole.towers[0], width=48, depth=3, mlp=100, image_size=32, patch=8)
    return replace(whole, text=text, towers=(tower,))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, config = tmp_path_factory.mktemp("bitvla") / "tiny", tiny()
    folder.mkdir()
    write_random(folder, config, 0)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "copy"))


def engine_of(folder: Path, **options: Any) -> Engine:
    asked = {"dtype": "float32", "num_threads": 1, **options}
    return load_engine(EngineOptions(checkpoint=str(folder), decoding="parallel", **asked))


def seen(number: int = 0, **changes: Any) -> Observation:
    state = np.linspace(-1.5, 1.5, 8)
    what = Observation(number, number, CLOCK.steady_ns(), FRAMES[number], FRAMES[2], state)
    return replace(what, **changes)


class BitLinear(torch.nn.Linear):
    """As the authors and transformers (``integrations/bitnet.py``) have it, not compiled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        s = 1.0 / self.weight.abs().mean().clamp_(min=1e-5)
        weight = (self.weight * s).round().clamp(-1, 1) / s
        t = 127 / x.abs().max(dim=-1, keepdim=True).values.clamp_(min=1e-5)
        return F.linear((x * t).round().clamp(-128, 127) / t, weight)


def transformers_model(config: ModelConfig, tensors: dict[str, torch.Tensor]) -> Any:
    from transformers import BitNetConfig, BitNetModel

    text = config.text
    settings = BitNetConfig(
        vocab_size=text.vocab_size, hidden_size=text.hidden_size, rms_norm_eps=text.rms_eps,
        intermediate_size=text.intermediate_size, num_hidden_layers=text.layers,
        num_attention_heads=text.heads, num_key_value_heads=text.kv_heads,
        rope_parameters={"rope_type": "default", "rope_theta": text.rope_theta},
    )  # fmt: skip
    settings._attn_implementation = "eager"
    model = BitNetModel(settings)
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear):
            place, _, own = name.rpartition(".")
            new = BitLinear(module.in_features, module.out_features, bias=False)
            setattr(model.get_submodule(place), own, new)
    prefix = "language_model.model."
    own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    model.load_state_dict(own)
    return model.eval()


def test_the_decoder_is_transformers_bitnet(folder: Path) -> None:
    """Over frames, since a rounding that goes the other way may part a single one; see the golden
    test."""
    engine = engine_of(folder)
    theirs = transformers_model(tiny(), load_file(str(folder / "model.safetensors")))
    runner = engine.model.runner(1, 64)
    apart = []
    for seed in range(8):
        x = torch.randn(40, 64, generator=torch.Generator().manual_seed(seed))
        layout = PackLayout(rows=tuple(range(40)), prefill=40, causal=False)
        ours = runner.hidden(layout, x)
        with torch.inference_mode():
            mask = torch.zeros(1, 1, 40, 40)
            wanted = theirs(inputs_embeds=x[None], attention_mask=mask, use_cache=False)
        apart.append(float((ours - wanted.last_hidden_state[0]).abs().max()))
        runner.kv_cache.flush(False)
    print([f"{value:.1e}" for value in apart])
    assert float(np.median(apart)) < 2e-5  # of up to 4
    assert max(apart) < 0.3


def test_a_chunk_of_a_frame_its_words_and_the_state(folder: Path) -> None:
    engine = engine_of(folder)
    engine.reset(TEXT)

    def chunk(what: Observation) -> np.ndarray:
        answer = engine.step(what, Timeline(0), CLOCK)
        assert answer is not None
        assert answer.target_passes == 1
        return answer.actions

    first = chunk(seen())
    assert first.shape == (8, 7)
    assert np.array_equal(chunk(seen()), first)
    changes: list[dict[str, Any]] = [
        {"proprio": np.zeros(8)}, {"wrist_image": FRAMES[1]}, {"image": FRAMES[1]},
    ]  # fmt: skip
    assert all(np.abs(chunk(seen(**change)) - first).max() > 1e-3 for change in changes)
    engine.reset("open the drawer")
    assert np.abs(chunk(seen()) - first).max() > 1e-3


def test_bfloat16_says_nearly_the_same(folder: Path) -> None:
    answers = []
    for dtype in ("float32", "bfloat16"):
        engine = engine_of(folder, dtype=dtype)
        engine.reset(TEXT)
        answer = engine.step(seen(), Timeline(0), CLOCK)
        assert answer is not None
        answers.append(answer.actions)
    assert np.abs(answers[0] - answers[1]).max() < 0.25
    assert np.abs(answers[0]).max() > 0.1


def test_weights_stay_two_bits_and_words_on_the_disk(folder: Path) -> None:
    config = tiny()
    checkpoint = load_checkpoint(str(folder), CPU, torch.bfloat16)
    text, (tower,) = config.text, config.towers
    layer = text.hidden_size * (2 * text.hidden_size + 2 * 32 + 3 * text.intermediate_size)
    block = 4 * tower.width**2 + 2 * tower.width * tower.mlp
    ternary = [m for m in checkpoint.quantized.values() if isinstance(m, Ternary)]
    assert sum(m.parameters for m in ternary) == 2 * layer + 2 * block
    # 48 and 100 columns are no multiple of 32: a few bits of a row are idle
    assert sum(m.packed.nbytes for m in ternary) < 1.4 * (2 * layer + 2 * block) / 4
    assert EMBEDDING not in checkpoint.tensors
    assert not [n for n in checkpoint.tensors if "_proj.weight" in n]


def test_the_published_size_fits() -> None:
    """Bytes that stay, from the shapes: all that is ternary at two bits, the rest at bfloat16."""
    config = PRESETS["bitvla"]
    shapes = expected_shapes(config)
    assert 2.8e9 < FAMILY.parameters(config) < 3.0e9
    layers = [n for n in shapes if ".layers." in n and len(shapes[n]) == 2]
    bits = {n: 2 if n in layers else 16 for n in shapes if n != EMBEDDING}
    total = sum(bits[n] / 8 * torch.Size(shapes[n]).numel() for n in bits)
    assert 0.75e9 < total < 0.80e9


LOADED = """
import sys
import torch
from dataclasses import replace
from vla_ros_lab.bench.memory import forget_peak, peak_bytes, resident_bytes
from vla_ros.engine.families.openvla import (PRESETS, draw_bitvla)

torch.set_num_threads(1)
torch.ones(64, 64) @ torch.ones(64, 64)
config = PRESETS["bitvla"]
config = replace(config, text=replace(config.text, layers=4))
forget_peak("cpu")
before = resident_bytes("cpu")
like = torch.empty(0, dtype=torch.bfloat16)
parts = draw_bitvla(config, 0, like)
held = sum(t.nbytes for t in (*parts.tensors.values(), *parts.ternary.values()))
print(held, resident_bytes("cpu") - before, peak_bytes("cpu") - before)
"""


@pytest.mark.slow
def test_loading_takes_little_more_than_what_stays() -> None:
    """Four layers of the published width: what stays, and while loading one tensor of float32 and
    what is made of it beside them; not all that was ever freed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", LOADED], env=environment, capture_output=True, text=True, check=True
    )
    stays, grown, peak = map(int, done.stdout.split())
    assert 300e6 < stays < 350e6
    assert grown < stays + 60e6
    assert peak < stays + 400e6


def test_words_are_read_from_a_file_that_is_gone_but_not_from_one_that_was_written_over(
    folder: Path,
) -> None:
    path = folder / "model.safetensors"
    table = load_file(str(path))[EMBEDDING]
    rows = FileRows(path, EMBEDDING, torch.empty(0))
    assert torch.equal(rows.take([5, 0, 703]), table[[5, 0, 703]])
    again = FileRows(path, EMBEDDING, torch.empty(0, dtype=torch.bfloat16))
    assert torch.equal(again.take([9]), table[[9]].bfloat16())
    shutil.copyfile(path, folder / "kept")
    path.unlink()
    assert torch.equal(rows.take([5]), table[[5]])
    shutil.copyfile(folder / "kept", path)
    late = FileRows(path, EMBEDDING, torch.empty(0))
    with path.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(CheckpointError, match="was written over while it is used: load it again"):
        late.take([5])


def test_what_is_written_is_read_back() -> None:
    for preset in ("bitvla", "bitvla-small"):
        assert parse_config(bitvla_json(PRESETS[preset])) == PRESETS[preset]


@pytest.mark.parametrize(
    ("where", "change", "said"),
    [
        ("", {"vision_feature_layer": -1}, "vision_feature_layer is -1: wanted -2"),
        ("", {"vision_feature_select_strategy": "default"}, "wanted full: every patch has a token"),
        ("", {"projector_hidden_act": "relu"}, "projector_hidden_act is 'relu': wanted 'gelu'"),
        ("", {"image_sequence_len": 4}, "image_sequence_len is 4: one to three"),
        ("", {"parallel_decoding": False}, "BitVLA without an action head, which says no actions"),
        ("text_config", {"model_type": "llama"}, "text_config.model_type is 'llama': wanted one"),
        ("text_config", {"hidden_act": "gelu"}, "text_config.hidden_act is 'gelu'"),
        ("text_config", {"attention_bias": True}, "text_config.attention_bias is True"),
        ("text_config", {"num_attention_heads": 5}, "these do not go together"),
        ("vision_config", {"vit_weight_bits": 8}, "vit_weight_bits 8 and vit_act_bits 8: 1 and 8"),
        ("vision_config", {"layer_norm_eps": 1e-5}, "layer_norm_eps is 1e-05: wanted 1e-06"),
        ("vision_config", {"hidden_act": "relu"}, "hidden_act is 'relu': wanted one of gelu_"),
    ],
)
def test_a_config_that_is_not_computed(folder: Path, where: str, change: dict, said: str) -> None:
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    (raw[where] if where else raw).update(change)
    path.write_text(json.dumps(raw))
    with pytest.raises(CheckpointError) as error:
        inspect(str(folder))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image_processor_type": "CLIPImageProcessor"}, "image_processor_type is 'CLIPImage"),
        ({"size": {"height": 64, "width": 64}}, "size.height is 64: wanted 32"),
        ({"do_rescale": False}, "do_rescale is False"),
        ({"image_std": [0.5, 0, 0.5]}, "image_std is [0.5, 0, 0.5]: wanted numbers above 0"),
    ],
)
def test_a_processor_that_is_not_computed(folder: Path, change: dict, said: str) -> None:
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError) as error:
        inspect(str(folder))
    assert said in str(error.value)


def _nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["language_model.model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")


def _nan_word(tensors: dict[str, torch.Tensor]) -> None:
    tensors[EMBEDDING][700, 1] = float("inf")


def _missing(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["language_model.model.layers.0.mlp.ffn_sub_norm.weight"]


def _extra(tensors: dict[str, torch.Tensor]) -> None:
    tensors["language_model.model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)


def _shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["vision_tower.vision_model.encoder.layers.1.mlp.fc1.weight"] = torch.zeros(48, 100)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_nan, "layers.1.mlp.up_proj.weight holds NaN or infinity"),
        (_nan_word, "embed_tokens.weight holds NaN or infinity"),
        (_missing, "1 missing: language_model.model.layers.0.mlp.ffn_sub_norm.weight"),
        (_extra, "1 extra: language_model.model.layers.0.self_attn.q_proj.bias"),
        (_shape, "mlp.fc1.weight is [48, 100], wanted [100, 48]"),
    ],
)
def test_damaged_weights(folder: Path, change: Change, said: str) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(str(path))
    change(tensors)
    save_file(tensors, str(path))
    with pytest.raises(CheckpointError) as error:
        engine_of(folder)
    assert said in str(error.value)


def test_a_file_that_was_cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is no whole safetensors file"):
        engine_of(folder)


def test_what_the_authors_tower_has_and_nobody_reads(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(str(path))
    tower = "vision_tower.vision_model."
    for name in ("post_layernorm.weight", "head.probe", "encoder.layers.2.mlp.fc1.weight"):
        tensors[tower + name] = torch.zeros(2)
    tensors["language_model.lm_head.weight"] = torch.zeros(2)
    save_file(tensors, str(path))
    assert inspect(str(folder)).parameters == FAMILY.parameters(tiny())


def test_a_tower_that_is_not_ternary(folder: Path) -> None:
    """BitVLA with SigLIP in bfloat16, of which there is one published too."""
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    del raw["vision_config"]["vit_weight_bits"], raw["vision_config"]["vit_act_bits"]
    path.write_text(json.dumps(raw))
    checkpoint = load_checkpoint(str(folder), CPU, torch.float32)
    stored = load_file(str(folder / "model.safetensors"))
    layer = "vision_tower.vision_model.encoder.layers.0.self_attn."
    wanted = torch.cat([stored[f"{layer}{n}_proj.weight"] for n in "qkv"])
    own = "vision_backbone.featurizer.blocks.0.attn.qkv.weight"
    assert torch.equal(checkpoint.tensors[own], wanted)
    assert not any(name.startswith("vision") for name in checkpoint.quantized)
    engine_of(folder).reset(TEXT)


def test_another_tokenizer_and_other_sizes(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="actions have 7 dimensions, wanted 14"):
        engine_of(folder, action_dim=14)
    write_tokenizer(folder / "tokenizer.json")
    with pytest.raises(CheckpointError, match=r"lacks <\|end_of_text\|>, <\|eot_id\|>: the model"):
        engine_of(folder)


def test_a_release_before_it_is_converted(folder: Path) -> None:
    (folder / "action_head--10000_checkpoint.pt").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="run `vla-ros convert"):
        engine_of(folder)


def test_what_a_frame_must_have(folder: Path) -> None:
    engine = engine_of(folder)
    engine.reset(TEXT)
    with pytest.raises(ValueError, match="needs a wrist image"):
        engine.step(seen(wrist_image=None), Timeline(0), CLOCK)
    with pytest.raises(ValueError, match="needs 8 values of robot state, there are none"):
        engine.step(seen(proprio=None), Timeline(0), CLOCK)
    with pytest.raises(ValueError, match="there are 9"):
        engine.step(seen(proprio=np.zeros(9)), Timeline(0), CLOCK)
    with pytest.raises(InvalidAction, match="not finite"):
        engine.step(seen(proprio=np.full(8, np.nan)), Timeline(0), CLOCK)
    assert engine.step(seen(), Timeline(0), CLOCK) is not None


def test_decodings_and_formats_that_do_not_fit(folder: Path) -> None:
    with pytest.raises(ValueError, match="an OFT checkpoint"):
        load_engine(EngineOptions(checkpoint=str(folder), decoding="speculative"))
    with pytest.raises(ValueError, match="two bits as they are: leave out weights"):
        engine_of(folder, weights="int8")
