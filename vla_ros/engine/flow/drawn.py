"""Random weights by name: what a checkpoint has where nobody trained it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

import torch

from vla_ros.engine.flow.weights import Shape

#: (name, shape) -> a tensor of its own, such as a table, or None
Special = Callable[[str, Shape], "torch.Tensor | None"]


class Drawn:
    """Each tensor from the seed and its name, float32, so that reading some of them draws no other.

    Matrices are normal with 1 / sqrt(inputs), Q and K twice that so that attention chooses, scales
    of norms 1 and other vectors 0, unless ``special`` has a tensor or ``gain`` a factor for the
    name.
    """

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        seed: int,
        device: torch.device,
        special: Special,
        gain: Callable[[str], float],
    ) -> None:
        self.shapes = shapes
        self._seed, self._device = seed, device
        self._special, self._gain = special, gain

    def take(self, name: str) -> torch.Tensor:
        shape = self.shapes[name]
        made = self._special(name, shape)
        if made is not None:
            return made.to(self._device)
        tensor = torch.empty(shape, device=self._device)
        if len(shape) == 1:
            return tensor.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
        generator = torch.Generator(self._device)
        generator.manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))  # 32 bits count
        fan_in = int(torch.Size(shape[1:]).numel())
        gain = 2.0 if ".q_proj." in name or ".k_proj." in name else 1.0
        return tensor.normal_(0.0, gain * self._gain(name) * fan_in**-0.5, generator=generator)
