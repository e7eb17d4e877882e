"""InternViT as InternVL uses it, its pixel shuffle and projector.

Source: transformers ``modeling_internvl.py``. A class token in front, LayerScale behind attention
and MLP, no norm at the end; the class token is dropped before the shuffle.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from vla_ros.engine.checkpoints.config import TowerConfig
from vla_ros.engine.flow.evo1.config import Evo1Config
from vla_ros.engine.flow.matrices import VISION, as_it_is, mapped, mapped_all, placed
from vla_ros.engine.flow.siglip import stacked_qkv
from vla_ros.engine.flow.smolvla import shuffled
from vla_ros.engine.flow.suffix import linear_shapes
from vla_ros.engine.flow.weights import Shape, Weights
from vla_ros.engine.vision.towers import Block, PatchEmbed

BASE = "embedder.model."
TOWER, PROJECTOR = BASE + "vision_tower.", BASE + "multi_modal_projector."
_NORMS = {"norm1": "layernorm_before", "norm2": "layernorm_after"}
_MAPS = {
    "attn.proj": "attention.projection_layer",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}


class InternVit(nn.Module):
    """Pixels [V, 3, s, s] -> features [V, patches, width]."""

    prefix = 1  # the class token's row

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


class Eyes:
    """Tower, shuffle and projector: pixels [V, 3, s, s] -> rows of the prompt [V * tokens, C]."""

    def __init__(self, weights: Weights, config: Evo1Config, like: torch.Tensor) -> None:
        self.tower = _read_tower(weights, config.vision, like)
        self._shuffle = config.shuffle
        self._scale, self._shift = (
            weights.take(f"{PROJECTOR}layer_norm.{kind}").to(like) for kind in ("weight", "bias")
        )
        self._first, self._second = (
            mapped(weights, name, VISION, like, as_it_is(name))
            for name in (f"{PROJECTOR}linear_1", f"{PROJECTOR}linear_2")
        )

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        x = shuffled(self.tower(pixels), self._shuffle)
        x = F.layer_norm(x, (x.shape[-1],), self._scale, self._shift, 1e-5)
        rows: torch.Tensor = self._second(F.gelu(self._first(x)))
        return rows.flatten(0, 1)


def vision_shapes(config: Evo1Config) -> dict[str, Shape]:
    """Tensors of tower and projector."""
    tower, wide = config.vision, config.vision.width * config.shuffle**2
    width, middle, patch = tower.width, tower.mlp, tower.patch
    shapes: dict[str, Shape] = {
        "embeddings.cls_token": (1, 1, width),
        "embeddings.position_embeddings": (1, 1 + tower.patches, width),
        "embeddings.patch_embeddings.projection.weight": (width, 3, patch, patch),
        "embeddings.patch_embeddings.projection.bias": (width,),
    }
    for number in range(tower.depth):
        layer = f"encoder.layer.{number}."
        for name in ("q_proj", "k_proj", "v_proj", "projection_layer"):
            shapes |= linear_shapes(f"{layer}attention.{name}", width, width)
        shapes |= linear_shapes(f"{layer}mlp.fc1", width, middle)
        shapes |= linear_shapes(f"{layer}mlp.fc2", middle, width)
        for name in ("layernorm_before", "layernorm_after"):
            shapes |= {f"{layer}{name}.{kind}": (width,) for kind in ("weight", "bias")}
        shapes |= {f"{layer}lambda_{n}": (width,) for n in (1, 2)}
    shapes = {TOWER + name: shape for name, shape in shapes.items()}
    shapes |= {f"{PROJECTOR}layer_norm.{kind}": (wide,) for kind in ("weight", "bias")}
    shapes |= linear_shapes(f"{PROJECTOR}linear_1", wide, config.width)
    return shapes | linear_shapes(f"{PROJECTOR}linear_2", config.width, config.width)


def _read_tower(weights: Weights, tower: TowerConfig, like: torch.Tensor) -> InternVit:
    with torch.device("meta"):
        model = InternVit(tower)
    state: dict[str, torch.Tensor] = {
        "cls_token": weights.take(f"{TOWER}embeddings.cls_token").to(like),
        "positions": weights.take(f"{TOWER}embeddings.position_embeddings").to(like),
    }
    for kind in ("weight", "bias"):
        embed = f"{TOWER}embeddings.patch_embeddings.projection.{kind}"
        state[f"patch_embed.proj.{kind}"] = weights.take(embed).to(like)
        for number in range(tower.depth):
            own, theirs = f"blocks.{number}.", f"{TOWER}encoder.layer.{number}."
            for name, other in _NORMS.items():
                state[f"{own}{name}.{kind}"] = weights.take(f"{theirs}{other}.{kind}").to(like)
    for number in range(tower.depth):
        own, theirs = f"blocks.{number}.", f"{TOWER}encoder.layer.{number}."
        maps = {f"{own}{name}": f"{theirs}{other}" for name, other in _MAPS.items()}
        made = mapped_all(weights, maps, VISION, like)
        made[f"{own}attn.qkv"] = mapped(
            weights, f"{theirs}attention.qkv", VISION, like, stacked_qkv(f"{theirs}attention.")
        )
        state |= placed(model, made)
        for n in (1, 2):
            scale = weights.take(f"{TOWER}encoder.layer.{number}.lambda_{n}")
            state[f"blocks.{number}.ls{n}.scale_factor"] = scale.to(like)
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(False).eval()
