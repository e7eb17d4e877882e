"""Qwen2 over the prompt, causal, all in one pass; its last hidden states are the context.

Source: transformers ``modeling_qwen2.py`` and ``modeling_internvl.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vla_ros.engine.checkpoints.config import TextConfig
from vla_ros.engine.flow.evo1.vision import BASE
from vla_ros.engine.flow.layers import Layer, attend, layer_shapes, mlp, norm, read_layer, split
from vla_ros.engine.flow.matrices import DECODER
from vla_ros.engine.flow.weights import Shape, Weights
from vla_ros.engine.quantised.matrices import linear

TEXT = BASE + "language_model."


@dataclass(frozen=True, slots=True)
class BiasedLayer:
    """A layer whose Q, K and V have biases [(H + 2 G) d]."""

    layer: Layer
    bias: torch.Tensor


class Language:
    """Embedding, layers and the last norm."""

    def __init__(self, weights: Weights, text: TextConfig, like: torch.Tensor) -> None:
        self._text = text
        self.embedding = weights.take(TEXT + "embed_tokens.weight").to(like)
        self._layers = [_read(weights, f"{TEXT}layers.{i}.", text, like)
                        for i in range(text.layers)]  # fmt: skip
        self._scale = weights.take(TEXT + "norm.weight").to(like.device)

    def __call__(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """x [P, C], cos and sin of its rows' positions [P, d], mask [P, P] added to scores ->
        hidden states [P, C] float32."""
        text = self._text
        for one in self._layers:
            layer = one.layer
            qkv = linear(norm(x, text.rms_eps), layer.qkv, one.bias)
            q, k, v = split(qkv, text.heads, text.kv_heads, cos, sin)
            x = x + linear(attend(q, k, v, mask), layer.out)
            x = x + mlp(norm(x, text.rms_eps), layer, text)
        return norm(x.float(), text.rms_eps) * self._scale


def language_shapes(text: TextConfig) -> dict[str, Shape]:
    """Its tensors."""
    shapes: dict[str, Shape] = {
        TEXT + "embed_tokens.weight": (text.vocab_size, text.hidden_size),
        TEXT + "norm.weight": (text.hidden_size,),
    }
    wide, narrow = text.heads * text.head_dim, text.kv_heads * text.head_dim
    for number in range(text.layers):
        base = f"{TEXT}layers.{number}."
        shapes |= layer_shapes(base, text)
        for part, width in (("q", wide), ("k", narrow), ("v", narrow)):
            shapes[f"{base}self_attn.{part}_proj.bias"] = (width,)
    return shapes


def _read(weights: Weights, base: str, text: TextConfig, like: torch.Tensor) -> BiasedLayer:
    layer = read_layer(weights, base, text, like, DECODER)
    parts = [weights.take(f"{base}self_attn.{part}_proj.bias") for part in "qkv"]
    parts[0] = parts[0] * text.head_dim**-0.5
    return BiasedLayer(layer, torch.cat(parts).to(like))
