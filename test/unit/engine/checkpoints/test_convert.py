"""Published layouts, rebuilt from random weights, convert to what the engine reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.engine import CPU, TEXTS, engine_of, play, stream, tiny_config
from vla_ros.engine import CheckpointError
from vla_ros.engine.checkpoints.convert import convert_oft, convert_prismatic, main
from vla_ros.engine.checkpoints.openvla import load_checkpoint
from vla_ros.engine.checkpoints.random import norm_stats, random_tensors, write_random
from vla_ros.engine.checkpoints.small_tokenizer import write_tokenizer

CONFIG = tiny_config("qwen2_tied", "fused")


def prismatic_run(directory: Path, tokenizer: str = "extra_action_tokenizer") -> None:
    """A MiniVLA-like run: prismatic's names, tied head stored twice, unused blocks present."""
    parts: dict[str, dict[str, torch.Tensor]] = {
        "vision_backbone": {}, "projector": {}, "llm_backbone": {},
    }  # fmt: skip
    names = {"fc1": "projector.0", "fc2": "projector.2", "fc3": "projector.4"}
    for name, tensor in random_tensors(CONFIG, 1, CPU, torch.float32).items():
        room, rest = name.split(".", 1)
        if room == "projector":
            stem, kind = rest.split(".")
            parts["projector"][f"{names[stem]}.{kind}"] = tensor
        elif room == "language_model":
            parts["llm_backbone"]["llm." + rest] = tensor
        else:
            rest = rest.replace("fused_featurizer.", "siglip_featurizer.")
            rest = (
                rest.replace("featurizer.", "dino_featurizer.", 1) if rest.startswith("f") else rest
            )
            parts["vision_backbone"][rest.replace("scale_factor", "gamma")] = tensor
    parts["llm_backbone"]["llm.lm_head.weight"] = parts["llm_backbone"][
        "llm.model.embed_tokens.weight"
    ]
    parts["vision_backbone"]["dino_featurizer.blocks.2.norm1.weight"] = torch.ones(32)
    parts["vision_backbone"]["siglip_featurizer.attn_pool.latent"] = torch.ones(32)
    (directory / "checkpoints").mkdir(parents=True)
    torch.save({"model": parts}, directory / "checkpoints" / "step-001-loss=0.1.pt")
    vla = {"base_vlm": "prism-qwen25-extra-dinosiglip-224px+0_5b", "action_tokenizer": tokenizer}
    (directory / "config.json").write_text(json.dumps({"vla": vla}))
    (directory / "dataset_statistics.json").write_text(json.dumps(norm_stats()))
    write_tokenizer(directory / "tokenizer.json")


def test_a_prismatic_run_says_the_same_after_conversion(tmp_path: Path) -> None:
    source, target, direct = (tmp_path / n for n in ("run", "out", "direct"))
    prismatic_run(source)
    convert_prismatic(source, target, source / "tokenizer.json", CONFIG)
    write_random(direct, CONFIG, seed=1)
    events = stream(4, {0: TEXTS[0]})
    both = [
        play(engine_of(load_checkpoint(str(d), CPU, torch.float32)), events)
        for d in (target, direct)
    ]
    assert [a.tokens for a in both[0].values()] == [a.tokens for a in both[1].values()]


def test_what_a_run_cannot_be_converted_for_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prismatic_run(tmp_path / "vq", "libero_vq_extra_action_tokenizer")
    words = ["prismatic", str(tmp_path / "vq"), str(tmp_path / "x"), "--tokenizer", "none"]
    assert main(words) == 2
    assert "VQ-VAE" in capsys.readouterr().err
    prismatic_run(tmp_path / "run")
    with pytest.raises(CheckpointError, match="the tensors do not fit"):  # not MiniVLA's size
        convert_prismatic(tmp_path / "run", tmp_path / "y", tmp_path / "run" / "tokenizer.json")


class Trap:
    """A pickle that would run code."""

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return (print, ("code ran",))


def test_a_pickle_with_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prismatic_run(tmp_path)
    torch.save(Trap(), tmp_path / "checkpoints" / "step-002.pt")
    with pytest.raises(CheckpointError, match="as plain tensors"):
        convert_prismatic(tmp_path, tmp_path / "out", tmp_path / "tokenizer.json", CONFIG)
    assert "code ran" not in capsys.readouterr().out


@pytest.mark.parametrize("proprio", [0, 8])
def test_an_oft_directory_becomes_one_with_safetensors_only(tmp_path: Path, proprio: int) -> None:
    source, target = tmp_path / "oft", tmp_path / "out"
    config = replace(tiny_config(), parallel=True, chunk=8, proprio_dim=proprio, images=2)
    write_random(source, config, seed=3)
    tensors = load_file(source / "model.safetensors")
    for room in ("action_head", "proprio_projector"):
        own = {n.removeprefix(room + "."): t for n, t in tensors.items() if n.startswith(room)}
        if own:
            named = {f"module.{n}": t for n, t in own.items()}
            torch.save(named, source / f"{room}--50000_checkpoint.pt")
    rest = {
        n: t
        for n, t in tensors.items()
        if n.split(".")[0] in ("vision_backbone", "projector", "language_model")
    }
    save_file(rest, source / "model.safetensors")
    raw = json.loads((source / "config.json").read_text())
    for key in (
        "parallel_decoding",
        "action_chunk",
        "proprio_dim",
        "image_sequence_len",
        "action_dim",
    ):
        del raw[key]
    (source / "config.json").write_text(json.dumps(raw))
    assert convert_oft(source, target, chunk=8, images=2) == config
    loaded = load_checkpoint(str(target), CPU, torch.float32)
    assert loaded.config == config
    assert all(torch.equal(loaded.tensors[n], t) for n, t in tensors.items())
    assert not list(target.glob("*.pt"))
