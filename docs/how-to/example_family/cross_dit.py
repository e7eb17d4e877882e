"""A diffusion transformer whose actions read images, words and state: an example of a flow policy.

The four hooks of :class:`~vla_ros.engine.models.base.FlowPolicy` around an ordinary
``torch.nn.Module``. Patches, words and state are the rows of the prefix; every block projects their
keys and values once a chunk. In each solver step the actions attend to these and to each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from vla_ros.engine.io.weights import Expected, Weights
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.models.base import MASKED, FlowPolicy, Inputs, Span, round_up


@dataclass(frozen=True, slots=True)
class CrossDiTConfig:
    """What ``config.json`` says; widths in values, ``image_size`` and ``patch`` in pixels."""

    width: int
    heads: int
    layers: int
    vocab: int
    image_size: int
    patch: int
    max_text: int
    horizon: int
    steps: int
    action_dim: int
    state_dim: int
    cameras: tuple[str, ...]
    kind: str = "cross-dit"
    continues: tuple[str, ...] = ("rtc",)

    @property
    def action_width(self) -> int:
        """Actions have no padding."""
        return self.action_dim

    @property
    def patches(self) -> int:
        """Of one image."""
        return (self.image_size // self.patch) ** 2

    @property
    def longest(self) -> int:
        """Rows of the longest prefix: all cameras, the longest prompt, the state."""
        return len(self.cameras) * self.patches + self.max_text + 1


class Block(nn.Module):
    """Attention of the actions to the prefix and to each other, then a perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.prefix_kv = nn.Linear(width, 2 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)


class Network(nn.Module):
    """The tensors, under the names that a checkpoint stores them by."""

    def __init__(self, config: CrossDiTConfig) -> None:
        super().__init__()
        width = config.width
        self.patch_embed = nn.Conv2d(3, width, config.patch, config.patch)
        self.patch_position = nn.Parameter(torch.empty(config.patches, width))
        self.word_embed = nn.Embedding(config.vocab, width)
        self.state_embed = nn.Linear(config.state_dim, width)
        self.prefix_norm = nn.LayerNorm(width)
        self.action_embed = nn.Linear(config.action_dim, width)
        self.action_position = nn.Parameter(torch.empty(config.horizon, width))
        self.time_embed = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(config.layers))
        self.final_norm = nn.LayerNorm(width)
        self.action_out = nn.Linear(width, config.action_dim)


def network_without_memory(config: CrossDiTConfig) -> Network:
    """The modules on the meta device: names and shapes, no values."""
    with torch.device("meta"):
        return Network(config)


def expected_tensors(config: CrossDiTConfig) -> Expected:
    """The tensors of a checkpoint of ``config``."""
    state = network_without_memory(config).state_dict()
    return Expected({name: tuple(tensor.shape) for name, tensor in state.items()})


@dataclass(frozen=True, slots=True, eq=False)
class CrossSpan(Span):
    """Also the prefix's rows [length, width], and a mask [length] that is added to scores."""

    rows: torch.Tensor
    mask: torch.Tensor


class CrossDiT(FlowPolicy[CrossSpan]):
    """The network of one checkpoint on one device. Time goes from 0, noise, to 1."""

    config: CrossDiTConfig

    def __init__(
        self, config: CrossDiTConfig, weights: Weights, like: torch.Tensor, capture: Capture | None
    ) -> None:
        super().__init__(
            config,
            like,
            capture,
            longest=config.longest,
            state_width=config.state_dim,
            rising=True,
        )
        network = network_without_memory(config)
        taken = {name: weights.take(name).to(like) for name in network.state_dict()}
        network.load_state_dict(taken, assign=True)
        self.network = network.requires_grad_(False)
        entry = (config.layers, config.heads, self.longest, config.width // config.heads)
        self._keys, self._values = like.new_zeros(entry), like.new_zeros(entry)
        self._rows = like.new_zeros(self.longest, config.width)
        self._mask = like.new_zeros(self.longest)
        waves = time_waves(self.times, config.width).to(like)
        self._times = self.network.time_embed(waves)  # [N, width]: all that there are

    def encode_images(self, pixels: torch.Tensor) -> torch.Tensor:
        patches = self.network.patch_embed(pixels).flatten(2).transpose(1, 2)
        return (patches + self.network.patch_position).flatten(0, 1)

    def embed_prefix(self, features: torch.Tensor, ids: torch.Tensor) -> tuple[CrossSpan, int]:
        words = self.network.word_embed(ids)
        state = self.network.state_embed(self.state.to(self.dtype))[None]
        rows = torch.cat((features, words, state))
        count = len(rows)
        span = self._span_of(round_up(count, self.bucket))
        span.rows[:count].copy_(rows)
        span.rows[count:].zero_()
        span.mask.zero_()[count:] = MASKED
        return span, count

    def fill_kv_cache(self, span: CrossSpan) -> torch.Tensor:
        rows = self.network.prefix_norm(span.rows)
        for block, keys, values in zip(self.network.blocks, span.keys, span.values, strict=True):
            key, value = self._heads(block.prefix_kv(rows), 2)
            keys.copy_(key)
            values.copy_(value)
        return rows

    def embed_suffix(self, x: torch.Tensor, step: int, with_state: bool = False) -> torch.Tensor:
        rows = self.network.action_embed(x.to(self.dtype))
        return rows + self.network.action_position + self._times[step]

    def velocity(self, span: CrossSpan, rows: torch.Tensor, step: int) -> torch.Tensor:
        mask = F.pad(span.mask, (0, len(rows)))[None]  # actions see all actions
        for block, keys, values in zip(self.network.blocks, span.keys, span.values, strict=True):
            query, key, value = self._heads(block.qkv(block.norm1(rows)), 3)
            both = torch.cat((keys, key), 1), torch.cat((values, value), 1)
            seen = F.scaled_dot_product_attention(query, *both, attn_mask=mask)
            rows = rows + block.out(seen.transpose(0, 1).flatten(1))
            rows = rows + block.down(F.gelu(block.up(block.norm2(rows))))
        return self.network.action_out(self.network.final_norm(rows)).float()

    def example(self, words: int, generator: torch.Generator) -> Inputs:
        config, side = self.config, self.config.image_size
        pixels = torch.rand(len(config.cameras), 3, side, side, generator=generator) * 2 - 1
        ids = torch.arange(4, 4 + min(words, config.max_text), device=self.device)
        return Inputs(pixels.to(self.device), ids, torch.zeros(config.state_dim))

    def blank_span(self, image_rows: int, length: int) -> CrossSpan:
        span = self._span_of(length)
        span.mask.zero_()
        return span

    def _span_of(self, length: int) -> CrossSpan:
        if length > self.longest:
            raise ValueError(f"a prefix has at most {self.longest} rows, wanted {length}")
        return CrossSpan(
            (length,),
            length,
            self._keys[:, :, :length].unbind(),
            self._values[:, :, :length].unbind(),
            self._rows[:length],
            self._mask[:length],
        )

    def _heads(self, rows: torch.Tensor, parts: int) -> tuple[torch.Tensor, ...]:
        """Rows [n, parts * width] -> ``parts`` tensors [heads, n, d]."""
        split = rows.view(len(rows), parts, self.config.heads, -1)
        return split.permute(1, 2, 0, 3).unbind()


def time_waves(times: tuple[float, ...], width: int) -> torch.Tensor:
    """Cosine and sine of each time at width / 2 frequencies from 1 to 1000: [N, width]."""
    frequencies = torch.logspace(0, 3, width // 2)
    angles = math.pi * torch.tensor(times)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), 1)
