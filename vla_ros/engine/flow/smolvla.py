"""SmolVLA: SmolVLM's K and V, read by a narrower Llama with self and cross attention in turn.

Source: lerobot 0.6.1 ``modeling_smolvla.py`` and ``smolvlm_with_expert.py``. The state is the
last row of the prefix: it sees images and text, they do not see it. Every ``self_every``-th
layer of the expert attends to prefix and actions, an action to itself and those before it; the
others attend to K and V that are made anew from the prefix's: these do not change between
solver steps, so they are computed once a chunk.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vla_ros.engine.flow.buffers import MASKED, Span, laid
from vla_ros.engine.flow.config import FlowConfig
from vla_ros.engine.flow.layers import (
    Layer,
    attend,
    layer_shapes,
    mlp,
    norm,
    norm_scale,
    read_layer,
    split,
)
from vla_ros.engine.flow.matrices import DECODER, HEAD, VISION, matrix
from vla_ros.engine.flow.model import FlowModel
from vla_ros.engine.flow.siglip import read_siglip, siglip_shapes
from vla_ros.engine.flow.suffix import TimedActions, linear_shapes, read_linear
from vla_ros.engine.flow.tables import time_table
from vla_ros.engine.flow.weights import Expected, Shape, Weights
from vla_ros.engine.packed.graphs import Capture
from vla_ros.engine.packed.kernels.rope_write import rotate
from vla_ros.engine.quantised.matrices import Weight, linear

_VLM = "vlm_with_expert.vlm."
_TOWER, TEXT = _VLM + "model.vision_model.", _VLM + "model.text_model."
_CONNECTOR = _VLM + "model.connector.modality_projection.proj.weight"
_EXPERT = "vlm_with_expert.lm_expert."


class SmolVlaModel(FlowModel):
    """One loaded SmolVLA."""

    prefix_is_masked = True

    def __init__(
        self,
        config: FlowConfig,
        weights: Weights,
        positions: torch.Tensor,
        like: torch.Tensor,
        capture: Capture | None = None,
    ) -> None:
        far = far_layers(config)
        super().__init__(config, like, capture, config.horizon, config.horizon, len(far))
        text, expert = config.shapes.text, config.shapes.expert
        self._tower = read_siglip(weights, _TOWER, config.shapes.vision, positions, like)
        self._connector = matrix(
            weights, _CONNECTOR.removesuffix(".weight"), VISION, like,
            lambda take: take(_CONNECTOR),
        )  # fmt: skip
        self._embedding = weights.take(TEXT + "embed_tokens.weight").to(like)
        self.layers = [
            read_layer(weights, f"{TEXT}layers.{i}.", text, like, DECODER,
                       parts="kv" if i == text.layers - 1 else "qkv")
            for i in range(text.layers)
        ]  # fmt: skip
        bases = [f"{_EXPERT}layers.{i}." for i in range(expert.layers)]
        self._far = {number: place for place, number in enumerate(far)}
        self._remake = [
            tuple(_remade(weights, f"{bases[i]}self_attn.{p}_proj", like) for p in "kv")
            for i in far
        ]
        self._expert: list[Layer] = [
            read_layer(weights, base, expert, like, HEAD, parts="q" if i in self._far else "qkv")
            for i, base in enumerate(bases)
        ]
        times = time_table(
            self._times, expert.hidden_size, config.min_period, config.max_period
        ).to(like.device)
        self._timed = TimedActions(weights, times, like)
        self._state = read_linear(weights, "state_proj").on(like.device)
        self._out = read_linear(weights, "action_out_proj").on(like.device)
        scale = norm_scale(weights, _EXPERT + "norm.weight", expert)
        self._out.weight.mul_(scale.to(like.device))

    def _see(self, pixels: torch.Tensor) -> torch.Tensor:
        features = shuffled(self._tower(pixels), self.config.shapes.shuffle)
        rows = linear(features, self._connector).flatten(0, 1)
        return rows * rows.shape[1] ** 0.5

    def _rows(self, features: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        words = F.embedding(ids, self._embedding) * self._embedding.shape[1] ** 0.5
        return features, words, self._state(self.buffers.state)[None].to(self.dtype)

    def _lay_masks(self, span: Span, count: int) -> None:
        super()._lay_masks(span, count)
        span.prefix_mask[: count - 1, count - 1] = MASKED
        ahead = span.suffix_mask[:, span.length :]
        ahead.fill_(MASKED).triu_(1)

    def _fresh(self, span: Span, x: torch.Tensor, step: int) -> torch.Tensor:
        self._remake_far(span)
        return self._velocity(span, x, step)

    def _remake_far(self, span: Span) -> None:
        """K and V of the cross attention, made from the prefix's."""
        length = span.length
        for number, place in self._far.items():
            pairs = (
                (self._remake[place][0], span.keys[number], span.far_keys[place]),
                (self._remake[place][1], span.values[number], span.far_values[place]),
            )
            for remade, source, target in pairs:
                rows = source[:, :length].transpose(0, 1).reshape(length, -1)
                target.copy_(linear(rows, remade).view(length, len(source), -1).transpose(0, 1))

    def _velocity(self, span: Span, x: torch.Tensor, step: int) -> torch.Tensor:
        expert = self.config.shapes.expert
        rows = self._timed(x, step, self._given).to(self.dtype)
        for number, layer in enumerate(self._expert):
            projected = linear(norm(rows, expert.rms_eps), layer.qkv)
            place = self._far.get(number)
            if place is None:
                out = self._joint(span, number, projected)
            else:
                out = self._cross(span, place, projected)
            rows = rows + linear(out, layer.out)
            rows = rows + mlp(norm(rows, expert.rms_eps), layer, expert)
        return self._out(norm(rows.float(), expert.rms_eps))

    def _joint(self, span: Span, number: int, qkv: torch.Tensor) -> torch.Tensor:
        """Attention to the prefix and to the actions so far."""
        expert, begin = self.config.shapes.expert, span.length
        keys, values = span.keys[number], span.values[number]
        cos, sin = self.buffers.cos, self.buffers.sin
        q, k, v = split(qkv, expert.heads, expert.kv_heads, cos, sin)
        return attend(q, laid(keys, begin, k), laid(values, begin, v), span.suffix_mask)

    def _cross(self, span: Span, place: int, q: torch.Tensor) -> torch.Tensor:
        """Attention to the prefix alone; actions count from position 0 here."""
        expert, count = self.config.shapes.expert, len(q)
        heads = q.view(count, expert.heads, -1).transpose(0, 1)
        q = rotate(heads.float(), self._rope.cos[:count], self._rope.sin[:count]).to(q.dtype)
        mask = span.suffix_mask[:1, : span.length] if self.padded else None
        return attend(q, span.far_keys[place], span.far_values[place], mask)


