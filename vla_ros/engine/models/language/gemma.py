"""Gemma over packed attention, as PaliGemma has it; reads transformers' tensor names.

Source: transformers ``modeling_gemma.py``. Norms multiply by 1 + their weight, which is in the
projection behind them, as the scale of the scores is; embeddings are as long as the width says.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vla_ros.engine.io.config import TextConfig
from vla_ros.engine.io.quantize import DECODER, read_table
from vla_ros.engine.io.weights import Weights
from vla_ros.engine.layers.kernels.fused import signed
from vla_ros.engine.layers.linear import Weight, linear
from vla_ros.engine.models.language.base import PackedLayers
from vla_ros.engine.models.transformer import layer_table, mlp, norm, norm_scale, read_layer, rope


class GemmaDecoder(PackedLayers):
    """Gemma's :class:`~vla_ros.engine.layers.runner.Decoder`. ``text`` is where its tensors begin,
    ``head`` the name of its head's."""

    _scale = 1.0

    def __init__(
        self,
        config: TextConfig,
        weights: Weights,
        text: str,
        head: str,
        like: torch.Tensor,
        positions: int,
    ) -> None:
        self.config, layer = config, layer_table(config)
        self._layers = [
            read_layer(weights, f"{text}layers.{i}.", layer, like, DECODER)
            for i in range(config.layers)
        ]
        self._embedding = read_table(weights, text + "embed_tokens.weight", like)
        self._head = read_table(weights, head, like)
        self._norm = norm_scale(weights, text + "norm.weight", config).to(like)
        table = rope(config, positions, like.device)
        self._cos, self._sin = table.cos.to(like), signed(table.sin).to(like)

    @property
    def head(self) -> Weight:
        return self._head

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, self._embedding) * self.config.hidden_size**0.5

    def _first(self, x: torch.Tensor) -> torch.Tensor:
        return norm(x, self.config.rms_eps)

    def _qkv(self, number: int, x: torch.Tensor, normed: torch.Tensor | None) -> torch.Tensor:
        assert normed is not None
        return linear(normed, self._layers[number].qkv)

    def _rest(
        self, number: int, x: torch.Tensor, out: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cfg, layer = self.config, self._layers[number]
        x = x + linear(out, layer.out)
        x = x + mlp(norm(x, cfg.rms_eps), layer, cfg)
        if number < cfg.layers - 1:
            return x, norm(x, cfg.rms_eps)
        return x, F.rms_norm(x, (x.shape[-1],), self._norm, cfg.rms_eps)
