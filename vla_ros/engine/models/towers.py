"""Vision towers and projector, with OpenVLA's tensor names. No timm, no torchvision.

Sources: timm ``vision_transformer.py`` (DINOv2 with registers, SigLIP) and openvla
``modeling_prismatic.py`` (which features are taken, how they are fused and projected).
Ordinary modules: they can be trained as well as run.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import nn

from vla_ros.engine.io.config import ModelConfig, TowerConfig
from vla_ros.engine.layers.flash import flash
from vla_ros.engine.layers.linear import linear_gelu
from vla_ros.engine.layers.prepacked import has_wide_products

_SCORES = 2 << 20  # bytes that stay in a core's cache


@lru_cache
def _by_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN's products are faster there than torch's flash attention, which multiplies
    bfloat16 at their pace with AMX alone."""
    wide = dtype == torch.bfloat16 and has_wide_products(device, dtype)
    return wide and not torch.cpu._is_amx_tile_supported()


def attend_all(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    """Attention in which every query sees every key: q [B, H, n, D], k and v [B, H, m, D] -> [B, H,
    n, D]. ``scale`` of the scores: 1 / sqrt(D) if none is given.

    In bfloat16 on a CPU some heads at a time, as many as have their scores in the cache: 1,024
    patches in 24 heads of 64 take 48 ms against flash attention's 87 (one core of a Zen 4), 256 in
    16 heads 2.6 against 4.3. Their scores are rounded once more, as in transformers' eager
    attention.
    """
    across = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    made = flash(*across, scale or q.shape[3] ** -0.5)
    if made is not None:
        return made.transpose(1, 2)
    torchs = torch.compiler.is_compiling() or torch.is_grad_enabled()
    if torchs or not _by_products(q.device, q.dtype):
        return F.scaled_dot_product_attention(q, k, v, scale=scale)
    batch, heads, count, dim = q.shape
    scale = dim**-0.5 if scale is None else scale
    queries, keys, values = (x.reshape(batch * heads, -1, dim) for x in (q, k, v))
    out, nothing = torch.empty_like(queries), q.new_zeros(1)
    step = max(_SCORES // (count * values.shape[1] * q.element_size()), 1)
    for first in range(0, len(out), step):
        some = slice(first, first + step)
        scores = torch.baddbmm(
            nothing, queries[some], keys[some].transpose(1, 2), beta=0, alpha=scale
        )
        torch.bmm(scores.softmax(-1), values[some], out=out[some])
    return out.view(batch, heads, count, dim)


class LayerScale(nn.Module):
    """Per-channel scale; timm calls the tensor ``gamma``, OpenVLA ``scale_factor``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.full((width,), 1e-5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale_factor


class Attention(nn.Module):
    """Bidirectional self-attention over the patches."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, count, width = x.shape
        qkv = self.qkv(x).view(batch, count, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        out = attend_all(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(batch, count, width))


class Mlp(nn.Module):
    """MLP of a block: Linear, GELU (exact, or approximated by tanh), Linear."""

    def __init__(self, width: int, hidden: int, activation: str = "gelu") -> None:
        super().__init__()
        self._approximate = "tanh" if activation == "gelu_tanh" else "none"
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(linear_gelu(self.fc1, x, self._approximate))


class Block(nn.Module):
    """Pre-norm transformer block; LayerNorm eps 1e-6 in both towers."""

    def __init__(self, tower: TowerConfig) -> None:
        super().__init__()
        width = tower.width
        self.norm1 = nn.LayerNorm(width, 1e-6)
        self.attn = Attention(width, tower.heads)
        self.norm2 = nn.LayerNorm(width, 1e-6)
        self.mlp = Mlp(width, tower.mlp, tower.activation)
        self.ls1 = LayerScale(width) if tower.layer_scale else nn.Identity()
        self.ls2 = LayerScale(width) if tower.layer_scale else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class PatchEmbed(nn.Module):
    """Non-overlapping patches through one linear map, written as a convolution."""

    def __init__(self, tower: TowerConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, tower.width, tower.patch, tower.patch)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        # A convolution leaves the channels in front; all that is added to these rows would keep
        # that order, and every norm of the tower would copy them.
        return self.proj(pixels).flatten(2).transpose(1, 2).contiguous()


class Tower(nn.Module):
    """Pixels [B, 3, size, size] -> patch features [B, patches, width] of block depth - 2.

    The position embedding is on the patches only; class and register tokens go in front of
    them and are dropped from the output; no final norm; the last block does not exist here.
    """

    def __init__(self, tower: TowerConfig) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(tower)
        self.pos_embed = nn.Parameter(torch.empty(1, tower.patches, tower.width))
        nn.init.uniform_(self.pos_embed, -0.03, 0.03)  # trainers set their own
        if tower.class_token:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, tower.width))
        if tower.registers:
            self.reg_token = nn.Parameter(torch.zeros(1, tower.registers, tower.width))
        self.prefix = tower.registers + int(tower.class_token)
        self.blocks = nn.ModuleList(Block(tower) for _ in range(tower.depth - 1))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = self.patch_embed(pixels) + self.pos_embed
        front = [getattr(self, n) for n in ("cls_token", "reg_token") if hasattr(self, n)]
        if front:
            x = torch.cat([*(t.expand(len(x), -1, -1) for t in front), x], dim=1)
        for block in self.blocks:
            x = block(x)
        return x[:, self.prefix :]


class VisionBackbone(nn.Module):
    """One tower, or two on the same image whose features are concatenated (DINOv2, SigLIP)."""

    def __init__(self, towers: tuple[TowerConfig, ...]) -> None:
        super().__init__()
        self.featurizer = Tower(towers[0])
        if len(towers) == 2:
            self.fused_featurizer = Tower(towers[1])
        self.fused = len(towers) == 2

    @property
    def towers(self) -> tuple[Tower, ...]:
        """The one tower, or both."""
        return (self.featurizer, self.fused_featurizer) if self.fused else (self.featurizer,)

    def forward(self, pixels: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """One tensor [B, 3, size, size] per tower -> [B, patches, sum of widths]."""
        features = [tower(x) for tower, x in zip(self.towers, pixels, strict=True)]
        return torch.cat(features, dim=-1) if self.fused else features[0]


class Projector(nn.Module):
    """Features -> the language model's width.

    Fused towers: fc1 to 4 times the width, GELU, fc2, GELU, fc3. One tower: fc1, GELU, fc2.
    """

    def __init__(self, width: int, hidden: int, fused: bool) -> None:
        super().__init__()
        middle = 4 * width if fused else hidden
        self.fc1 = nn.Linear(width, middle)
        self.fc2 = nn.Linear(middle, hidden)
        if fused:
            self.fc3 = nn.Linear(hidden, hidden)
        self.fused = fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.fused:
            return self.fc2(linear_gelu(self.fc1, x))
        return self.fc3(linear_gelu(self.fc2, linear_gelu(self.fc1, x)))


class Vision(nn.Module):
    """Backbone and projector under the checkpoint's names."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.vision_backbone = VisionBackbone(config.towers)
        self.projector = Projector(
            config.feature_width, config.text.hidden_size, len(config.towers) == 2
        )

    def features(self, pixels: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Pixels of one or more images -> [images * patches, sum of widths]."""
        return self.vision_backbone(pixels).flatten(0, 1)

    def forward(self, pixels: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Pixels -> embeddings [images * patches, hidden] for the language model."""
        return self.projector(self.features(pixels))
