"""y = W x + b in float32 or the model's dtype: what stands around an expert.

LeRobot keeps these in float32 whatever the transformers are. They are small. Matrices that may be
quantized are :mod:`vla_ros.engine.io.quantize`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vla_ros.engine.io.weights import Weights


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


def read_linear(weights: Weights, name: str) -> Linear:
    """Weight and bias of ``name``, float32."""
    return Linear(weights.take(name + ".weight"), weights.take(name + ".bias"))


def behind_norm(
    take: Callable[[str], torch.Tensor], norm: str, after: Linear, times: int = 1
) -> Linear:
    """The map ``after`` with scale and shift of the layer norm in front of it folded in; they
    repeat ``times`` over its inputs."""
    scale, shift = (take(f"{norm}.{kind}").repeat(times) for kind in ("weight", "bias"))
    return Linear(after.weight * scale, after.bias + after.weight @ shift)
