"""Turns published .pt checkpoints into safetensors directories that the engine reads.

    python -m vla_ros.engine.checkpoints.convert prismatic RUN_DIR TARGET --tokenizer tokenizer.json
    python -m vla_ros.engine.checkpoints.convert oft HF_DIR TARGET --chunk 8 --images 2

``prismatic``: the training layout of openvla-mini and openvla (MiniVLA is published so).
``oft``: an OpenVLA-OFT checkpoint, whose heads lie in .pt files beside the shards. Files are
read with ``weights_only=True``: a pickle that holds anything but tensors is refused.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from vla_ros.engine.checkpoints.config import ModelConfig, parse_config
from vla_ros.engine.checkpoints.openvla import LANGUAGE, Tensors, save_checkpoint
from vla_ros.engine.checkpoints.random import PRESETS
from vla_ros.engine.errors import CheckpointError

_PROJECTOR = {"projector.0": "fc1", "projector.2": "fc2", "projector.4": "fc3"}
_TOWERS = {
    "dino_featurizer.": "featurizer.",
    "siglip_featurizer.": "fused_featurizer.",
    "featurizer.": "featurizer.",
}
_UNUSED = re.compile(r"\.(attn_pool|norm|head|fc_norm)\.|rotary_emb\.inv_freq$")


def read_pt(path: Path) -> Any:
    """Tensors of a .pt file, and nothing else."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise CheckpointError(f"cannot read {path.name} as plain tensors: {error}") from error


def rename_prismatic(parts: dict[str, dict[str, torch.Tensor]], tied: bool) -> Tensors:
    """{vision_backbone, projector, llm_backbone} of prismatic -> OpenVLA's names."""
    out: Tensors = {}
    for name, tensor in parts["vision_backbone"].items():
        base = next((b for b in _TOWERS if name.startswith(b)), None)
        if base is None:
            raise CheckpointError(f"vision_backbone has an unknown tensor {name}")
        new = "vision_backbone." + _TOWERS[base] + name.removeprefix(base)
        out[new.replace(".gamma", ".scale_factor")] = tensor
    for name, tensor in parts["projector"].items():
        stem, kind = name.rsplit(".", 1)
        if stem not in _PROJECTOR:
            raise CheckpointError(f"projector has an unknown tensor {name}")
        out[f"projector.{_PROJECTOR[stem]}.{kind}"] = tensor
    for name, tensor in parts["llm_backbone"].items():
        if not (tied and name == "llm.lm_head.weight"):
            out[LANGUAGE + name.removeprefix("llm.")] = tensor
    return out


def convert_prismatic(
    source: Path, target: Path, tokenizer: Path, config: ModelConfig | None = None
) -> None:
    """A prismatic run directory -> a checkpoint directory. ``config`` overrides its guess."""
    raw = json.loads((source / "config.json").read_text())
    vla = raw.get("vla", {})
    if "vq" in str(vla.get("action_tokenizer", "")):
        raise CheckpointError("this run decodes actions with a VQ-VAE, which is not supported")
    config = config or _guess(str(vla.get("base_vlm", "")), int(vla.get("image_sequence_len", 1)))
    files = sorted((source / "checkpoints").glob("*.pt"))
    if not files:
        raise CheckpointError(f"no checkpoints/*.pt in {source}")
    content = read_pt(files[-1])
    parts = content.get("model", content)
    lost = {"vision_backbone", "projector", "llm_backbone"} - set(parts)
    if lost:
        raise CheckpointError(f"{files[-1].name} lacks {', '.join(sorted(lost))}")
    tensors = _used(rename_prismatic(parts, config.text.tied), config)
    stats = json.loads((source / "dataset_statistics.json").read_text())
    save_checkpoint(target, config, tensors, stats, lambda path: _copy(tokenizer, path))


def _guess(base_vlm: str, images: int) -> ModelConfig:
    from dataclasses import replace

    preset = "minivla" if "qwen" in base_vlm else "openvla-7b"
    return replace(PRESETS[preset], images=images)


def _used(tensors: Tensors, config: ModelConfig) -> Tensors:
    last = [f".blocks.{tower.depth - 1}." for tower in config.towers]
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not (name.startswith("vision_backbone.") and _unused(name, last))
        and not name.endswith("inv_freq")
    }


def _unused(name: str, last: Iterable[str]) -> bool:
    return bool(_UNUSED.search(name)) or any(block in name for block in last)


def _copy(source: Path, target: Path) -> None:
    if not source.is_file():
        raise CheckpointError(f"no tokenizer at {source}: give the base model's tokenizer.json")
    shutil.copyfile(source, target)


def convert_oft(source: Path, target: Path, chunk: int, images: int) -> ModelConfig:
    """An OpenVLA-OFT directory -> one with safetensors heads and its shape in config.json."""
    if sorted(source.glob("vision_backbone--*.pt")):
        raise CheckpointError("this checkpoint has a FiLM vision backbone, which is not supported")
    head = _head(source, "action_head")
    if head is None:
        raise CheckpointError(f"no action_head--*_checkpoint.pt in {source}")
    proprio = _head(source, "proprio_projector")
    target.mkdir(parents=True, exist_ok=True)
    for path in (*source.glob("*.safetensors"), *source.glob("*.json"), *source.glob("*.model")):
        shutil.copyfile(path, target / path.name)
    save_file({f"action_head.{n}": t for n, t in head.items()}, target / "action_head.safetensors")
    raw = json.loads((source / "config.json").read_text())
    dim = len(head["model.fc2.bias"])
    raw.update(parallel_decoding=True, action_chunk=chunk, image_sequence_len=images)
    raw.update(action_dim=dim, normalise_by_minmax=dim == 14, proprio_dim=0)
    if proprio is not None:
        raw["proprio_dim"] = proprio["fc1.weight"].shape[1]
        named = {f"proprio_projector.{n}": t for n, t in proprio.items()}
        save_file(named, target / "proprio_projector.safetensors")
    (target / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
    return parse_config(raw)


def _head(source: Path, name: str) -> Tensors | None:
    files = sorted(source.glob(f"{name}--*_checkpoint.pt"))
    if not files:
        return None
    return {n.removeprefix("module."): t.contiguous() for n, t in read_pt(files[-1]).items()}


def main(argv: list[str] | None = None) -> int:
    """Command line; one line and status 2 where a checkpoint cannot be converted."""
    parser = argparse.ArgumentParser(prog="python -m vla_ros.engine.checkpoints.convert")
    kinds = parser.add_subparsers(dest="kind", required=True)
    prismatic = kinds.add_parser("prismatic", help="MiniVLA and other prismatic runs")
    oft = kinds.add_parser("oft", help="OpenVLA-OFT with its heads")
    for each in (prismatic, oft):
        each.add_argument("source", type=Path)
        each.add_argument("target", type=Path)
    prismatic.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    oft.add_argument("--chunk", type=int, default=8, help="actions of a chunk (8)")
    oft.add_argument("--images", type=int, default=2, help="cameras (2)")
    args = parser.parse_args(argv)
    try:
        if args.kind == "prismatic":
            convert_prismatic(args.source, args.target, args.tokenizer)
        else:
            convert_oft(args.source, args.target, args.chunk, args.images)
    except (CheckpointError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
