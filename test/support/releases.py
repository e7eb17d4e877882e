"""Checkpoints in the layouts in which others release them, made of random weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from support.engine import CPU, LANGUAGE, tiny_config
from vla_ros.engine.families.openvla import (
    load_checkpoint,
    norm_stats,
    random_tensors,
    write_random,
)
from vla_ros.engine.families.random import write_tokenizer
from vla_ros.engine.io.checkpoint import Checkpoint
from vla_ros.engine.io.config import ModelConfig, TowerConfig

DINO = TowerConfig(
    32, 3, 2, 64, image_size=32, patch=8, class_token=True, registers=4, layer_scale=True
)
SIGLIP = TowerConfig(32, 5, 2, 64, image_size=32, patch=8)  # deeper, as SO400M is than ViT-L
#: A MiniVLA of tiny size, its towers of unequal depth.
UNEQUAL = replace(
    tiny_config("qwen2_tied"), towers=(DINO, SIGLIP), empty_token_id=None, prompt_style="qwen"
)
_PROJECTOR = {"fc1": "projector.0", "fc2": "projector.2", "fc3": "projector.4"}
_FEATURIZERS = {"fused_featurizer": "siglip_featurizer", "featurizer": "dino_featurizer"}


class Trap:
    """A pickle that would run code."""

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return (print, ("code ran",))


def prismatic_parts(config: ModelConfig, seed: int = 1) -> dict[str, dict[str, torch.Tensor]]:
    """A run's "model": prismatic's names, every block of the towers, the head stored twice."""
    parts: dict[str, dict[str, torch.Tensor]] = {
        "vision_backbone": {}, "projector": {}, "llm_backbone": {},
    }  # fmt: skip
    for name, tensor in random_tensors(config, seed, CPU, torch.float32).items():
        room, rest = name.split(".", 1)
        if room == "projector":
            stem, kind = rest.split(".")
            parts["projector"][f"{_PROJECTOR[stem]}.{kind}"] = tensor
        elif room == "language_model":
            parts["llm_backbone"]["llm." + rest] = tensor
        else:
            tower, rest = rest.split(".", 1)
            rest = rest.replace("scale_factor", "gamma")
            parts["vision_backbone"][f"{_FEATURIZERS[tower]}.{rest}"] = tensor
    vision, language = parts["vision_backbone"], parts["llm_backbone"]
    for tower, prefix in zip(config.towers, ("dino_featurizer", "siglip_featurizer"), strict=False):
        vision[f"{prefix}.blocks.{tower.depth - 1}.norm1.weight"] = torch.ones(tower.width)
        vision[f"{prefix}.norm.weight"] = torch.ones(tower.width)
    vision[f"{prefix}.attn_pool.latent"] = torch.ones(32)
    language["llm.model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    if config.text.tied:
        language["llm.lm_head.weight"] = language["llm.model.embed_tokens.weight"]
    return parts


def prismatic_run(
    directory: Path,
    config: ModelConfig = UNEQUAL,
    base_vlm: str = "prism-qwen25-extra-dinosiglip-224px+0_5b",
    **vla: object,
) -> Path:
    """MiniVLA's released layout; returns it."""
    (directory / "checkpoints").mkdir(parents=True)
    content = {"model": prismatic_parts(config), "optimizer": {"state": {0: torch.zeros(3)}}}
    torch.save(content, directory / "checkpoints" / "step-000001-epoch-00-loss=0.1.pt")
    said = {"base_vlm": base_vlm, "action_tokenizer": "extra_action_tokenizer", **vla}
    (directory / "config.json").write_text(json.dumps({"vla": said}))
    (directory / "dataset_statistics.json").write_text(json.dumps(norm_stats()))
    write_tokenizer(directory / "tokenizer.json")
    return directory


