"""SmolVLA: SmolVLM's K and V, read by a narrower Llama with self and cross attention in turn.

Source: lerobot 0.6.1 ``modeling_smolvla.py`` and ``smolvlm_with_expert.py``. The state is the
last row of the prefix: it sees images and text, they do not see it. Every ``self_every``-th
layer of the expert attends to prefix and actions, an action to itself and those before it; the
others attend to K and V that are projected anew from the prefix's: these do not change between
solver steps, so they are computed once a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vla_ros.engine.io.flow_config import FlowConfig
from vla_ros.engine.io.linear import read_linear
from vla_ros.engine.io.quantize import HEAD, VISION, matrix
from vla_ros.engine.io.tensors import Plain, Table, shapes
from vla_ros.engine.io.weights import Expected, Weights
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.layers.linear import linear
from vla_ros.engine.models.base import MASKED, joined
from vla_ros.engine.models.siglip import pixel_shuffle
from vla_ros.engine.models.transformer import (
    Layer,
    Rope,
    attend,
    layer_table,
    linear_residual,
    norm,
    norm_gate_up,
    norm_qkv_rope,
    norm_scale,
    read_layer,
    tuner_of,
)
from vla_ros.engine.models.vlm_with_expert import (
    ActionTimeMlp,
    KVSpan,
    VLMWithExpert,
    action_table,
    append_kv,
    suffix_kv,
    vlm_table,
)

_VLM = "vlm_with_expert.vlm."
TOWER, TEXT = _VLM + "model.vision_model.", _VLM + "model.text_model."
CONNECTOR = _VLM + "model.connector.modality_projection.proj"
EXPERT = "vlm_with_expert.lm_expert."


class SmolVLA(VLMWithExpert):
    """One loaded SmolVLA."""

    prefix_is_masked = True
    buffers = (*VLMWithExpert.buffers, "_cross_kv")

    def __init__(
        self,
        config: FlowConfig,
        weights: Weights,
        positions: torch.Tensor,
        like: torch.Tensor,
        capture: Capture | None = None,
    ) -> None:
        super().__init__(
            config,
            weights,
            positions,
            like,
            capture,
            tower=TOWER,
            text=TEXT,
            tail=config.horizon,
            mask_rows=config.horizon,
        )
        text, expert = config.shapes.text, config.shapes.expert
        self._connector = matrix(weights, CONNECTOR, VISION, like)
        bases = [f"{EXPERT}layers.{i}." for i in range(expert.layers)]
        #: layer with cross attention -> its index among these
        self._cross = {number: index for index, number in enumerate(cross_layers(config))}
        self._kv_proj = [
            [matrix(weights, f"{bases[i]}self_attn.{p}_proj", HEAD, like) for p in "kv"]
            for i in self._cross
        ]
        self._expert: list[Layer] = [
            read_layer(weights, base, table, like, HEAD)
            for base, table in zip(bases, expert_layers(config), strict=True)
        ]
        entry = (2, len(self._cross), text.kv_heads, self.longest, text.head_dim)
        self._cross_kv = like.new_zeros(entry)
        self.action_time_mlp = ActionTimeMlp(weights, self.time_table(), like)
        self.state_proj = read_linear(weights, "state_proj").on(like.device)
        self.action_out_proj = read_linear(weights, "action_out_proj").on(like.device)
        scale = norm_scale(weights, EXPERT + "norm.weight", expert)
        self.action_out_proj.weight.mul_(scale.to(like.device))

    def encode_images(self, pixels: torch.Tensor) -> torch.Tensor:
        features = pixel_shuffle(self.tower(pixels), self.config.shapes.shuffle)
        rows = linear(features, self._connector).flatten(0, 1)
        return rows * rows.shape[1] ** 0.5

    def prefix_rows(self, features: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        state = self.state_proj(self.state)[None].to(self.dtype)
        return *super().prefix_rows(features, ids), state

    def mask(self, span: KVSpan, count: int) -> None:
        super().mask(span, count)
        span.prefix_mask[: count - 1, count - 1] = MASKED
        span.suffix_mask[:, span.length :].fill_(MASKED).triu_(1)

    def begin_chunk(self, span: KVSpan) -> None:
        """K and V of the cross attention, made from the prefix's."""
        for number, index in self._cross.items():
            sources = span.keys[number], span.values[number]
            for proj, source, target in zip(
                self._kv_proj[index], sources, self._cross_kv[:, index], strict=True
            ):
                rows = source.transpose(0, 1).reshape(span.length, -1)
                made = linear(rows, proj).view(span.length, len(source), -1).transpose(0, 1)
                target[:, : span.length].copy_(made)

    def embed_suffix(self, x: torch.Tensor, step: int, with_state: bool = False) -> torch.Tensor:
        return self.action_time_mlp(x, step, self.given).to(self.dtype)

    def velocity(self, span: KVSpan, rows: torch.Tensor, step: int) -> torch.Tensor:
        return self.velocities([(self, span, rows)], step)[0]

    def velocities(
        self, suffixes: Sequence[tuple[SmolVLA, KVSpan, torch.Tensor]], step: int
    ) -> Sequence[torch.Tensor]:
        expert, rows = self.config.shapes.expert, joined([rows for *_, rows in suffixes])
        count, table = self.horizon, self.rotary
        # Across, actions count from position 0.
        across = Rope(*(joined([t[:count]] * len(suffixes)) for t in (table.cos, table.sin)))
        tables = ([model.cos for model, *_ in suffixes], [model.sin for model, *_ in suffixes])
        jointly = Rope(*map(joined, tables))
        for number, layer in enumerate(self._expert):
            index, tuner = self._cross.get(number), tuner_of(layer.out)
            if index is not None:
                q, *_ = norm_qkv_rope(rows, layer, expert, (expert.heads, 0), across)
                out = [
                    attend(own, *model._across(span, index), tuner)
                    for (model, span, _), own in zip(suffixes, q.split(count, 1), strict=True)
                ]
            else:
                into = suffix_kv(suffixes[0][1], number, 0, count) if len(suffixes) == 1 else None
                heads = expert.heads, expert.kv_heads
                qkv = norm_qkv_rope(rows, layer, expert, heads, jointly, into)
                out = []
                each = zip(suffixes, *(part.split(count, 1) for part in qkv), strict=True)
                for (_, span, _), own, k, v in each:
                    keys, values = append_kv(span, number, 0, k, v, there=into is not None)
                    out.append(attend(own, keys, values, span.suffix_mask, tuner))
            rows = linear_residual(rows, joined(out), layer.out)
            rows = linear_residual(rows, norm_gate_up(rows, layer, expert), layer.down)
        return self.action_out_proj(norm(rows.float(), expert.rms_eps)).split(self.horizon)

    def _across(
        self, span: KVSpan, index: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """K and V of the prefix alone, and the mask of its padding."""
        keys, values = self._cross_kv[:, index, :, : span.length]
        return keys, values, span.suffix_mask[:1, : span.length] if self.padded else None


def cross_layers(config: FlowConfig) -> list[int]:
    """The expert's layers with cross attention."""
    every, count = config.self_every, config.shapes.expert.layers
    return [i for i in range(count) if every and i % every]


def smolvla_expected(config: FlowConfig) -> Expected:
    """The tensors of a checkpoint; those of the VLM's head may be missing."""
    text, expert, vision = config.shapes.text, config.shapes.expert, config.shapes.vision
    table: Table = {
        **vlm_table(config, TOWER, TEXT),
        **action_table(config),
        f"{CONNECTOR}.weight": Plain((text.hidden_size, vision.width * config.shapes.shuffle**2)),
        f"{EXPERT}layers": expert_layers(config),
        f"{EXPERT}norm.weight": Plain((expert.hidden_size,)),
        "state_proj": (config.state_width, text.hidden_size),
    }
    return Expected(shapes(table), {_VLM + "lm_head.weight": (text.vocab_size, text.hidden_size)})


def expert_layers(config: FlowConfig) -> list[Table]:
    """The expert's layers; those with cross attention make K and V of the prefix's."""
    text, expert, across = config.shapes.text, config.shapes.expert, cross_layers(config)
    kv_in = dict.fromkeys(across, text.kv_heads * text.head_dim)
    return [layer_table(expert, kv_in=kv_in.get(number)) for number in range(expert.layers)]
