"""A weight [N, K] in int8: one scale a row, symmetric. Activations stay bfloat16.

The product is torch's own, ``_weight_int8pack_mm``: on a CPU made for one row in bfloat16; on CUDA
(torch 2.8 and later, ``cuda/int8mm.cu``) a plain loop in float32 with a thread or a warp for every
value of the result. So it is taken for few rows, where the weight's bytes are what counts, and
where it was found to be faster (:mod:`.ways`); for more, the weight is made bfloat16 on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from vla_ros.engine.quantised.padding import rounded, with_columns
from vla_ros.engine.quantised.ways import int8_rows

_COLUMNS = 32  # the CPU's kernel does not fail for another width, it gives other numbers
_TILE = 512  # rows that are made bfloat16 at a time on a CPU: 4096 wide, 4 MB of its cache

Widen = Callable[[torch.Tensor], torch.Tensor]  # makes it bfloat16


@dataclass(frozen=True, slots=True, eq=False)
class Int8:
    """``values`` int8 [N, K], ``scale`` bfloat16 [N]: w = values * scale.

    ``width``: K without zeros behind it, 0 where there are none. ``few``: rows of x up to which the
    kernel is taken, as :meth:`ready` found.
    """

    values: torch.Tensor
    scale: torch.Tensor
    width: int = 0
    few: int = 0

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, int]:
        """N, K."""
        return len(self.values), self.width or self.values.shape[1]

    @property
    def parameters(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scale.nbytes

    @staticmethod
    def of(weight: torch.Tensor) -> Int8:
        """Round to the nearest; the scale is rounded first, so that it fits its values."""
        exact = weight.float()
        scale = (exact.abs().amax(1) / 127).clamp_min(1e-30).bfloat16()
        values = (exact / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
        return Int8(values, scale)

    @staticmethod
    def stacked(parts: Sequence[Int8]) -> Int8:
        """One matrix of several, on top of each other."""
        return Int8(torch.cat([p.values for p in parts]), torch.cat([p.scale for p in parts]))

    def rows(self, start: int, stop: int) -> Int8:
        return replace(self, values=self.values[start:stop], scale=self.scale[start:stop])

    def whole(self) -> torch.Tensor:
        """The matrix again, bfloat16 [N, K]."""
        return self.values[:, : self.shape[1]].bfloat16() * self.scale[:, None]

    def ready(self) -> Int8:
        """As the product wants it."""
        width = self.shape[1]
        values = with_columns(self.values, rounded(width, _COLUMNS)).contiguous()
        return Int8(values, self.scale, width, int8_rows(values.device))

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """x bfloat16 [M, K] -> [M, N]; the matrix must be :meth:`ready`."""
        x = with_columns(x, self.values.shape[1])
        if len(x) <= self.few:
            return torch._weight_int8pack_mm(x.contiguous(), self.values, self.scale)
        return widened(x, self.values).mul_(self.scale)


def widened(
    x: torch.Tensor, values: torch.Tensor, widen: Widen = torch.Tensor.bfloat16
) -> torch.Tensor:
    """x bfloat16 [M, K] times ``values`` [N, K] of any type that bfloat16 holds -> [M, N].

    On a CPU tiles of the matrix are made bfloat16 in the processor's cache; on a GPU all of it.
    """
    if x.device.type != "cpu":
        return F.linear(x, widen(values))
    out = x.new_empty(len(x), len(values))
    for begin in range(0, len(values), _TILE):
        tile = widen(values[begin : begin + _TILE])
        out[:, begin : begin + _TILE] = F.linear(x, tile)
    return out