def vq_vae(
    directory: Path, dim: int = 7, horizon: int = 8, latent: int = 16, codes: int = 256
) -> Path:
    """MiniVLA's VQ-VAE of a smaller size; returns its directory."""
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    embedding = {f"layers.{i}._codebook.embed": draw(1, codes, latent) for i in range(dim)}
    sizes = {"encoder.0": (128, latent), "encoder.2": (128, 128), "fc": (horizon * dim, 128)}
    decoder = {f"{name}.weight": draw(*shape) for name, shape in sizes.items()}
    decoder |= {f"{name}.bias": draw(shape[0]) for name, shape in sizes.items()}
    (directory / "checkpoints").mkdir(parents=True)
    parts = {"encoder": {}, "decoder": decoder, "vq_embedding": embedding, "optimizer": {}}
    torch.save(parts, directory / "checkpoints" / "model.pt")
    (directory / "config.json").write_text(json.dumps({
        "input_dim_w": dim, "input_dim_h": horizon, "n_latent_dims": latent, "act_scale": 1.0,
        "vqvae_n_embed": codes, "vqvae_groups": dim, "load_dir": None, "eval": False,
    }))  # fmt: skip
    return directory


def plain_config(raw: dict[str, object]) -> dict[str, object]:
    """config.json without the keys that the authors' files do not have."""
    ours = ("parallel_decoding", "action_chunk", "proprio_dim", "image_sequence_len",
            "action_dim", "normalise_by_minmax", "vq", "letterbox_fill")  # fmt: skip
    return {key: value for key, value in raw.items() if key not in ours}


def oft_release(
    directory: Path, *, proprio: int = 8, dim: int = 7, chunk: int = 8, step: str = "150000"
) -> ModelConfig:
    """An OpenVLA-OFT release; returns the config that it should be converted to."""
    config = replace(
        tiny_config(towers="fused"), parallel=True, chunk=chunk, proprio_dim=proprio,
        images=2, action_dim=dim, minmax=dim == 14, empty_token_id=None,
    )  # fmt: skip
    write_random(directory, config, seed=3, stats=oft_statistics(dim, proprio))
    tensors = load_file(directory / "model.safetensors")
    for room in ("action_head", "proprio_projector"):
        own = {n.removeprefix(room + "."): t for n, t in tensors.items() if n.startswith(room)}
        if own:
            named = {f"module.{n}": t for n, t in own.items()}
            torch.save(named, directory / f"{room}--{step}_checkpoint.pt")
    rest = {n: t for n, t in tensors.items() if not n.startswith(("action_head", "proprio"))}
    save_file(rest, directory / "model.safetensors")
    raw = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(plain_config(raw)))
    return config


def oft_statistics(dim: int, proprio: int) -> dict[str, object]:
    bounds = {"q01": [-1.0] * dim, "q99": [1.0] * dim, "min": [-2.0] * dim, "max": [2.0] * dim}
    parts: dict[str, object] = {"action": bounds}
    if proprio:
        parts["proprio"] = {name: values[:1] * proprio for name, values in bounds.items()}
    return {"libero_spatial_no_noops": parts}


def adapter(
    directory: Path, base: Path, rank: int = 2, alpha: float = 4.0
) -> dict[str, torch.Tensor]:
    """A peft adapter for the linear layers of ``base``; returns the weights it should make."""
    tensors = load_file(base / "model.safetensors")
    generator = torch.Generator().manual_seed(9)
    factors: dict[str, torch.Tensor] = {}
    merged = dict(tensors)
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and ("_proj." in name or ".qkv." in name or ".fc1." in name):
            a = torch.randn(rank, tensor.shape[1], generator=generator) * 0.1
            b = torch.randn(tensor.shape[0], rank, generator=generator) * 0.1
            stem = "base_model.model." + name.removesuffix(".weight")
            factors |= {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
            merged[name] = tensor + alpha / rank * (b @ a)
    directory.mkdir(parents=True)
    save_file(factors, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none", "use_dora": False,
        "base_model_name_or_path": "openvla/openvla-7b", "target_modules": "all-linear",
        "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {}, "use_rslora": False,
    }))  # fmt: skip
    return merged


__all__ = [
    "LANGUAGE", "UNEQUAL", "Trap", "adapter", "oft_release", "oft_statistics", "plain_config",
    "prismatic_parts", "prismatic_run", "vq_vae",
]  # fmt: skip


def read_back(directory: Path) -> Checkpoint:
    """A token policy's checkpoint in float32."""
    return load_checkpoint(str(directory), CPU, torch.float32)
