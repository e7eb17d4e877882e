"""The maps that belong to one embodiment, and everything that is known about time.

A checkpoint has them for 32 embodiments; one is read. They are float32 whatever the transformer
is. The times of a solver are few and known, so what depends on them alone is tables:
the time's share in an action's embedding, and scale and shift of every norm.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from vla_ros.engine.flow.groot.shapes import FREQUENCIES, HeadConfig
from vla_ros.engine.flow.suffix import Linear, read_linear
from vla_ros.engine.flow.weights import Weights


class RowWeights(Weights, Protocol):
    """Weights of which some are stacks with a row for each embodiment."""

    def take_row(self, name: str, row: int) -> torch.Tensor:
        """``tensor[row]`` in float32, all finite; the other rows are not read."""
        ...


class Encoders:
    """State and noisy actions -> rows of the transformer, and its rows -> velocities."""

    def __init__(
        self, config: HeadConfig, weights: RowWeights, base: str, row: int, device: torch.device
    ) -> None:
        def read(name: str) -> Linear:
            matrix = weights.take_row(f"{base}{name}.W", row).T.contiguous()
            return Linear(matrix, weights.take_row(f"{base}{name}.b", row)).on(device)

        self._state = [read(f"state_encoder.layer{n}") for n in (1, 2)]
        first, joined, last = (read(f"action_encoder.W{n}") for n in (1, 2, 3))
        of_actions, of_time = joined.weight.double().chunk(2, 1)
        self._matrix = (of_actions @ first.weight.double()).float()
        constant = of_actions @ first.bias.double() + joined.bias.double()
        times = action_times(config).to(device)
        self._biases = (times.double() @ of_time.T + constant).float()
        positions = torch.zeros(config.horizon, config.width, device=device)
        if config.positions:
            table = weights.take(f"{base}position_embedding.weight")
            positions = table[: config.horizon].to(device)
        self._last, self._offset = last.weight, last.bias + positions
        # Nothing stands between the transformer's last map and the decoder's first.
        out = read_linear(weights, f"{base}model.proj_out_2").on(device)
        hidden, self._decoded = (read(f"action_decoder.layer{n}") for n in (1, 2))
        matrix = hidden.weight.double()
        self._hidden = Linear(
            (matrix @ out.weight.double()).float(),
            (matrix @ out.bias.double() + hidden.bias.double()).float(),
        )

    def state(self, values: torch.Tensor) -> torch.Tensor:
        """[state_width] -> [1, C]."""
        first, second = self._state
        return second(F.relu(first(values[None])))

    def actions(self, x: torch.Tensor, step: int) -> torch.Tensor:
        """Noisy actions [H, D] -> [H, C] with time and positions."""
        h = F.silu(F.linear(x, self._matrix, self._biases[step]))
        return torch.addmm(self._offset, h, self._last.T)

    def velocity(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of the transformer behind its last norm [H, C] -> [H, D]."""
        return self._decoded(F.relu(self._hidden(rows)))


class Modulation:
    """1 + scale and shift at every step: ``layers`` [N, L, 2, C] and ``final`` [N, 2, C], of which
    the second is float32, like what it is applied to."""

    def __init__(self, config: HeadConfig, weights: Weights, base: str, like: torch.Tensor) -> None:
        def read(name: str) -> Linear:
            return read_linear(weights, base + name).on(like.device)

        embedder = "timestep_encoder.timestep_embedder.linear_"
        times = block_times(config).to(like.device)
        with torch.no_grad():
            known = read(f"{embedder}2")(F.silu(read(f"{embedder}1")(times)))
            condition = F.silu(known)
            tables = [
                read(f"transformer_blocks.{i}.norm1.linear")(condition).view(len(times), 2, -1)
                for i in range(config.layers)
            ]
            final = read("proj_out_1")(condition).view(len(times), 2, -1).flip(1)  # shift first
        layers = torch.stack(tables, 1)
        layers[:, :, 0] += 1.0
        final[:, 0] += 1.0
        self.layers, self.final = layers.to(like), final


def action_times(config: HeadConfig) -> torch.Tensor:
    """Sine, then cosine of the times in front of the action encoder: [N, C], float32.

    Source: ``SinusoidalPositionalEncoding``.
    """
    half = config.width // 2
    exponent = -torch.arange(half, dtype=torch.float32) * (torch.log(torch.tensor(10000.0)) / half)
    angles = torch.tensor(config.times, dtype=torch.float32)[:, None] * exponent.exp()
    return torch.cat((angles.sin(), angles.cos()), -1)


def block_times(config: HeadConfig) -> torch.Tensor:
    """Cosine, then sine of the times in front of the blocks' time MLP: [N, 256], float32.

    Source: diffusers ``get_timestep_embedding`` with flip_sin_to_cos and downscale_freq_shift 1.
    """
    half = FREQUENCIES // 2
    exponent = -torch.log(torch.tensor(10000.0, dtype=torch.float64)).item()
    steps = exponent * torch.arange(half, dtype=torch.float32) / (half - 1)
    angles = torch.tensor(config.times, dtype=torch.float32)[:, None] * steps.exp()
    return torch.cat((angles.cos(), angles.sin()), -1)
