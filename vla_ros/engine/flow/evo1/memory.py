"""The static memory of Evo-1: the prompt's rows, its masks, K and V of the context."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vla_ros.engine.flow.buffers import MASKED
from vla_ros.engine.flow.evo1.config import Evo1Config


@dataclass(frozen=True, slots=True)
class Span:
    """Views for a prompt of ``length`` rows; the context has one more, the state's, in front.

    ``x`` [length, C], ``cos`` and ``sin`` [length, d] of the rows' positions, ``mask``
    [length, length] and ``hidden`` [1, 1 + length] are added to scores, ``context``
    [1 + length, C]; ``keys`` and ``values`` [heads, 1 + length, e] per block.
    """

    length: int
    x: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor
    hidden: torch.Tensor
    context: torch.Tensor
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]


class Memory:
    """Allocated once for the longest prompt. A span moves nothing, so graphs over it stay valid."""

    def __init__(self, config: Evo1Config, longest: int, like: torch.Tensor) -> None:
        text, device = config.text, like.device
        head = config.width // config.heads
        self.longest = longest
        self.state = torch.zeros(config.state_width, device=device)
        self._x = like.new_zeros(longest, config.width)
        self._turn = [torch.zeros(longest, text.head_dim, device=device) for _ in "cs"]
        self._causal = like.new_full((longest, longest), MASKED).triu_(1)
        self._hidden = like.new_zeros(1, 1 + longest)
        self._context = like.new_zeros(1 + longest, config.width)
        shape = (config.heads, 1 + longest, head)
        self._kv = [[like.new_zeros(shape) for _ in range(config.blocks)] for _ in "kv"]
        self._spans: dict[int, Span] = {}

    def span(self, length: int) -> Span:
        """The views for a prompt of this length."""
        found = self._spans.get(length)
        if found is None:
            if not 0 < length <= self.longest:
                raise ValueError(f"a prompt has at most {self.longest} rows, wanted {length}")
            keys, values = (tuple(t[:, : 1 + length] for t in part) for part in self._kv)
            found = self._spans[length] = Span(
                length,
                self._x[:length],
                self._turn[0][:length],
                self._turn[1][:length],
                self._causal[:length, :length],
                self._hidden[:, : 1 + length],
                self._context[: 1 + length],
                keys,
                values,
            )
        return found
