"""ACT: feature maps of a ResNet and the state through an encoder, a chunk out of a decoder.

No language model is in it and no instruction goes in. What trained it as a VAE is left out: at
inference its latent is zero, so its row of the encoder is a bias. Nothing is denoised: ``steps`` is
0. What is the same for every observation is made once at load: the positions' part of Q and K, the
rows that the decoder's first attention makes of zeros, batch norms within the convolutions.

Source: lerobot 0.6.1 ``modeling_act.py``; torchvision 0.26 ``resnet.py``, ``FrozenBatchNorm2d``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from vla_ros.engine.io.linear import Linear, read_linear
from vla_ros.engine.io.quantize import DECODER, HEAD, VISION, Take, mapped
from vla_ros.engine.io.tensors import Plain, Table, shapes
from vla_ros.engine.io.weights import Expected, Weights
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.layers.linear import linear
from vla_ros.engine.models.base import FlowPolicy, Inputs, Span, joined

#: blocks of each of the four stages
RESNETS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
CHANNELS = (64, 128, 256, 512)
STRIDE = 32  # pixels of an image that are one row
EPS = 1e-5  # of torchvision's batch norms and of torch's layer norms
NORM = ("weight", "bias", "running_mean", "running_var")


@dataclass(frozen=True, slots=True)
class View:
    """A camera's images: the name of their feature in config.json, height and width in pixels."""

    feature: str
    height: int
    width: int

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the last feature map."""
        return -(-self.height // STRIDE), -(-self.width // STRIDE)


@dataclass(frozen=True, slots=True)
class ActConfig:
    """``cameras``: the views' names on the robot. ``width``, ``heads``, ``mlp`` and ``activation``
    of the transformer, ``layers`` of its encoder; ``pre_norm``: norms in front, not behind.
    ``vae``, ``latent`` and ``vae_layers``: what only its training uses. ``state_dim`` may be 0."""

    horizon: int
    action_dim: int
    state_dim: int
    cameras: tuple[str, ...]
    views: tuple[View, ...]
    backbone: str = "resnet18"
    width: int = 512
    heads: int = 8
    mlp: int = 3200
    activation: str = "relu"
    layers: int = 4
    decoder_layers: int = 1
    pre_norm: bool = False
    vae: bool = True
    latent: int = 32
    vae_layers: int = 4
    steps: int = 0
    kind: str = "act"
    continues: tuple[str, ...] = ()

    @property
    def action_width(self) -> int:
        """Actions have no padding."""
        return self.action_dim

    @property
    def front(self) -> int:
        """Rows in front of the images': the latent's, and the state's where there is one."""
        return 1 + (self.state_dim > 0)

    @property
    def longest(self) -> int:
        """Rows of the encoder."""
        return self.front + sum(math.prod(view.grid) for view in self.views)


# The tensors of a checkpoint.


def act_expected(config: ActConfig) -> Expected:
    """The tensors of a checkpoint; those that only trained it may be missing."""
    width = config.width
    attention: Table = {
        "in_proj_weight": Plain((3 * width, width)), "in_proj_bias": Plain((3 * width,)),
        "out_proj": (width, width),
    }  # fmt: skip
    layer: Table = {
        "self_attn": attention, "linear1": (width, config.mlp), "linear2": (config.mlp, width),
        "norm1": width, "norm2": width,
    }  # fmt: skip
    final: Table = {"norm": width} if config.pre_norm else {}
    state = (config.state_dim, width)
    must: Table = {
        "backbone": _resnet_table(RESNETS[config.backbone]),
        "encoder": {"layers": [layer] * config.layers, **final},
        "decoder": {
            "layers": [{**layer, "multihead_attn": attention, "norm3": width}]
            * config.decoder_layers,
            "norm": width,
        },
        **({"encoder_robot_state_input_proj": state} if config.state_dim else {}),
        "encoder_latent_input_proj": (config.latent, width),
        "encoder_img_feat_input_proj.weight": Plain((width, CHANNELS[-1], 1, 1)),
        "encoder_img_feat_input_proj.bias": Plain((width,)),
        "encoder_1d_feature_pos_embed.weight": Plain((config.front, width)),
        "decoder_pos_embed.weight": Plain((config.horizon, width)),
        "action_head": (width, config.action_dim),
    }
    spare: Table = {
        "vae_encoder": {"layers": [layer] * config.vae_layers, **final},
        "vae_encoder_cls_embed.weight": Plain((1, width)),
        **({"vae_encoder_robot_state_input_proj": state} if config.state_dim else {}),
        "vae_encoder_action_input_proj": (config.action_dim, width),
        "vae_encoder_latent_output_proj": (width, 2 * config.latent),
        "vae_encoder_pos_enc": Plain((1, config.front + config.horizon, width)),
    }
    return Expected(shapes(must), shapes(spare) if config.vae else {})


