"""The loop over a language model's layers in a packed pass; their K and V are the attention's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from vla_ros.engine.io.config import TextConfig
from vla_ros.engine.layers.attention import Attention
from vla_ros.engine.layers.kernels.fused import Heads


class PackedLayers(ABC):
    """A :class:`~vla_ros.engine.layers.runner.Decoder` with its norms in front of what they norm,
    for any network that defines one layer.

    ``config`` has their number and heads, ``_cos`` and ``_sin`` are RoPE's tables, ``_scale`` is
    that of the scores.
    """

    config: TextConfig
    _cos: torch.Tensor
    _sin: torch.Tensor
    _scale: float

    @abstractmethod
    def _first(self, x: torch.Tensor) -> torch.Tensor:
        """Embeddings, normed for the first layer's attention."""

    @abstractmethod
    def _qkv(self, number: int, x: torch.Tensor, normed: torch.Tensor | None) -> torch.Tensor:
        """Q, K and V of a layer, side by side [T, (H + 2 Hkv) D]; ``normed`` is the residual stream
        x [T, C] as :meth:`_first` or :meth:`_rest` normed it, None where that was left to this."""

    @abstractmethod
    def _rest(
        self, number: int, x: torch.Tensor, out: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The rest of a layer behind its attention, whose result is ``out`` [T, H D] -> the
        residual stream [T, C], and that normed for the next layer (or None), or by the final
        norm."""

    def hidden(
        self, x: torch.Tensor, positions: torch.Tensor, attention: Attention, rows: torch.Tensor
    ) -> torch.Tensor:
        """Hidden states of the rows, see :class:`~vla_ros.engine.layers.runner.Decoder`."""
        return self.tapped(x, positions, attention, rows, ())[0]

    def tapped(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        rows: torch.Tensor,
        layers: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states and the outputs of some layers, see
        :class:`~vla_ros.engine.layers.runner.Decoder`."""
        cfg, taps = self.config, dict[int, torch.Tensor]()
        heads, last = Heads(cfg.heads, cfg.kv_heads), cfg.layers - 1
        cos, sin = self._cos[positions], self._sin[positions]
        normed: torch.Tensor | None = self._first(x)
        for number in range(cfg.layers):
            qkv = self._qkv(number, x, normed)
            qkv = qkv.view(len(x), cfg.heads + 2 * cfg.kv_heads, cfg.head_dim)
            out = attention.from_qkv(number, qkv, cos, sin, heads, self._scale)
            out = out.reshape(len(x), -1)
            if number == last:  # nothing but its K and V is needed of the other tokens
                x, out = x[rows], out[rows]
            x, normed = self._rest(number, x, out)
            if number in layers:
                taps[number] = x if number == last else x[rows]
        assert normed is not None, "the last layer's is normed"
        return normed, torch.cat([taps[n] for n in layers], 1) if layers else normed[:, :0]


def tap_layers(count: int) -> tuple[int, ...]:
    """Layers whose outputs a draft head reads of a decoder of so many: an early, a middle and a
    late one.

    They are the inputs of the layers 2, L/2 and L - 3 counted from 0 (EAGLE-3, its
    ``modeling_llama_kv.py``); where these are not three, the first layer and the last two.
    """
    found = (1, count // 2 - 1, count - 4)
    if not found[0] < found[1] < found[2]:
        found = (0, count - 2, count - 1)
    return tuple(sorted({layer for layer in found if layer >= 0}))
