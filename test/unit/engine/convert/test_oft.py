"""OpenVLA-OFT releases: heads in .pt files beside OpenVLA's safetensors."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from support.engine import CLOCK, images
from support.releases import (
    Trap,
    adapter,
    oft_release,
    oft_statistics,
    plain_config,
    read_back,
)
from vla_ros.core.types import Observation, Timeline
from vla_ros.engine import CheckpointError, EngineOptions, load_engine
from vla_ros.engine.convert import ConvertOptions, convert


def refused(source: Path, message: str, **options: object) -> str:
    """The line that refuses it; nothing is left behind."""
    target = source.parent / "out"
    with pytest.raises(CheckpointError, match=message) as error:
        convert(source, target, ConvertOptions(**options))  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    assert not target.exists()
    assert not list(source.parent.glob(".out*"))
    return str(error.value)


@pytest.mark.parametrize("proprio", [0, 8])
def test_a_release_becomes_one_with_safetensors_only(tmp_path: Path, proprio: int) -> None:
    config = oft_release(tmp_path / "oft", proprio=proprio)
    done = convert(tmp_path / "oft", tmp_path / "out")
    assert "LIBERO: chunks of 8 actions of 7, 2 cameras" in done.summary
    loaded = read_back(tmp_path / "out")
    assert loaded.config == config
    head = torch.load(tmp_path / "oft" / "action_head--150000_checkpoint.pt", weights_only=True)
    for name, tensor in head.items():
        kept = loaded.tensors[f"action_head.{name.removeprefix('module.')}"]
        assert torch.equal(kept, tensor)
    assert not list((tmp_path / "out").glob("*.pt"))
    options = EngineOptions(checkpoint=str(tmp_path / "out"), decoding="parallel")
    assert load_engine(options).info.chunk_length == 8


def test_the_robot_is_told_by_its_dimensions(tmp_path: Path) -> None:
    config = oft_release(tmp_path / "bridge", proprio=7, chunk=5)
    assert "Bridge: chunks of 5" in convert(tmp_path / "bridge", tmp_path / "b").summary
    assert read_back(tmp_path / "b").config == replace(config, images=1)
    config = oft_release(tmp_path / "aloha", proprio=14, dim=14, chunk=25)
    assert "3 cameras, 14 values" in convert(tmp_path / "aloha", tmp_path / "three").summary
    assert read_back(tmp_path / "three").config == replace(config, images=3)
    convert(tmp_path / "aloha", tmp_path / "a", ConvertOptions(images=2))
    assert read_back(tmp_path / "a").config == config


def test_an_aloha_looks_at_three_cameras_in_their_order(tmp_path: Path) -> None:
    """openvla-oft's: the high one, the left wrist's, the right wrist's."""
    oft_release(tmp_path / "aloha", proprio=14, dim=14, chunk=25)
    convert(tmp_path / "aloha", tmp_path / "out")
    options = EngineOptions(str(tmp_path / "out"), decoding="parallel", num_threads=1)
    with pytest.raises(CheckpointError, match="3 cameras: main, wrist and 1 more, whose roles"):
        load_engine(options)
    engine = load_engine(replace(options, camera_roles=("right", "unused")))
    assert (engine.cameras, engine.info.camera_roles) == (2, ("right",))
    engine.reset("fold the shirt")
    frames = list(images(3, seed=4, still=0.0))

    def actions(*order: int) -> np.ndarray:
        main, wrist, right = (frames[i] for i in order)
        seen = Observation(1, 1, 0, main, wrist, np.zeros(14), more_images={"right": right})
        answer = engine.step(seen, Timeline(0), CLOCK)
        assert answer is not None and answer.actions.shape == (25, 14)
        return answer.actions

    orders = [actions(*order) for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (0, 1, 1))]
    for one, other in itertools.combinations(orders, 2):
        assert np.abs(one - other).max() > 1e-6
    np.testing.assert_array_equal(actions(0, 1, 2), orders[0])
    with pytest.raises(ValueError, match="needs a right image, the observation has none"):
        engine.step(Observation(2, 2, 0, frames[0], frames[1], np.zeros(14)), Timeline(0), CLOCK)


