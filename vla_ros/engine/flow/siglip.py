"""SigLIP as PaliGemma and SmolVLM use it: all blocks, a final norm, tanh GELU.

Blocks and patches are those of :mod:`vla_ros.engine.vision.towers`; the tensor names are
transformers' (``SiglipVisionModel``, ``SmolVLMVisionTransformer``).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from vla_ros.engine.checkpoints.config import TowerConfig
from vla_ros.engine.flow.matrices import VISION, Take, mapped, mapped_all, placed
from vla_ros.engine.flow.suffix import Linear
from vla_ros.engine.flow.weights import Shape, Weights
from vla_ros.engine.vision.towers import Block, Mlp, PatchEmbed


class TanhMlp(Mlp):
    """Linear, GELU in its tanh form, Linear."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class SigLip(nn.Module):
    """Pixels [V, 3, s, s] -> features [V, patches, width] behind the final norm."""

    def __init__(self, tower: TowerConfig, patches: int) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(tower)
        self.positions = nn.Parameter(torch.empty(patches, tower.width))
        self.blocks = nn.ModuleList(Block(tower) for _ in range(tower.depth))
        for block in self.blocks:
            block.mlp = TanhMlp(tower.width, tower.mlp)
        self.norm = nn.LayerNorm(tower.width, 1e-6)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = self.patch_embed(pixels) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


_NORMS = {"norm1": "layer_norm1", "norm2": "layer_norm2"}
_MAPS = {
    "attn.proj": "self_attn.out_proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
_BLOCK = {**_NORMS, **_MAPS}


def siglip_shapes(base: str, tower: TowerConfig) -> dict[str, Shape]:
    """Tensors of the tower at ``base``."""
    width, middle, patch = tower.width, tower.mlp, tower.patch
    shapes: dict[str, Shape] = {
        "embeddings.patch_embedding.weight": (width, 3, patch, patch),
        "embeddings.patch_embedding.bias": (width,),
        "embeddings.position_embedding.weight": (tower.patches, width),
        "post_layernorm.weight": (width,),
        "post_layernorm.bias": (width,),
    }
    for number in range(tower.depth):
        layer = f"encoder.layers.{number}."
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                     "self_attn.out_proj"):  # fmt: skip
            shapes |= {f"{layer}{name}.weight": (width, width), f"{layer}{name}.bias": (width,)}
        shapes |= {f"{layer}mlp.fc1.weight": (middle, width), f"{layer}mlp.fc1.bias": (middle,)}
        shapes |= {f"{layer}mlp.fc2.weight": (width, middle), f"{layer}mlp.fc2.bias": (width,)}
        for name in ("layer_norm1", "layer_norm2"):
            shapes |= {f"{layer}{name}.weight": (width,), f"{layer}{name}.bias": (width,)}
    return {base + n: s for n, s in shapes.items()}


def siglip_tensors(base: str, model: SigLip) -> dict[str, torch.Tensor]:
    """What :func:`read_siglip` reads, of a tower with every position once."""
    state, out = model.state_dict(keep_vars=True), {}
    for kind in ("weight", "bias"):
        out[f"embeddings.patch_embedding.{kind}"] = state[f"patch_embed.proj.{kind}"]
        out[f"post_layernorm.{kind}"] = state[f"norm.{kind}"]
        for number in range(len(model.blocks)):
            own, theirs = f"blocks.{number}.", f"encoder.layers.{number}."
            for name, other in _BLOCK.items():
                out[f"{theirs}{other}.{kind}"] = state[f"{own}{name}.{kind}"]
            for part, rows in zip("qkv", state[f"{own}attn.qkv.{kind}"].chunk(3), strict=True):
                out[f"{theirs}self_attn.{part}_proj.{kind}"] = rows
    out["embeddings.position_embedding.weight"] = state["positions"]
    return {base + name: tensor for name, tensor in out.items()}


def read_siglip(
    weights: Weights, base: str, tower: TowerConfig, positions: torch.Tensor, like: torch.Tensor
) -> SigLip:
    """The tower at ``base``; ``positions`` int64 [patches] are rows of its position table."""
    with torch.device("meta"):
        model = SigLip(tower, len(positions))
    state: dict[str, torch.Tensor] = {}
    for kind in ("weight", "bias"):
        names = {f"patch_embed.proj.{kind}": f"embeddings.patch_embedding.{kind}"}
        names[f"norm.{kind}"] = f"post_layernorm.{kind}"
        for number in range(tower.depth):
            theirs = f"encoder.layers.{number}."
            for own, other in _NORMS.items():
                names[f"blocks.{number}.{own}.{kind}"] = f"{theirs}{other}.{kind}"
        state |= {own: weights.take(base + other).to(like) for own, other in names.items()}
    for number in range(tower.depth):
        block, theirs = f"blocks.{number}.", f"{base}encoder.layers.{number}."
        maps = {f"{block}{own}": f"{theirs}{other}" for own, other in _MAPS.items()}
        made = mapped_all(weights, maps, VISION, like)
        made[f"{block}attn.qkv"] = mapped(
            weights, f"{theirs}self_attn.qkv", VISION, like, stacked_qkv(f"{theirs}self_attn.")
        )
        state |= placed(model, made)
    table = weights.take(base + "embeddings.position_embedding.weight")
    state["positions"] = table[positions].to(like)
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(False).eval()


def stacked_qkv(base: str) -> Callable[[Take], Linear]:
    """What makes one map of a block's three."""

    def make(take: Take) -> Linear:
        weight, bias = (
            torch.cat([take(f"{base}{p}_proj.{kind}") for p in "qkv"])
            for kind in ("weight", "bias")
        )
        return Linear(weight, bias)

    return make
