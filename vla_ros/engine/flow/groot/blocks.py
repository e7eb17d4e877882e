"""The blocks of GR00T's head: layer norm, attention, MLP, batch of one.

Source: diffusers' ``Attention`` and ``FeedForward`` as ``BasicTransformerBlock`` of
NVIDIA/Isaac-GR00T ``modules/dit.py`` puts them together. The scale of the scores and the weights
of norms that have any go into the projections behind them when a checkpoint is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vla_ros.engine.flow.layers import attend
from vla_ros.engine.flow.matrices import HEAD, Map, Take, as_it_is, mapped
from vla_ros.engine.flow.suffix import Linear
from vla_ros.engine.flow.weights import Weights

EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Block:
    """``projected`` makes Q, K and V of the rows themselves, or Q alone where they cross."""

    heads: int
    projected: Map
    out: Map
    up: Map
    down: Map

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        """x + MLP(norm(x))."""
        return x + self.down(F.gelu(self.up(plain_norm(x)), approximate="tanh"))

    def attend_itself(
        self, x: torch.Tensor, normed: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x plus what the rows [n, C] see of each other."""
        q, k, v = self.projected(normed).view(len(x), 3, self.heads, -1).permute(1, 2, 0, 3)
        return x + self.out(attend(q, k, v, mask))

    def attend_to(
        self,
        x: torch.Tensor,
        normed: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """x plus what the rows see of a context: ``keys`` and ``values`` [heads, S, d]."""
        q = self.projected(normed).view(len(x), self.heads, -1).transpose(0, 1)
        return x + self.out(attend(q, keys, values, mask))


def plain_norm(x: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """A layer norm without weights."""
    return F.layer_norm(x, (x.shape[-1],), None, None, eps)


def read_block(
    weights: Weights, base: str, heads: int, like: torch.Tensor, *, crossing: bool, norms: bool
) -> tuple[Block, Map | None]:
    """The block at ``base``, and where it crosses the map [2 C, S] from a context to K and V.

    ``norms``: both of its norms have weights of their own.
    """

    def query(take: Take) -> Linear:
        made = as_it_is(f"{base}attn1.to_q")(take)
        scale = (made.weight.shape[0] // heads) ** -0.5
        return Linear(made.weight * scale, made.bias * scale)

    def keys_values(take: Take) -> Linear:
        return _stacked(*(as_it_is(f"{base}attn1.to_{n}")(take) for n in "kv"))

    def itself(take: Take) -> Linear:
        return behind("norm1", _stacked(query(take), keys_values(take)), take)

    def up(take: Take) -> Linear:
        return behind("norm3", as_it_is(f"{base}ff.net.0.proj")(take), take)

    def behind(norm: str, after: Linear, take: Take) -> Linear:
        return _behind_norm(take, f"{base}{norm}", after) if norms else after

    def read(name: str, make: Callable[[Take], Linear] | None = None) -> Map:
        name = f"{base}{name}"
        return mapped(weights, name, HEAD, like, make or as_it_is(name))

    block = Block(
        heads,
        read("attn1.query", query) if crossing else read("attn1.qkv", itself),
        read("attn1.to_out.0"),
        read("ff.up", up),
        read("ff.net.2"),
    )
    return block, read("attn1.keys_values", keys_values) if crossing else None


def _stacked(*maps: Linear) -> Linear:
    return Linear(torch.cat([m.weight for m in maps]), torch.cat([m.bias for m in maps]))


def _behind_norm(take: Take, name: str, after: Linear) -> Linear:
    """``after`` with the scale and shift of the norm in front of it."""
    norm = as_it_is(name)(take)
    return Linear(after.weight * norm.weight, after.bias + after.weight @ norm.bias)
