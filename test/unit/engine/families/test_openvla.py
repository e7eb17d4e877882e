"""Checkpoint directories: what fits is read, everything else is refused with a list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.engine import CPU, tiny_config
from support.folders import tensors
from support.releases import read_back
from vla_ros.engine import CheckpointError, EngineOptions, load_engine
from vla_ros.engine.families.openvla import (
    FAMILY,
    PRESETS,
    load_checkpoint,
    policy_of,
    write_random,
)
from vla_ros.engine.io.config import BACKBONES, config_json, parse_config


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_random(tmp_path / "it", tiny_config(towers="fused"), seed=1)
    return tmp_path / "it"


def test_it_reads_back_what_was_written(directory: Path) -> None:
    checkpoint = read_back(directory)
    assert checkpoint.config == tiny_config(towers="fused")
    assert len(checkpoint.sha256) == 64
    assert read_back(directory).sha256 == checkpoint.sha256


def test_shards_behind_an_index(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    names = sorted(tensors)
    (directory / "model.safetensors").unlink()
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, own in parts.items():
        save_file({n: tensors[n] for n in own}, directory / file)
    index = {"weight_map": {n: f for f, own in parts.items() for n in own}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    assert set(read_back(directory).tensors) == set(names)
    (directory / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks the shards b\.safetensors"):
        read_back(directory)


def test_missing_extra_and_misshapen_tensors_are_all_listed(directory: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["language_model.model.norm.weight"]
        tensors["what.is.this"] = torch.zeros(1)
        tensors["projector.fc1.bias"] = torch.zeros(3)

    tensors(change)(directory)
    with pytest.raises(CheckpointError) as error:
        read_back(directory)
    for part in (
        "1 missing: language_model.model.norm.weight",
        "1 extra: what.is.this",
        "projector.fc1.bias is [3], wanted [256]",
    ):
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_tensors_the_family_carries_but_never_uses_are_no_error(directory: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        base = "vision_backbone.fused_featurizer."
        tensors[base + "attn_pool.latent"] = torch.zeros(1)
        tensors[base + "norm.weight"] = torch.zeros(1)
        tensors[base + "blocks.2.norm1.weight"] = torch.zeros(1)  # depth 3: the last block

    tensors(change)(directory)
    read_back(directory)
    tensors(lambda t: t.update({"vision_backbone.featurizer.blocks.1.x": torch.zeros(1)}))(
        directory
    )
    with pytest.raises(CheckpointError, match=r"1 extra: vision_backbone.featurizer.blocks.1.x"):
        read_back(directory)


def test_dataset_statistics_override_the_config(directory: Path) -> None:
    stats = {"mine": {"action": {"q01": [0.0] * 7, "q99": [2.0] * 7}}}
    (directory / "dataset_statistics.json").write_text(json.dumps(stats))
    engine = load_engine(EngineOptions(checkpoint=str(directory)))
    assert engine.robot.normalizer.high.tolist() == [2.0] * 7
    with pytest.raises(CheckpointError, match=r"'yours' is unknown; \S+ has: mine"):
        load_engine(EngineOptions(checkpoint=str(directory), unnorm_key="yours"))
    with pytest.raises(CheckpointError, match="actions have 7 dimensions, wanted 8"):
        load_engine(EngineOptions(checkpoint=str(directory), action_dim=8))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "random:nothing",
            "there are random:small, random:small-oft, random:small-chunk, random:cpu",
        ),
        ("/no/such/place", "neither a directory nor a hub id"),
        ("justaname", "neither a directory nor a hub id"),
    ],
)
def test_names_that_lead_nowhere(name: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_engine(EngineOptions(checkpoint=name))


def test_openvla_7bs_own_config_describes_openvla_7b() -> None:
    """The keys that the published config.json has; everything else is a default."""
    config = parse_config({
        "vision_backbone_id": "dinosiglip-vit-so-224px", "llm_backbone_id": "llama2-7b-pure",
        "use_fused_vision_backbone": True, "image_resize_strategy": "resize-naive",
        "pad_to_multiple_of": 64, "n_action_bins": 256,
        "text_config": {"model_type": "llama", "vocab_size": 32064},
    })  # fmt: skip
    assert config == PRESETS["openvla-7b"]
    assert (config.patches, config.feature_width) == (256, 2176)
    assert config.towers == BACKBONES["dinosiglip-vit-so-224px"]
    assert 7.4e9 < FAMILY.parameters(config) < 7.6e9


def test_v01_and_minivla_are_told_apart() -> None:
    v01 = parse_config({
        "vision_backbone_id": "siglip-vit-so400m", "llm_backbone_id": "vicuna-v15-7b",
        "text_config": {"model_type": "llama", "vocab_size": 32064},
    })  # fmt: skip
    assert (v01.prompt_style, len(v01.towers)) == ("openvla-v0.1", 1)
    minivla = PRESETS["minivla"]
    assert (minivla.prompt_style, minivla.empty_token_id, minivla.action_vocab) == (
        "qwen", None, 151921,
    )  # fmt: skip


def test_a_qwens_action_tokens_are_not_guessed() -> None:
    """Llama's rule, the embedding less its padding, gives 151872 for MiniVLA: 49 off."""
    raw = config_json(PRESETS["minivla"], {})
    assert parse_config(raw) == PRESETS["minivla"]
    del raw["action_vocab"]
    with pytest.raises(CheckpointError, match=r"^a Qwen .* \(MiniVLA: 151921\)"):
        parse_config(raw)


def test_more_cameras_than_two_are_refused() -> None:
    with pytest.raises(CheckpointError, match="image_sequence_len is 4: one to three"):
        parse_config({"vision_backbone_id": "siglip-vit-so400m", "image_sequence_len": 4})


def test_random_weights_need_no_writable_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")  # nothing can be made below it
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    engine = load_engine(EngineOptions(checkpoint="random:small"))
    assert engine.info.max_tokens == 7
    assert list(tmp_path.glob("vla_ros_random_*/small-0-*/model.safetensors"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_loaded_checkpoint_needs_its_file_no_more(directory: Path, dtype: torch.dtype) -> None:
    """A mapped weight would change with a file that is copied over while the robot moves."""
    path = directory / "model.safetensors"
    save_file({n: t.to(dtype) for n, t in load_file(path).items()}, path)
    name = str(dtype).removeprefix("torch.")
    model = load_engine(EngineOptions(str(directory), dtype=name)).model
    want = {name: tensor.clone() for name, tensor in model.unpacked().items()}
    assert str(path) not in Path("/proc/self/maps").read_text()
    with path.open("r+b") as stream:
        stream.write(bytes(path.stat().st_size))
    loaded = model.unpacked()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in want.items())


def test_a_checkpoint_that_is_written_over_before_it_is_read_is_refused(directory: Path) -> None:
    """Its headers were checked: what another file holds under them is no checkpoint."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    checkpoint = load_checkpoint(str(directory), CPU, torch.float32)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, path)
    with pytest.raises(CheckpointError, match="changed while it was read: load it again"):
        policy_of(checkpoint, EngineOptions(str(directory)))


def test_a_model_holds_no_tensor_twice(directory: Path) -> None:
    """What is fused, packed or quantized is in the place of what it was made of."""
    model = load_engine(EngineOptions(str(directory), dtype="bfloat16", weights="int8")).model
    held = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in model.tensors.values()
    }
    assert sum(held.values()) == sum(t.nbytes for t in model.tensors.values())
    for layer in model.decoder._layers:
        for matrix in (layer.qkv, layer.out, layer.gate_up, layer.down):
            assert matrix.packed is None or not matrix.values.untyped_storage().nbytes()
