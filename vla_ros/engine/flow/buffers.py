"""The static memory of a flow model: K and V laid out [prefix | suffix], masks, inputs.

Allocated once for the longest prefix. A :class:`Span` is a set of views for one length of
prefix: making one moves nothing, so a graph that was captured over it stays valid.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch

from vla_ros.engine.flow.config import FlowConfig
from vla_ros.engine.flow.layers import Rope
from vla_ros.engine.packed.graphs import Capture

MASKED = float("-inf")


@dataclass(frozen=True, slots=True)
class Span:
    """Views for a prefix of ``length`` rows and the ``tail`` rows of the suffix behind it.

    ``x`` [length, C]; ``keys`` and ``values`` [G, length + tail, d] per layer;
    ``prefix_mask`` [length, length] and ``suffix_mask`` [rows, length + tail] are added to
    scores; ``far_keys`` and ``far_values`` [G, length, d] belong to cross attention.
    """

    length: int
    x: torch.Tensor
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    far_keys: tuple[torch.Tensor, ...]
    far_values: tuple[torch.Tensor, ...]
    prefix_mask: torch.Tensor
    suffix_mask: torch.Tensor


class Buffers:
    """All of it; ``tail`` rows of suffix, ``rows`` of its mask, ``far`` layers of cross K/V."""

    def __init__(
        self, config: FlowConfig, longest: int, tail: int, rows: int, far: int, like: torch.Tensor
    ) -> None:
        text = config.shapes.text
        entry = (text.kv_heads, longest + tail, text.head_dim)
        device = like.device
        self.longest, self.tail = longest, tail
        self._x = like.new_zeros(longest, text.hidden_size)
        self._kv = [[like.new_zeros(entry) for _ in range(text.layers)] for _ in "kv"]
        self._far = [[like.new_zeros(entry) for _ in range(far)] for _ in "kv"]
        self._prefix_mask = like.new_zeros(longest, longest)
        self._suffix_mask = like.new_zeros(rows, longest + tail)
        self.state = torch.zeros(config.state_width, device=device)
        self.cos = torch.zeros(tail, text.head_dim, device=device)
        self.sin = torch.zeros_like(self.cos)
        self._spans: dict[int, Span] = {}

    def span(self, length: int) -> Span:
        """The views for a prefix of this length."""
        found = self._spans.get(length)
        if found is None:
            if not 0 < length <= self.longest:
                raise ValueError(f"a prefix has at most {self.longest} rows, wanted {length}")
            end = length + self.tail
            found = Span(
                length,
                self._x[:length],
                _cut(self._kv[0], end),
                _cut(self._kv[1], end),
                _cut(self._far[0], length),
                _cut(self._far[1], length),
                self._prefix_mask[:length, :length],
                self._suffix_mask[:, :end],
            )
            self._spans[length] = found
        return found

    def turn(self, rope: Rope, first: int) -> None:
        """Let the suffix begin at position ``first``."""
        self.cos.copy_(rope.cos[first : first + self.tail])
        self.sin.copy_(rope.sin[first : first + self.tail])


def laid(buffer: torch.Tensor, begin: int, rows: torch.Tensor) -> torch.Tensor:
    """The buffer [G, S, d] up to the end of ``rows`` [G, n, d], which are written behind its
    first ``begin`` ones. Under autograd, which cannot follow a buffer, a copy of it."""
    if torch.is_grad_enabled():
        return torch.cat((buffer[:, :begin], rows), 1)
    end = begin + rows.shape[1]
    buffer[:, begin:end].copy_(rows)
    return buffer[:, :end]


class Captured:
    """Functions over static buffers, captured when their key is first asked for.

    ``capture`` is injected as in :mod:`vla_ros.engine.packed.graphs`; None runs them as they
    are. What a function returns is overwritten by the next call of any.
    """

    def __init__(self, capture: Capture | None) -> None:
        self._capture = capture
        self._replays: dict[Hashable, Callable[[], tuple[torch.Tensor, ...]]] = {}

    @property
    def count(self) -> int:
        """Functions that were captured so far."""
        return len(self._replays)

    def __call__(self, key: Hashable, function: Callable[[], torch.Tensor]) -> torch.Tensor:
        if self._capture is None:
            return function()
        replay = self._replays.get(key)
        if replay is None:
            replay = self._replays[key] = self._capture(lambda: (function(),))
        return replay()[0]


def _cut(tensors: list[torch.Tensor], rows: int) -> tuple[torch.Tensor, ...]:
    return tuple(t[:, :rows] for t in tensors)
