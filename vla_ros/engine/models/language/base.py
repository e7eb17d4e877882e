"""What a language model is to the packed pass: stateless, its K and V are the attention's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from vla_ros.engine.layers.attention import Attention
from vla_ros.engine.layers.linear import Weight

#: embeddings [T, C], positions int64 [T], attention, rows int64 [R] -> hidden states [R, C]
Hidden = Callable[[torch.Tensor, torch.Tensor, Attention, torch.Tensor], torch.Tensor]
#: the same and layers -> hidden states [R, C] and what these layers gave [R, layers * C]
Tapped = Callable[
    [torch.Tensor, torch.Tensor, Attention, torch.Tensor, Sequence[int]],
    tuple[torch.Tensor, torch.Tensor],
]


class Decoder(Protocol):
    """Embeddings in, hidden states out; ``head`` [V, C] makes logits of them."""

    @property
    def head(self) -> Weight: ...

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, C]."""
        ...

    def hidden(
        self, x: torch.Tensor, positions: torch.Tensor, attention: Attention, rows: torch.Tensor
    ) -> torch.Tensor:
        """Embeddings [T, C] -> hidden states after the final norm [R, C] of the rows asked for."""
        ...

    def tapped(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        rows: torch.Tensor,
        layers: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, and the outputs of ``layers`` side by side in their order [R, layers * C]:
        the residual stream of the same rows, before any norm."""
        ...


def tap_layers(count: int) -> tuple[int, ...]:
    """Whose outputs a draft head reads of a decoder of so many layers: an early, a middle and a
    late one.

    They are the inputs of the layers 2, L/2 and L - 3 counted from 0 (EAGLE-3, its
    ``modeling_llama_kv.py``); where these are not three, the first layer and the last two.
    """
    found = (1, count // 2 - 1, count - 4)
    if not found[0] < found[1] < found[2]:
        found = (0, count - 2, count - 1)
    return tuple(sorted({layer for layer in found if layer >= 0}))
