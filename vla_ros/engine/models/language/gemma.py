"""Gemma over packed attention, as PaliGemma has it; reads transformers' tensor names.

Source: transformers ``modeling_gemma.py``. Norms multiply by 1 + their weight, which is in the
projection behind them, as the scale of the scores is; embeddings are as long as the width says.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from vla_ros.engine.io.config import TextConfig
from vla_ros.engine.io.quantize import DECODER
from vla_ros.engine.io.weights import Weights
from vla_ros.engine.layers.attention import Attention
from vla_ros.engine.layers.kernels.fused import Heads, signed
from vla_ros.engine.layers.linear import Weight, linear
from vla_ros.engine.models.transformer import mlp, norm, norm_scale, read_layer, rope


class GemmaDecoder:
    """See :class:`~vla_ros.engine.models.language.base.Decoder`. ``text`` is where its tensors
    begin, ``head`` the name of its head's."""

    def __init__(
        self,
        config: TextConfig,
        weights: Weights,
        text: str,
        head: str,
        like: torch.Tensor,
        positions: int,
    ) -> None:
        self.config = config
        self._layers = [
            read_layer(weights, f"{text}layers.{i}.", config, like, DECODER)
            for i in range(config.layers)
        ]
        self._embedding = weights.take(text + "embed_tokens.weight").to(like)
        self._head = weights.take(head).to(like)
        self._norm = norm_scale(weights, text + "norm.weight", config).to(like)
        table = rope(config, positions, like.device)
        self._cos, self._sin = table.cos.to(like), signed(table.sin).to(like)

    @property
    def head(self) -> Weight:
        return self._head

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, self._embedding) * self.config.hidden_size**0.5

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
        for number, layer in enumerate(self._layers):
            qkv = linear(norm(x, cfg.rms_eps), layer.qkv)
            qkv = qkv.view(len(x), cfg.heads + 2 * cfg.kv_heads, cfg.head_dim)
            out = attention.from_qkv(number, qkv, cos, sin, heads, 1.0).reshape(len(x), -1)
            if number == last:  # nothing but its K and V is needed of the other tokens
                x, out = x[rows], out[rows]
            x = x + linear(out, layer.out)
            x = x + mlp(norm(x, cfg.rms_eps), layer, cfg)
            if number in layers:
                taps[number] = x if number == last else x[rows]
        normed = F.rms_norm(x, (x.shape[-1],), self._norm, cfg.rms_eps)
        return normed, torch.cat([taps[n] for n in layers], 1) if layers else normed[:, :0]
