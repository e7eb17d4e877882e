"""A tuner whose times are made up, and whose ways are plain torch unless a kernel is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from vla_ros.engine.layers.tiles import Way
from vla_ros.engine.layers.tuner import TORCH, Product, Tuner


class MadeUp:
    """Products of ways by name, and what each takes: ``seconds``, others 9. ``broken`` ways raise,
    ``wrong`` ones give something else."""

    def __init__(
        self,
        seconds: Mapping[str, float],
        broken: tuple[str, ...] = (),
        wrong: tuple[str, ...] = (),
        cold: int = 0,
        kernel: Callable[[Way], Product] | None = None,
    ) -> None:
        self.seconds, self.broken, self.wrong = dict(seconds), broken, wrong
        self._kernel = kernel or (lambda way: _einsum)
        self.last = TORCH
        self.timed: list[str] = []  # every way that the watch saw
        self.asked: list[tuple[str, int]] = []  # every call of a way: its name, its rows
        self.tuner = Tuner(self.make, self.watch, cold)

    def make(self, way: Way) -> Product:
        name, inner = str(way), self._kernel(way)

        def product(
            x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
        ) -> torch.Tensor:
            self.last = name
            self.asked.append((name, len(x)))
            if name in self.broken:
                raise RuntimeError("out of resource: shared memory\nRequired: 147456")
            out = inner(x, weight, bias)
            return out * 1.1 if name in self.wrong else out

        return product

    def watch(self, call: Callable[[], object]) -> float:
        """One call has as many products as it returns."""
        self.last = TORCH
        made = call()
        assert isinstance(made, list)
        self.timed.append(self.last)
        return self.seconds.get(self.last, 9.0) * len(made)


def _einsum(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    out = torch.einsum("mk,nk->mn", x, weight)
    return out if bias is None else out + bias