def _resnet_table(blocks: Iterable[int]) -> Table:
    def conv(number: int, inputs: int, outputs: int, side: int = 3) -> Table:
        return {f"conv{number}.weight": Plain((outputs, inputs, side, side)),
                f"bn{number}": _norm_table(outputs)}  # fmt: skip

    table, inputs = dict(conv(1, 3, CHANNELS[0], 7)), CHANNELS[0]
    for stage, (count, outputs) in enumerate(zip(blocks, CHANNELS, strict=True), 1):
        made: list[Table] = []
        for _ in range(count):
            short: Table = {"downsample.0.weight": Plain((outputs, inputs, 1, 1)),
                            "downsample.1": _norm_table(outputs)}  # fmt: skip
            own = {**conv(1, inputs, outputs), **conv(2, outputs, outputs)}
            made.append({**own, **short} if inputs != outputs else own)
            inputs = outputs
        table[f"layer{stage}"] = made
    return table


def _norm_table(width: int) -> Table:
    return {name: Plain((width,)) for name in NORM}


# The network.


class Conv:
    """A convolution with the frozen batch norm behind it folded in."""

    def __init__(
        self, weights: Weights, name: str, norm: str, like: torch.Tensor, stride: int = 1
    ) -> None:
        scale, shift, mean, variance = (weights.take(f"{norm}.{one}") for one in NORM)
        scale = scale * (variance + EPS).rsqrt()
        weight = weights.take(f"{name}.weight") * scale[:, None, None, None]
        self._weight = weight.to(like).contiguous(memory_format=torch.channels_last)
        self._bias, self._stride = (shift - mean * scale).to(like), stride

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, self._weight, self._bias, self._stride, self._weight.shape[-1] // 2)


class ResNet:
    """Pixels [B, 3, h, w] -> the last feature map [B, 512, h / 32, w / 32]."""

    def __init__(
        self, weights: Weights, base: str, blocks: Iterable[int], like: torch.Tensor
    ) -> None:
        self._stem = Conv(weights, f"{base}conv1", f"{base}bn1", like, 2)
        self._blocks: list[tuple[Conv, Conv, Conv | None]] = []
        for stage, count in enumerate(blocks, 1):
            for number in range(count):
                own, first = f"{base}layer{stage}.{number}.", stage > 1 and number == 0
                stride = 2 if first else 1
                begin = Conv(weights, f"{own}conv1", f"{own}bn1", like, stride)
                end = Conv(weights, f"{own}conv2", f"{own}bn2", like)
                short = f"{own}downsample."
                across = Conv(weights, f"{short}0", f"{short}1", like, 2) if first else None
                self._blocks.append((begin, end, across))

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        x = pixels.contiguous(memory_format=torch.channels_last)
        x = F.max_pool2d(F.relu_(self._stem(x)), 3, 2, 1)
        for first, second, across in self._blocks:
            kept = x if across is None else across(x)
            x = F.relu_(second(F.relu_(first(x))).add_(kept))
        return x


