"""Llama and Qwen2 over packed attention; reads transformers' tensor names.

Source: transformers ``modeling_llama.py`` and ``modeling_qwen2.py``, which are the oracle of
the tests. Q, K, V are one product, gate and up another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vla_ros.engine.checkpoints.config import TextConfig
from vla_ros.engine.packed.attention import Attention
from vla_ros.engine.packed.kernels.rope_write import Heads
from vla_ros.engine.quantised.matrices import Quantised, Weight, linear, stacked


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer: QKV fused [(H + 2 Hkv) D, C], gate and up fused [2 M, C]."""

    norm1: torch.Tensor
    qkv: Weight
    qkv_bias: torch.Tensor | None
    out: Weight
    norm2: torch.Tensor
    gate_up: Weight
    down: Weight


class LlamaDecoder:
    """See :class:`~vla_ros.engine.decoders.base.Decoder`."""

    def __init__(
        self,
        config: TextConfig,
        tensors: dict[str, torch.Tensor],
        prefix: str = "language_model.",
        max_positions: int = 4096,
        quantised: Mapping[str, Quantised] | None = None,
    ) -> None:
        self.config = config
        self.embedding = tensors[prefix + "model.embed_tokens.weight"]
        self._final_norm = tensors[prefix + "model.norm.weight"]
        few = quantised or {}
        head = prefix + "lm_head.weight"
        self._head: Weight
        if head in few:
            self._head = few[head].ready()
        else:
            self._head = self.embedding if config.tied else tensors[head]
        self._layers = [_layer(config, tensors, few, prefix, i) for i in range(config.layers)]
        self._cos, self._sin = rope_tables(config, max_positions, self.embedding)
        self._scale = config.head_dim**-0.5

    @property
    def head(self) -> Weight:
        return self._head

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, self.embedding)

    def hidden(
        self, x: torch.Tensor, positions: torch.Tensor, attention: Attention, rows: torch.Tensor
    ) -> torch.Tensor:
        return self.tapped(x, positions, attention, rows, ())[0]

    def tapped(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        rows: torch.Tensor,
        layers: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cfg, taps = self.config, dict[int, torch.Tensor]()
        heads = Heads(cfg.heads, cfg.kv_heads)
        cos, sin = self._cos[positions], self._sin[positions]
        for number, layer in enumerate(self._layers):
            qkv = linear(self._norm(x, layer.norm1), layer.qkv, layer.qkv_bias)
            qkv = qkv.view(len(x), cfg.heads + 2 * cfg.kv_heads, cfg.head_dim)
            out = attention.from_qkv(number, qkv, cos, sin, heads, self._scale)
            x = x + linear(out.reshape(len(x), -1), layer.out)
            gate, up = linear(self._norm(x, layer.norm2), layer.gate_up).chunk(2, -1)
            x = x + linear(F.silu(gate) * up, layer.down)
            if number in layers:
                taps[number] = x[rows]
        out = self._norm(x[rows], self._final_norm)
        return out, torch.cat([taps[number] for number in layers], 1) if layers else out[:, :0]

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.config.rms_eps)


def rope_tables(
    config: TextConfig, positions: int, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [positions, head_dim], computed in fp32, in the model's dtype."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32)
    inverse = 1.0 / config.rope_theta ** (steps / config.head_dim)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse)
    angles = torch.cat((angles, angles), -1)
    return angles.cos().to(like), angles.sin().to(like)


def _layer(
    config: TextConfig,
    tensors: dict[str, torch.Tensor],
    few: Mapping[str, Quantised],
    prefix: str,
    number: int,
) -> Layer:
    base = f"{prefix}model.layers.{number}."
    qkv = [f"{base}self_attn.{n}_proj" for n in "qkv"]
    gate_up = [f"{base}mlp.{n}_proj.weight" for n in ("gate", "up")]
    bias = _fuse(tensors, [n + ".bias" for n in qkv]) if config.qkv_bias else None
    return Layer(
        norm1=tensors[base + "input_layernorm.weight"],
        qkv=_matrix(tensors, few, [n + ".weight" for n in qkv]),
        qkv_bias=bias,
        out=_matrix(tensors, few, [base + "self_attn.o_proj.weight"]),
        norm2=tensors[base + "post_attention_layernorm.weight"],
        gate_up=_matrix(tensors, few, gate_up),
        down=_matrix(tensors, few, [base + "mlp.down_proj.weight"]),
    )


def _matrix(
    tensors: dict[str, torch.Tensor], few: Mapping[str, Quantised], names: list[str]
) -> Weight:
    """One weight of those that are multiplied together."""
    if names[0] in few:
        return stacked([few[name] for name in names]).ready()
    return _fuse(tensors, names) if len(names) > 1 else tensors[names[0]]


def _fuse(tensors: dict[str, torch.Tensor], names: list[str]) -> torch.Tensor:
    """Concatenate along rows; the parts become views of the whole, so memory is paid once."""
    sizes = [len(tensors[n]) for n in names]
    whole = torch.cat([tensors[n] for n in names])
    for name, part in zip(names, whole.split(sizes), strict=True):
        tensors[name] = part
    return whole
