"""Int8 weights [N, K]: one scale a row, symmetric; activations stay bfloat16, or on a CPU with VNNI
are rounded to eight bits, one scale a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from vla_ros.core.numbers import round_up
from vla_ros.engine.layers.kernels.torch_products import (
    IntegerProduct,
    widened,
    with_columns,
)
from vla_ros.engine.layers.tuner import LowBitProduct, fastest_int8, multiplies_integers

_COLUMNS = 32  # the CPU's kernel does not fail for another width, it gives other numbers


@dataclass(frozen=True, slots=True, eq=False)
class Int8:
    """``values`` int8 [N, K], ``scale`` bfloat16 [N]: w = values * scale.

    ``width``: K without zeros behind it, 0 where there are none. How it is multiplied, as
    :meth:`ready` found: ``packed`` holds the values instead of ``values`` where integers are; else
    ``few``: rows of x up to which torch's kernel for bfloat16 x is taken, and ``many``: what
    multiplies more, None: the matrix is made bfloat16 on the way.
    """

    values: torch.Tensor
    scale: torch.Tensor
    width: int = 0
    few: int = 0
    many: LowBitProduct | None = None
    packed: IntegerProduct | None = None

    def __len__(self) -> int:
        return len(self.scale)

    @property
    def shape(self) -> tuple[int, int]:
        """N, K."""
        return len(self.scale), self.width or self.values.shape[1]

    @property
    def parameters(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        return max(self.values.nbytes, self.parameters) + self.scale.nbytes

    @staticmethod
    def of(weight: torch.Tensor) -> Int8:
        """Quantize a matrix to the nearest; the scale is rounded first, so that it fits its
        values."""
        exact = weight.float()
        scale = (exact.abs().amax(1) / 127).clamp_min(1e-30).bfloat16()
        steps = (exact / scale.float()[:, None]).round_().clamp_(-127, 127)
        return Int8(steps.to(torch.int8), scale)

    @staticmethod
    def stacked(parts: Sequence[Int8]) -> Int8:
        """One matrix of several, on top of each other."""
        return Int8(torch.cat([p.values for p in parts]), torch.cat([p.scale for p in parts]))

    def rows(self, start: int, stop: int) -> Int8:
        scale = self.scale[start:stop]
        if self.packed is not None:
            part = Int8(self.packed.codes()[start:stop], scale).ready()
            return part if self.packed.blocks is None else part.for_one_row()
        return replace(self, values=self.values[start:stop], scale=scale)

    def whole(self) -> torch.Tensor:
        """The matrix again, bfloat16 [N, K]."""
        codes = self.values if self.packed is None else self.packed.codes()
        return codes[:, : self.shape[1]].bfloat16() * self.scale[:, None]

    def ready(self) -> Int8:
        """This matrix in the layout of the device's kernel, which is tried, and on a GPU timed,
        when the first matrix is made ready there."""
        width, device = self.shape[1], self.values.device
        if multiplies_integers(device):
            packed = IntegerProduct.of(self.values, self.scale)
            return Int8(self.values.new_empty(0), self.scale, width, packed=packed)
        values = with_columns(self.values, round_up(width, _COLUMNS)).contiguous()
        few, many = fastest_int8(device)
        return Int8(values, self.scale, width, few, many)

    def for_one_row(self) -> Int8:
        """This matrix, laid out for passes of one row on one core where that is possible."""
        return self if self.packed is None else replace(self, packed=self.packed.for_one_row())

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """x bfloat16 [M, K] -> [M, N]; the matrix must be :meth:`ready`."""
        if self.packed is not None:
            return self.packed.times(x)
        x = with_columns(x, self.values.shape[1])
        if len(x) <= self.few:
            return torch._weight_int8pack_mm(x.contiguous(), self.values, self.scale)
        if self.many is not None:
            return self.many(x.contiguous(), self.values, self.scale)
        return widened(x, self.values).mul_(self.scale)