class Attention:
    """torch's ``MultiheadAttention`` of rows whose positions never change: ``at`` [n, C] are those
    of the rows that ask, ``memory_at`` of those that are read."""

    def __init__(
        self,
        weights: Weights,
        base: str,
        part: str,
        heads: int,
        at: torch.Tensor,
        memory_at: torch.Tensor,
    ) -> None:
        width = at.shape[-1]

        def rows(begin: int, end: int) -> Callable[[Take], Linear]:
            some = slice(begin * width, end * width)
            return lambda take: Linear(
                take(f"{base}in_proj_weight")[some], take(f"{base}in_proj_bias")[some]
            )

        asks = mapped(weights, f"{base}q", part, at, rows(0, 1))
        reads = mapped(weights, f"{base}kv", part, at, rows(1, 3))
        self._heads, self._q, self._kv = heads, asks.weight, reads.weight
        self._out = mapped(weights, f"{base}out_proj", part, at)
        self._q_at, self._kv_at = asks(at), reads(memory_at)
        self._kv_at[:, width:] = reads.bias[width:]  # V has no positions

    def keys_values(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Rows [B, n, C] -> K and V [B, heads, n, d]."""
        return self._split(linear(rows, self._kv) + self._kv_at, 2)

    def __call__(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        (query,) = self._split(linear(x, self._q) + self._q_at, 1)
        seen = F.scaled_dot_product_attention(query, keys, values)
        return self._out(seen.transpose(1, 2).flatten(2))

    def _split(self, rows: torch.Tensor, parts: int) -> tuple[torch.Tensor, ...]:
        return rows.unflatten(-1, (parts, self._heads, -1)).permute(2, 0, 3, 1, 4).unbind()


class Norm:
    """A layer norm."""

    def __init__(self, weights: Weights, name: str, like: torch.Tensor) -> None:
        self._weight, self._bias = (weights.take(f"{name}.{one}").to(like) for one in NORM[:2])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], self._weight, self._bias, EPS)


class Layer:
    """A layer: rows [B, n, C] among themselves, into a memory where there is one, alone."""

    def __init__(
        self,
        weights: Weights,
        base: str,
        part: str,
        config: ActConfig,
        at: torch.Tensor,
        memory_at: torch.Tensor | None = None,
    ) -> None:
        self._own = Attention(weights, f"{base}self_attn.", part, config.heads, at, at)
        self.across: Attention | None = None
        if memory_at is not None:
            across = f"{base}multihead_attn."
            self.across = Attention(weights, across, part, config.heads, at, memory_at)
        count = 2 if memory_at is None else 3
        self._norms = [Norm(weights, f"{base}norm{i + 1}", at) for i in range(count)]
        self._up, self._down = (mapped(weights, f"{base}linear{i}", part, at) for i in (1, 2))
        self._gelu = config.activation == "gelu"
        self._pre_norm = config.pre_norm

    def among(self, x: torch.Tensor) -> torch.Tensor:
        return self._added(0, x, lambda y: self._own(y, *self._own.keys_values(y)))

    def behind(self, x: torch.Tensor, *memory: torch.Tensor) -> torch.Tensor:
        """What comes behind :meth:`among`; ``memory``: K and V of it."""
        across = self.across
        if across is not None:
            x = self._added(1, x, lambda y: across(y, *memory))
        act = F.gelu if self._gelu else F.relu
        return self._added(-1, x, lambda y: self._down(act(self._up(y))))

    def _added(
        self, number: int, x: torch.Tensor, inner: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        norm = self._norms[number]
        return x + inner(norm(x)) if self._pre_norm else norm(x + inner(x))


@dataclass(frozen=True, slots=True, eq=False)
class ActSpan(Span):
    """Also the encoder's rows [n, C]."""

    rows: torch.Tensor


class Act(FlowPolicy[ActSpan]):
    """One loaded ACT. Pixels are a row [1, n], camera after camera: their sizes may differ.

    K and V of the prefix are those that the decoder reads of the encoder's rows.
    """

    config: ActConfig
    joins = True

    def __init__(
        self,
        config: ActConfig,
        weights: Weights,
        like: torch.Tensor,
        capture: Capture | None = None,
    ) -> None:
        super().__init__(
            config, like, capture, longest=config.longest, state_width=config.state_dim
        )
        self.bucket = 1  # there is one length
        self._numbers = [3 * view.height * view.width for view in config.views]
        self._backbone = ResNet(weights, "backbone.", RESNETS[config.backbone], like)
        name = "encoder_img_feat_input_proj"
        self._image_proj = mapped(
            weights, name, VISION, like,
            lambda take: Linear(take(f"{name}.weight").flatten(1), take(f"{name}.bias")),
        )  # fmt: skip
        self._latent = weights.take("encoder_latent_input_proj.bias").to(like)
        self._state_proj = None
        if config.state_dim:
            self._state_proj = read_linear(weights, "encoder_robot_state_input_proj").to(like)
        front = weights.take("encoder_1d_feature_pos_embed.weight").to(like)
        grids = [grid_positions(*view.grid, config.width).to(like) for view in config.views]
        at, queries = torch.cat((front, *grids)), weights.take("decoder_pos_embed.weight").to(like)
        self._encoder = [
            Layer(weights, f"encoder.layers.{i}.", DECODER, config, at)
            for i in range(config.layers)
        ]
        self._encoded: Callable[[torch.Tensor], torch.Tensor] = (
            Norm(weights, "encoder.norm", like) if config.pre_norm else lambda x: x
        )
        self._decoder = [
            Layer(weights, f"decoder.layers.{i}.", HEAD, config, queries, at)
            for i in range(config.decoder_layers)
        ]
        self._decoded = Norm(weights, "decoder.norm", like)
        self._action_head = read_linear(weights, "action_head").to(like)
        with torch.inference_mode():  # a decoder starts from zeros
            self._begun = self._decoder[0].among(torch.zeros_like(queries)[None])[0]
        self._own: ActSpan | None = None

    @property
    def padded(self) -> bool:
        """The one graph of each kind can be captured before the first observation."""
        return self.captured.captures

    def encode_images(self, pixels: torch.Tensor) -> torch.Tensor:
        rows = []
        each = pixels.split(self._numbers, 1)
        for view, numbers in zip(self.config.views, each, strict=True):
            found = self._backbone(numbers.reshape(-1, 3, view.height, view.width))
            rows.append(self._image_proj(found.flatten(2).transpose(1, 2)))
        return joined(rows, 1).flatten(0, 1)

    def embed_prefix(self, features: torch.Tensor, ids: torch.Tensor) -> tuple[ActSpan, int]:
        span = self._the_span()
        if self._state_proj is not None:
            span.rows[1] = self._state_proj(self.state.to(self.dtype))
        span.rows[self.config.front :].copy_(features)
        return span, span.length

    def fill_kv_cache(self, span: ActSpan) -> torch.Tensor:
        return self.fill_together([(self, span)])

    def fill_together(self, spans: Sequence[tuple[Any, Any]]) -> torch.Tensor:
        x = joined([span.rows[None] for _, span in spans])
        for layer in self._encoder:
            x = layer.behind(layer.among(x))
        x = self._encoded(x)
        for number, layer in enumerate(self._decoder):
            assert layer.across is not None
            keys, values = layer.across.keys_values(x)
            for (_, span), key, value in zip(spans, keys, values, strict=True):
                span.keys[number].copy_(key)
                span.values[number].copy_(value)
        return x

    def embed_suffix(self, x: torch.Tensor, step: int, with_state: bool = False) -> torch.Tensor:
        """The decoder's rows behind its first attention; there are no noisy actions."""
        return self._begun

    def velocity(self, span: ActSpan, rows: torch.Tensor, step: int) -> torch.Tensor:
        """The actions themselves."""
        return self.velocities([(self, span, rows)], step)[0]

    def velocities(
        self, suffixes: Sequence[tuple[Any, Any, torch.Tensor]], step: int
    ) -> Sequence[torch.Tensor]:
        x = joined([rows[None] for *_, rows in suffixes])
        for number, layer in enumerate(self._decoder):
            memory = (
                joined([part[number][None] for part in parts])
                for parts in zip(*((s.keys, s.values) for _, s, _ in suffixes), strict=True)
            )
            x = layer.behind(layer.among(x) if number else x, *memory)
        return self._action_head(self._decoded(x)).float().unbind()

    def example(self, words: int, generator: torch.Generator) -> Inputs:
        pixels = torch.randn(1, sum(self._numbers), generator=generator).to(self.device)
        return Inputs(pixels, torch.empty(0, dtype=torch.int64), torch.zeros(self.config.state_dim))

    def blank_span(self, image_rows: int, length: int) -> ActSpan:
        return self._the_span()

    def _blank_spans(self, image_rows: int) -> Iterable[ActSpan]:
        return (self._the_span(),)

    def session(self) -> FlowPolicy[ActSpan]:
        other = super().session()
        assert isinstance(other, Act)
        other._own = None
        return other

    def _the_span(self) -> ActSpan:
        if self._own is None:
            config, length = self.config, self.config.longest
            entry = (config.decoder_layers, config.heads, length, config.width // config.heads)
            keys, values = (self._latent.new_zeros(entry).unbind() for _ in range(2))
            rows = self._latent.new_zeros(length, config.width)
            rows[0] = self._latent
            self._own = ActSpan((length,), length, keys, values, rows)
        return self._own


def grid_positions(rows: int, columns: int, width: int) -> torch.Tensor:
    """Positions [rows * columns, width] of a feature map: waves of the row in front, of the column
    behind; both count from 1, and the last is 2 pi."""
    half = width // 2
    waves = 10000.0 ** (2 * (torch.arange(half, dtype=torch.float32) // 2) / half)
    parts = []
    for count in (rows, columns):
        steps = torch.arange(1, count + 1, dtype=torch.float32)
        angles = (steps / (count + 1e-6) * (2 * math.pi))[:, None] / waves
        parts.append(torch.stack((angles[:, 0::2].sin(), angles[:, 1::2].cos()), -1).flatten(1))
    down = parts[0][:, None].expand(-1, columns, -1)
    across = parts[1][None].expand(rows, -1, -1)
    return torch.cat((down, across), -1).flatten(0, 1)