def test_two_heads_are_refused_and_one_can_be_chosen(tmp_path: Path) -> None:
    oft_release(tmp_path / "oft")
    first = tmp_path / "oft" / "action_head--150000_checkpoint.pt"
    (tmp_path / "oft" / "action_head--50000_checkpoint.pt").write_bytes(first.read_bytes())
    refused(tmp_path / "oft", "2 files of action_head, of the steps 150000, 50000: give --step")
    convert(tmp_path / "oft", tmp_path / "out", ConvertOptions(step="150000"))


def test_diffusion_and_film_are_refused_by_name_and_reason(tmp_path: Path) -> None:
    oft_release(tmp_path / "oft")
    head = tmp_path / "oft" / "action_head--150000_checkpoint.pt"
    noise = {"module.noise_predictor.mlp_resnet.fc1.weight": torch.ones(2, 2)}
    torch.save(noise, head)
    refused(tmp_path / "oft", "action_head--150000.*a diffusion head: each of its 50 steps")
    torch.save(noise, tmp_path / "oft" / "vision_backbone--150000_checkpoint.pt")
    refused(tmp_path / "oft", "vision_backbone--150000.* FiLM: its vision towers read")


def test_a_head_that_is_no_head_is_refused(tmp_path: Path) -> None:
    oft_release(tmp_path / "oft")
    head = tmp_path / "oft" / "action_head--150000_checkpoint.pt"
    torch.save([torch.ones(1)], head)
    refused(tmp_path / "oft", "holds a list without tensors")
    torch.save({"module.model.fc2.bias": torch.ones(7)}, head)
    refused(tmp_path / "oft", "missing: action_head.model.layer_norm1.weight")
    torch.save({"x": torch.ones(7)}, head)
    refused(tmp_path / "oft", "no model.fc2.bias, it is no L1 head")
    torch.save(Trap(), head)
    refused(tmp_path / "oft", "asks for .*print, which could run code")
    head.unlink()
    refused(tmp_path / "oft", r"no action_head--\*_checkpoint.pt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: (d / "config.json").unlink(), "config.json cannot be read"),
        (lambda d: (d / "config.json").write_text("{"), "config.json is no JSON"),
        (lambda d: (d / "model.safetensors").unlink(), "no .safetensors in"),
        (lambda d: (d / "model.safetensors").write_bytes(b"cut"), "no whole safetensors"),
        (lambda d: (d / "tokenizer.json").unlink(), "no .*tokenizer.json"),
    ],
)
def test_nothing_half_done_is_left(tmp_path: Path, change, message: str) -> None:  # type: ignore[no-untyped-def]
    oft_release(tmp_path / "oft")
    change(tmp_path / "oft")
    refused(tmp_path / "oft", message)


def test_without_weights_its_adapter_is_merged_into_the_base(tmp_path: Path) -> None:
    """openvla-oft's finetune.py saves this when it does not merge while training."""
    config = oft_release(tmp_path / "oft")
    base = tmp_path / "base"
    base.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / "oft" / name).rename(base / name)
    raw = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**plain_config(raw), "norm_stats": {}}))
    merged = adapter(tmp_path / "oft" / "lora_adapter", base)
    stats = json.dumps(oft_statistics(7, 8))
    (tmp_path / "oft" / "dataset_statistics.json").write_text(stats)
    refused(tmp_path / "oft", "give --base, the directory of the model it was trained on")
    convert(tmp_path / "oft", tmp_path / "out", ConvertOptions(base=base))
    loaded = read_back(tmp_path / "out")
    assert loaded.config == config
    assert list(loaded.norm_stats) == ["libero_spatial_no_noops"]
    for name, tensor in merged.items():
        torch.testing.assert_close(loaded.tensors[name], tensor)
