"""SigLIP and InternViT under transformers' tensor names.

SigLIP as PaliGemma, SmolVLM and Eagle use it (``SiglipVisionModel``, ``SmolVLMVisionTransformer``):
all blocks, a final norm, tanh GELU. InternViT as InternVL uses it (``modeling_internvl.py``): a
class token in front, LayerScale behind attention and MLP, no final norm. Blocks and patches are
those of :mod:`vla_ros.engine.models.towers`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import nn

from vla_ros.engine.io.config import TowerConfig
from vla_ros.engine.io.quantize import VISION, mapped, placed
from vla_ros.engine.io.tensors import Matrix, Plain, Table, read_map
from vla_ros.engine.io.weights import Weights
from vla_ros.engine.models.towers import Block, PatchEmbed


class SigLip(nn.Module):
    """Pixels [V, 3, s, s] -> features [V, patches, width] behind the final norm."""

    #: this module's parts -> the checkpoint's, where ``attn.qkv`` is three, ``self_attn.q_proj``...
    names: ClassVar[dict[str, str]] = {
        "patch_embed.proj": "embeddings.patch_embedding",
        "positions": "embeddings.position_embedding.weight",
        "blocks.": "encoder.layers.",
        "norm1": "layer_norm1",
        "norm2": "layer_norm2",
        "attn.qkv": "self_attn.",
        "attn.proj": "self_attn.out_proj",
        "norm": "post_layernorm",
    }

    def __init__(self, tower: TowerConfig, patches: int) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(tower)
        self.positions = nn.Parameter(torch.empty(patches, tower.width))
        tower = replace(tower, activation="gelu_tanh")
        self.blocks = nn.ModuleList(Block(tower) for _ in range(tower.depth))
        self.norm = nn.LayerNorm(tower.width, 1e-6)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = self.patch_embed(pixels) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class InternVit(nn.Module):
    """Pixels [V, 3, s, s] -> features [V, patches, width]; the class token's row is dropped."""

    prefix = 1  # rows in front of the patches
    names: ClassVar[dict[str, str]] = {
        "patch_embed.proj": "embeddings.patch_embeddings.projection",
        "cls_token": "embeddings.cls_token",
        "positions": "embeddings.position_embeddings",
        "blocks.": "encoder.layer.",
        "norm1": "layernorm_before",
        "norm2": "layernorm_after",
        "attn.qkv": "attention.",
        "attn.proj": "attention.projection_layer",
        "ls1.scale_factor": "lambda_1",
        "ls2.scale_factor": "lambda_2",
    }

    def __init__(self, tower: TowerConfig) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(tower)
        self.cls_token = nn.Parameter(torch.empty(1, 1, tower.width))
        self.positions = nn.Parameter(torch.empty(1, 1 + tower.patches, tower.width))
        self.blocks = nn.ModuleList(Block(tower) for _ in range(tower.depth))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        patches = self.patch_embed(pixels)
        front = self.cls_token.expand(len(patches), -1, -1)
        x = torch.cat((front, patches), 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return x[:, 1:]


def tower_tensors(base: str, model: SigLip | InternVit) -> dict[str, torch.Tensor]:
    """What :func:`read_tower` reads, of a tower with every position once. Of one on the device
    "meta" these are the shapes."""
    out = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        own, _, kind = name.rpartition(".")
        if not own.endswith("attn.qkv"):
            out[base + checkpoint_name(name, model.names)] = tensor
            continue
        for part, rows in zip("qkv", tensor.chunk(3), strict=True):
            out[f"{base}{checkpoint_name(own, model.names)}{part}_proj.{kind}"] = rows
    return out


def tower_table(kind: Callable[..., SigLip | InternVit], *sizes: object) -> Table:
    """What :func:`tower_tensors` names, of a tower of this kind and size."""
    with torch.device("meta"):
        tensors = tower_tensors("", kind(*sizes))
    return {name: Plain(tuple(tensor.shape)) for name, tensor in tensors.items()}


def read_siglip(
    weights: Weights, base: str, tower: TowerConfig, positions: torch.Tensor, like: torch.Tensor
) -> SigLip:
    """The SigLIP at ``base``; ``positions`` int64 [patches] are rows of its position table."""
    with torch.device("meta"):
        model = SigLip(tower, len(positions))
    read_tower(weights, base, model, like, positions)
    return model


def read_tower(
    weights: Weights,
    base: str,
    model: SigLip | InternVit,
    like: torch.Tensor,
    positions: torch.Tensor | None = None,
) -> None:
    """Fill a tower that is on "meta" with the tensors at ``base``; the matrices of its blocks may
    be quantized."""
    state, maps = {}, {}
    for path, module in model.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        theirs = base + checkpoint_name(path, model.names)
        if path.endswith("attn.qkv"):
            three = Matrix({f"{n}_proj": (module.in_features,) * 2 for n in "qkv"})
            maps[path] = read_map(weights, theirs, {"qkv": three}, "qkv", VISION, like)
        else:
            maps[path] = mapped(weights, theirs, VISION, like)
    for name in model.state_dict():
        if name.rpartition(".")[0] in maps:
            continue
        tensor = weights.take(base + checkpoint_name(name, model.names))
        if name == "positions" and positions is not None:
            tensor = tensor[positions]
        state[name] = tensor.to(like)
    model.load_state_dict(state | placed(model, maps), assign=True)
    model.requires_grad_(False).eval()


def checkpoint_name(own: str, names: Mapping[str, str]) -> str:
    """A module's name or path in the checkpoint's words."""
    pattern = "|".join(rf"(?<![\w.]){re.escape(n)}" if n == "norm" else re.escape(n) for n in names)
    return re.sub(pattern, lambda found: names[found[0]], own)


def pixel_shuffle(features: torch.Tensor, factor: int) -> torch.Tensor:
    """SmolVLM's and InternVL's: [V, s * s, C] -> [V, (s / f) ** 2, C f ** 2]."""
    views, count, width = features.shape
    side, less = round(count**0.5), round(count**0.5) // factor
    grid = features.view(views, less, factor, less, factor, width)
    assert side == less * factor
    return grid.transpose(2, 3).reshape(views, less * less, factor * factor * width)
