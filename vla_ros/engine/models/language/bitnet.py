"""BitNet b1.58 over packed attention: Llama's layers with ternary weights and two norms more.

Source: BitVLA ``modeling_bitnet.py``; transformers ``modeling_bitnet.py`` has the same layers.
Every matrix takes int8 rows, so what feeds several is made int8 once: Q, K, V, and gate and up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vla_ros.engine.io.config import TextConfig
from vla_ros.engine.layers.kernels.fused import signed
from vla_ros.engine.layers.linear import LowBit, linear
from vla_ros.engine.models.language.base import PackedLayers
from vla_ros.engine.models.language.llama import rope_tables

if TYPE_CHECKING:
    from vla_ros.engine.io.checkpoint import Checkpoint

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


class BitNetDecoder(PackedLayers):
    """BitNet's :class:`~vla_ros.engine.layers.runner.Decoder`. Its head is empty: it gives no
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

    def _first(self, x: torch.Tensor) -> torch.Tensor:
        return self._norm(x, self.layers[0].norm1)

    def _qkv(self, number: int, x: torch.Tensor, normed: torch.Tensor | None) -> torch.Tensor:
        assert normed is not None
        return linear(normed, self.layers[number].qkv)

    def _rest(
        self, number: int, x: torch.Tensor, out: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        layer, last = self.layers[number], number == len(self.layers) - 1
        x = x + linear(self._norm(out, layer.inner1), layer.out)
        gate, up = linear(self._norm(x, layer.norm2), layer.gate_up).chunk(2, -1)
        x = x + linear(self._norm(gate.relu().square() * up, layer.inner2), layer.down)
        return x, self._norm(x, self._final_norm if last else self.layers[number + 1].norm1)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMSNorm in float32 as the original has it, to the last bit: the rows behind it are
        rounded to int8."""
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
