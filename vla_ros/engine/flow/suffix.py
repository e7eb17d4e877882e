"""What stands around an expert: linear maps in float32, and noisy actions joined with time.

LeRobot keeps these in float32 whatever the transformers are. They are small.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vla_ros.engine.flow.weights import Shape, Weights


@dataclass(frozen=True, slots=True)
class Linear:
    """y = W x + b."""

    weight: torch.Tensor
    bias: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)

    def on(self, device: torch.device) -> Linear:
        return Linear(self.weight.to(device), self.bias.to(device))

    def to(self, like: torch.Tensor) -> Linear:
        return Linear(self.weight.to(like), self.bias.to(like))


class TimedActions:
    """mlp_out(silu(mlp_in([action_in(x), time]))) for every step of the solver.

    The two maps before the SiLU are linear in x and the times are known: one matrix [w, D] and
    a bias per step [N, w], made in float64.
    """

    def __init__(self, weights: Weights, times: torch.Tensor, like: torch.Tensor) -> None:
        actions = read_linear(weights, "action_in_proj").on(like.device)
        joined = read_linear(weights, "action_time_mlp_in").on(like.device)
        self._after = read_linear(weights, "action_time_mlp_out").on(like.device)
        of_actions, of_time = joined.weight.double().chunk(2, 1)
        self._matrix = (of_actions @ actions.weight.double()).float()
        constant = of_actions @ actions.bias.double() + joined.bias.double()
        # The embedding of time is float32 where the reference joins it with the actions.
        self._biases = (times.float().double() @ of_time.T + constant).float()

    def __call__(
        self, x: torch.Tensor, step: int, given: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [H, D] -> [H, w]. Rows where ``given`` [H, 1] are at the last of the times."""
        if given is None:
            return self._after(F.silu(F.linear(x, self._matrix, self._biases[step])))
        bias = torch.where(given, self._biases[-1], self._biases[step])
        return self._after(F.silu(F.linear(x, self._matrix) + bias))


def read_linear(weights: Weights, name: str) -> Linear:
    """Weight and bias of ``name``, float32."""
    return Linear(weights.take(name + ".weight"), weights.take(name + ".bias"))


def linear_shapes(name: str, inputs: int, outputs: int) -> dict[str, Shape]:
    """Its two tensors."""
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
