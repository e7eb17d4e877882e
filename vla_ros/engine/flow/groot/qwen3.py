"""Qwen3's layers: causal, with a norm of each head's Q and K in front of the rotation.

Source: transformers ``modeling_qwen3.py``. Batch of one; weights of norms and the scale of the
scores are folded as in :mod:`vla_ros.engine.flow.layers`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vla_ros.engine.checkpoints.config import TextConfig
from vla_ros.engine.flow.layers import (
    Layer,
    Rope,
    attend,
    layer_shapes,
    mlp,
    norm,
    read_layer,
)
from vla_ros.engine.flow.matrices import DECODER
from vla_ros.engine.flow.weights import Shape, Weights
from vla_ros.engine.packed.kernels.rope_write import rotate
from vla_ros.engine.quantised.matrices import linear


@dataclass(frozen=True, slots=True)
class Qwen3Layer:
    """``scales`` [H + G, 1, d], float32: the norms of Q, with the scale of the scores, and K."""

    plain: Layer
    scales: torch.Tensor


def run_layer(
    x: torch.Tensor, layer: Qwen3Layer, config: TextConfig, rope: Rope, mask: torch.Tensor
) -> torch.Tensor:
    """Rows [n, C] -> [n, C]; ``rope`` holds the n positions, ``mask`` [n, n] is added to scores."""
    count, turned = len(x), config.heads + config.kv_heads
    qkv = linear(norm(x, config.rms_eps), layer.plain.qkv)
    heads = qkv.view(count, turned + config.kv_heads, -1).transpose(0, 1)
    qk = norm(heads[:turned].float(), config.rms_eps) * layer.scales
    qk = rotate(qk, rope.cos, rope.sin).to(x.dtype)
    out = attend(qk[: config.heads], qk[config.heads :], heads[turned:], mask)
    x = x + linear(out, layer.plain.out)
    return x + mlp(norm(x, config.rms_eps), layer.plain, config)


def read_qwen3_layer(
    weights: Weights, base: str, config: TextConfig, like: torch.Tensor
) -> Qwen3Layer:
    """The layer at ``base`` in the dtype and on the device of ``like``."""

    def read(name: str) -> torch.Tensor:
        return weights.take(f"{base}{name}.weight").to(like.device)

    of_q = read("self_attn.q_norm") * config.head_dim**-0.5
    scales = [of_q] * config.heads + [read("self_attn.k_norm")] * config.kv_heads
    layer = read_layer(weights, base, config, like, DECODER, scaled=False)
    return Qwen3Layer(layer, torch.stack(scales)[:, None])


def qwen3_layer_shapes(base: str, config: TextConfig) -> dict[str, Shape]:
    """Tensors of one layer."""
    norms = {f"{base}self_attn.{part}_norm.weight": (config.head_dim,) for part in "qk"}
    return layer_shapes(base, config) | norms