def _remade(weights: Weights, name: str, like: torch.Tensor) -> Weight:
    return matrix(weights, name, HEAD, like, lambda take: take(f"{name}.weight"))


def far_layers(config: FlowConfig) -> list[int]:
    """The expert's layers with cross attention."""
    every, count = config.self_every, config.shapes.expert.layers
    return [i for i in range(count) if every and i % every]


def shuffled(features: torch.Tensor, factor: int) -> torch.Tensor:
    """SmolVLM's pixel shuffle: [V, s * s, C] -> [V, (s / f) ** 2, C f ** 2]."""
    views, count, width = features.shape
    side, less = round(count**0.5), round(count**0.5) // factor
    grid = features.view(views, less, factor, less, factor, width)
    assert side == less * factor
    return grid.transpose(2, 3).reshape(views, less * less, factor * factor * width)


def smolvla_expected(config: FlowConfig) -> Expected:
    """The tensors of a checkpoint; those of the VLM's head may be missing."""
    shapes = config.shapes
    text, expert, vision = shapes.text, shapes.expert, shapes.vision
    width, far = expert.hidden_size, far_layers(config)
    must: dict[str, Shape] = siglip_shapes(_TOWER, vision)
    must[_CONNECTOR] = (text.hidden_size, vision.width * shapes.shuffle**2)
    must[TEXT + "embed_tokens.weight"] = (text.vocab_size, text.hidden_size)
    for number in range(text.layers):
        must |= layer_shapes(f"{TEXT}layers.{number}.", text)
    kv_in = text.kv_heads * text.head_dim
    for number in range(expert.layers):
        base = f"{_EXPERT}layers.{number}."
        must |= layer_shapes(base, expert, kv_in=kv_in if number in far else None)
    must[_EXPERT + "norm.weight"] = (width,)
    must |= linear_shapes("state_proj", config.state_width, text.hidden_size)
    must |= linear_shapes("action_in_proj", config.action_width, width)
    must |= linear_shapes("action_out_proj", width, config.action_width)
    must |= linear_shapes("action_time_mlp_in", 2 * width, width)
    must |= linear_shapes("action_time_mlp_out", width, width)
    must[TEXT + "norm.weight"] = (text.hidden_size,)
    spare = {_VLM + "lm_head.weight": (text.vocab_size, text.hidden_size)}
    return Expected(must, spare)
