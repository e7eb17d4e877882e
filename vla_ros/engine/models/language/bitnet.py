"""BitNet b1.58 over packed attention: Llama's layers with ternary weights and two norms more.

Source: BitVLA ``modeling_bitnet.py``; transformers ``modeling_bitnet.py`` has the same layers.
Every matrix takes int8 rows, so what feeds several is made int8 once: Q, K, V, and gate and up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vla_ros.engine.io.config import TextConfig
from vla_ros.engine.layers.attention import Attention
from vla_ros.engine.layers.kernels.fused import Heads, signed
from vla_ros.engine.layers.linear import LowBit, linear
from vla_ros.engine.models.language.llama import rope_tables

if TYPE_CHECKING:
    from vla_ros.engine.io.openvla import Checkpoint

_PREFIX = "language_model.model."


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer: QKV fused [(H + 2 Hkv) D, C], gate and up fused [2 M, C]; ``inner``
    are the norms before ``out`` and ``down``."""

    norm1: torch.Tensor
    qkv: LowBit
    inner1: torch.Tensor
    out: LowBit
    norm2: torch.Tensor
    gate_up: LowBit
    inner2: torch.Tensor
    down: LowBit


class BitNetDecoder:
    """See :class:`~vla_ros.engine.models.language.base.Decoder`. Its head is empty: it says no
    tokens, and embeddings are read from where the checkpoint has them."""

    def __init__(
        self, config: TextConfig, checkpoint: Checkpoint, max_positions: int = 4096
    ) -> None:
        assert checkpoint.words is not None
        self.config, self._words = config, checkpoint.words
        self.layers = [_layer(checkpoint, number) for number in range(config.layers)]
        self._final_norm = checkpoint.tensors[_PREFIX + "norm.weight"]
        self._cos, sin = rope_tables(config, max_positions, self._final_norm)
        self._sin = signed(sin)
        self._scale = config.head_dim**-0.5

    @property
    def head(self) -> torch.Tensor:
        return self._final_norm.new_empty(0, self.config.hidden_size)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._words.take(tokens.tolist())

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
        heads, last = Heads(cfg.heads, cfg.kv_heads), cfg.layers - 1
        cos, sin = self._cos[positions], self._sin[positions]
        for number, layer in enumerate(self.layers):
            qkv = linear(self._norm(x, layer.norm1), layer.qkv)
            qkv = qkv.view(len(x), cfg.heads + 2 * cfg.kv_heads, cfg.head_dim)
            out = attention.from_qkv(number, qkv, cos, sin, heads, self._scale)
            out = out.reshape(len(x), -1)
            if number == last:  # nothing but its K and V is needed of the other tokens
                x, out = x[rows], out[rows]
            x = x + linear(self._norm(out, layer.inner1), layer.out)
            gate, up = linear(self._norm(x, layer.norm2), layer.gate_up).chunk(2, -1)
            x = x + linear(self._norm(gate.relu().square() * up, layer.inner2), layer.down)
            if number in layers:
                taps[number] = x if number == last else x[rows]
        out = self._norm(x, self._final_norm)
        return out, torch.cat([taps[number] for number in layers], 1) if layers else out[:, :0]

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """In float32 as the original has it, to the last bit: what follows is rounded to int8."""
        exact = x.float()
        exact = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.config.rms_eps)
        return weight * exact.to(x.dtype)


def _layer(checkpoint: Checkpoint, number: int) -> Layer:
    base, tensors = f"{_PREFIX}layers.{number}.", checkpoint.tensors

    def matrix(name: str) -> LowBit:
        return checkpoint.quantized[f"{base}{name}_proj.weight"].ready()

    return Layer(
        norm1=tensors[base + "input_layernorm.weight"],
        qkv=matrix("self_attn.qkv"),
        inner1=tensors[base + "self_attn.attn_sub_norm.weight"],
        out=matrix("self_attn.o"),
        norm2=tensors[base + "post_attention_layernorm.weight"],
        gate_up=matrix("mlp.gate_up"),
        inner2=tensors[base + "mlp.ffn_sub_norm.weight"],
        down=matrix("mlp.down"),
    )
