"""What a language model is to the packed pass: stateless, its K and V are the attention's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from vla_ros.engine.packed.attention import Attention

#: embeddings [T, C], positions int64 [T], attention, rows int64 [R] -> hidden states [R, C]
Hidden = Callable[[torch.Tensor, torch.Tensor, Attention, torch.Tensor], torch.Tensor]


class Decoder(Protocol):
    """Embeddings in, hidden states out; ``head`` [V, C] makes logits of them."""

    @property
    def head(self) -> torch.Tensor: ...

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, C]."""
        ...

    def hidden(
        self, x: torch.Tensor, positions: torch.Tensor, attention: Attention, rows: torch.Tensor
    ) -> torch.Tensor:
        """Embeddings [T, C] -> hidden states after the final norm [R, C] of the rows asked for."""
        ...
