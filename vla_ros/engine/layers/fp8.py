"""Fp8 weights [N, K]: e4m3, one scale a row; the rows of x are rounded to e4m3 on the way in.

Source: Micikevicius et al., "FP8 formats for deep learning", 2022, section 3. The results are the
same on every machine, up to the order of sums: where a device has no fp8 product (compute
capability below 8.9) it saves memory, not time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from vla_ros.core.numbers import round_up
from vla_ros.engine.layers.kernels.torch_products import (
    RoundRows,
    as_bfloat16,
    fp8_product,
    rounded_rows,
    widened,
    with_columns,
)
from vla_ros.engine.layers.prepacked import with_rows
from vla_ros.engine.layers.tuner import choose_fp8

_MULTIPLE = 16  # what a GPU's product wants N and K to be


@dataclass(frozen=True, slots=True, eq=False)
class Fp8:
    """``values`` float8_e4m3fn [N, K], ``scale`` float32 [N]: w = values * scale.

    ``width``, ``height``: K and N without zeros behind them, 0 for all. ``round_rows``: what rounds
    rows for a GPU's fp8 products, as :meth:`ready` found; None: the matrix is made bfloat16 on the
    way.
    """

    values: torch.Tensor
    scale: torch.Tensor
    width: int = 0
    height: int = 0
    round_rows: RoundRows | None = None

    def __len__(self) -> int:
        return self.height or len(self.values)

    @property
    def shape(self) -> tuple[int, int]:
        """N, K."""
        return len(self), self.width or self.values.shape[1]

    @property
    def fast(self) -> bool:
        """Whether a GPU's fp8 products are made with it."""
        return self.round_rows is not None

    @property
    def parameters(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scale.nbytes

    @staticmethod
    def of(weight: torch.Tensor) -> Fp8:
        """Quantize a matrix: the largest value of a row becomes 448."""
        return Fp8(*rounded_rows(weight))

    @staticmethod
    def stacked(parts: Sequence[Fp8]) -> Fp8:
        """One matrix of several, on top of each other."""
        bytes_ = torch.cat([p.values.view(torch.uint8) for p in parts])
        return Fp8(bytes_.view(torch.float8_e4m3fn), torch.cat([p.scale for p in parts]))

    def rows(self, start: int, stop: int) -> Fp8:
        part = replace(self, values=self.values[start:stop], scale=self.scale[start:stop], height=0)
        return part if self.round_rows is None else part.padded(self.round_rows)

    def whole(self) -> torch.Tensor:
        """The matrix again, bfloat16 [N, K]."""
        count, width = self.shape
        exact = self.values.float() * self.scale[:, None]
        return exact[:count, :width].bfloat16()

    def ready(self) -> Fp8:
        """This matrix in the layout of the device's kernel, which is tried when the first
        matrix is made ready there."""
        found = choose_fp8(self.values.device)
        return self if found is None else self.padded(found)

    def padded(self, round_rows: RoundRows = rounded_rows) -> Fp8:
        """This matrix with zeros up to the sizes that a GPU's product wants."""
        count, width = self.shape
        bytes_ = self.values.view(torch.uint8)[:count, :width]  # what pads knows no fp8; 0 is 0
        bytes_ = with_columns(bytes_, round_up(width, _MULTIPLE))
        bytes_ = with_rows(bytes_, round_up(count, _MULTIPLE)).contiguous()
        scale = with_rows(self.scale[:count], len(bytes_))
        return Fp8(bytes_.view(torch.float8_e4m3fn), scale, width, count, round_rows)

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """x bfloat16 [M, K] -> [M, N]; on a GPU the matrix must be :meth:`ready`."""
        x = with_columns(x, self.values.shape[1])
        if self.round_rows is not None:
            rows, factor = self.round_rows(x)
            return fp8_product(rows, self.values, factor, self.scale)[:, : len(self)]
        rows, factor = rounded_rows(x)
        out = widened(as_bfloat16(rows), self.values, as_bfloat16)
        return (out.float() * factor[:, None] * self.scale).to(x.dtype)
