"""Evo-1's action head: cross-attention blocks from H actions to the context, flattened at the end.

Sources: lerobot 0.6.1 ``policies/evo1/flow_matching.py``, MINT-SJTU/Evo-1
``model/action_head/flow_matching.py``. The context does not change between solver steps, so its
keys and values of all blocks are made once a chunk (the references make them in every step, which
is half of their time). The times are known when a checkpoint is loaded: their embeddings go
through the matrix behind them into one bias a step, as the positions of the actions do. Norms are
folded into the matrices that read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vla_ros.engine.flow.evo1.config import Evo1Config
from vla_ros.engine.flow.layers import attend
from vla_ros.engine.flow.matrices import HEAD, Map, Take, as_it_is, mapped, matrix
from vla_ros.engine.flow.suffix import Linear, read_linear
from vla_ros.engine.flow.weights import Shape, Weights
from vla_ros.engine.quantised.matrices import Weight, linear

BASE = "action_head."
TIMES, POSITIONS = BASE + "time_pos_enc.pe", BASE + "action_encoder.pos_encoding.pe"
TIME_ROWS = 1000  # of the table of times
EPS = 1e-5  # torch's LayerNorm
MLPS = ("mlp_head", "state_encoder")


@dataclass(frozen=True, slots=True)
class Crossing:
    """A block: ``query`` and ``first`` hold the norms before them, ``steps`` [N, 4 E] is the bias
    of ``first`` at each step."""

    query: Map
    context: Map  # K and V [2 E, E]
    out: Map
    first: Weight
    steps: torch.Tensor
    second: Map


class ActionHead:
    """Everything behind the context."""

    def __init__(
        self, weights: Weights, config: Evo1Config, index: Sequence[int], like: torch.Tensor
    ) -> None:
        self._config, self._dtype = config, like.dtype
        times = weights.take(TIMES)[0, list(index)].double()
        self.blocks = [_read_block(weights, f"{BASE}transformer_blocks.{i}.", config, times, like)
                       for i in range(config.blocks)]  # fmt: skip
        self._read_encoder(weights, like)
        self._read_ends(weights, like)

    def _read_encoder(self, weights: Weights, like: torch.Tensor) -> None:
        """Values of an action that nobody executes have no column: the reference masks them."""
        config, base = self._config, f"{BASE}action_encoder."
        first, second, third = (_read(weights, f"{base}W{n}", config) for n in (1, 2, 3))
        first.weight[:, config.action_dim :] = 0.0
        positions = weights.take(POSITIONS)[0].double()
        bias = positions @ second.weight.double().T + second.bias.double()
        self._first = first.on(like.device)
        self._second, self._positions = second.weight.to(like), bias.to(like)
        self._third = third.to(like)

    def _read_ends(self, weights: Weights, like: torch.Tensor) -> None:
        """The pooling with the last norm in it, and the MLPs, which stay float32."""
        config = self._config

        def pooling(take: Take) -> Linear:
            scale, shift = (take(f"{BASE}norm_out.{k}") for k in ("weight", "bias"))
            pool = as_it_is(f"{BASE}seq_pool_proj")(take)
            by_row = pool.weight.view(config.width, config.horizon, config.width)
            bias = (by_row @ shift).double().sum(1) + pool.bias.double()
            return Linear(by_row.mul_(scale).flatten(1), bias)

        self._pool = mapped(weights, f"{BASE}seq_pool", HEAD, like, pooling)
        mlps = [[_read(weights, f"{BASE}{name}.fc{n}", config).on(like.device) for n in (1, 2)]
                for name in MLPS]  # fmt: skip
        (self._inner, self._outer), (self._state_in, self._state_out) = mlps
        unused = torch.arange(config.action_width, device=like.device) >= config.action_dim
        rows = unused.repeat(config.horizon)
        self._outer.weight[rows] = 0.0
        self._outer.bias[rows] = 0.0

    def state_row(self, state: torch.Tensor) -> torch.Tensor:
        """State [state_width] in model space -> its row of the context [E], float32."""
        return self._state_out(F.relu(self._state_in(state)))

    def keys_values(self, block: int, context: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the context [R, E] -> K and V of a block, [heads, R, d] each."""
        both = self.blocks[block].context(context)
        k, v = both.view(len(context), 2, self._config.heads, -1).permute(1, 2, 0, 3)
        return k, v

    def velocity(
        self,
        x: torch.Tensor,
        step: int,
        keys: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """x [H, D] at a step -> velocity [H, D], float32; ``mask`` [1, R] is added to scores."""
        config = self._config
        rows = F.relu(self._first(x)).to(self._dtype)
        rows = self._third(F.relu(F.linear(rows, self._second) + self._positions))
        for block, k, v in zip(self.blocks, keys, values, strict=True):
            q = block.query(_norm(rows)).view(len(rows), config.heads, -1).transpose(0, 1)
            rows = rows + block.out(attend(q, k, v, mask))
            middle = F.gelu(linear(_norm(rows), block.first, block.steps[step]))
            rows = rows + block.second(middle)
        pooled = self._pool(_norm(rows).flatten()).float()
        return self._outer(F.relu(self._inner(pooled))).view(config.horizon, -1)


def head_shapes(config: Evo1Config) -> dict[str, Shape]:
    """Its tensors."""
    width, many = config.width, config.embodiments
    shapes: dict[str, Shape] = {
        TIMES: (1, TIME_ROWS, width),
        POSITIONS: (1, config.horizon, width),
        f"{BASE}seq_pool_proj.weight": (width, config.horizon * width),
        f"{BASE}seq_pool_proj.bias": (width,),
    }
    for kind in ("weight", "bias"):
        shapes[f"{BASE}norm_out.{kind}"] = (width,)
    for number in range(config.blocks):
        base = f"{BASE}transformer_blocks.{number}."
        shapes |= {
            f"{base}attn.in_proj_weight": (3 * width, width),
            f"{base}attn.in_proj_bias": (3 * width,),
            f"{base}attn.out_proj.weight": (width, width),
            f"{base}ff.0.weight": (4 * width, width),
            f"{base}ff.0.bias": (4 * width,),
            f"{base}ff.2.weight": (width, 4 * width),
        }
        names = ("attn.out_proj.bias", "ff.2.bias", "norm1.weight", "norm1.bias", "norm2.weight",
                 "norm2.bias")  # fmt: skip
        shapes |= {base + name: (width,) for name in names}
    linear = {
        "action_encoder.W1": (config.action_width, width),
        "action_encoder.W2": (width, width),
        "action_encoder.W3": (width, width),
        "mlp_head.fc1": (width, config.hidden),
        "mlp_head.fc2": (config.hidden, config.horizon * config.action_width),
        "state_encoder.fc1": (config.state_width, config.state_hidden),
        "state_encoder.fc2": (config.state_hidden, width),
    }
    for name, (inputs, outputs) in linear.items():
        if many == 1:
            shapes[f"{BASE}{name}.linear.weight"] = (outputs, inputs)
            shapes[f"{BASE}{name}.linear.bias"] = (outputs,)
        else:
            shapes[f"{BASE}{name}.weight"] = (many, inputs, outputs)
            shapes[f"{BASE}{name}.bias"] = (many, outputs)
    return shapes


def _norm(x: torch.Tensor) -> torch.Tensor:
    """LayerNorm without weights: they are in what follows."""
    return F.layer_norm(x, (x.shape[-1],), None, None, EPS)


def _read(weights: Weights, name: str, config: Evo1Config) -> Linear:
    """A linear map; of several embodiments' the one in use."""
    if config.embodiments == 1:
        return read_linear(weights, f"{name}.linear")
    matrix, bias = weights.take(f"{name}.weight"), weights.take(f"{name}.bias")
    return Linear(matrix[config.embodiment].T.contiguous(), bias[config.embodiment].clone())


def _read_block(
    weights: Weights, base: str, config: Evo1Config, times: torch.Tensor, like: torch.Tensor
) -> Crossing:
    """``first`` in few bits is stored beside its tensor, of which the steps' biases are made."""
    width, size = config.width, (config.width // config.heads) ** -0.5  # of scores, into the query
    names = (f"{base}attn.in_proj_weight", f"{base}attn.in_proj_bias")
    taken: list[torch.Tensor] = []

    def both(take: Take) -> list[torch.Tensor]:
        if not taken:
            taken.extend(take(name).double() for name in names)
        return taken

    def query(take: Take) -> Linear:
        rows, bias = both(take)
        scale, shift = (take(f"{base}norm1.{k}").double() for k in ("weight", "bias"))
        weight = rows[:width] * scale * size
        return Linear(weight, (rows[:width] @ shift + bias[:width]) * size)

    def context(take: Take) -> Linear:
        rows, bias = both(take)
        return Linear(rows[width:], bias[width:])

    scale, shift = (weights.take(f"{base}norm2.{k}").double() for k in ("weight", "bias"))
    first = read_linear(weights, f"{base}ff.0")
    inner = first.weight.double()
    steps = (times + shift) @ inner.T + first.bias.double()
    made = {
        name: mapped(weights, f"{base}{name}", HEAD, like, make)
        for name, make in (("attn.query", query), ("attn.context", context))
    }
    out, second = (
        mapped(weights, name, HEAD, like, as_it_is(name))
        for name in (f"{base}attn.out_proj", f"{base}ff.2")
    )
    behind = matrix(weights, f"{base}ff.first", HEAD, like, lambda _: inner * scale)
    return Crossing(
        made["attn.query"], made["attn.context"], out, behind, steps.to(like), second
    )  # fmt: skip
