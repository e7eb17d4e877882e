"""A weight [N, K] in fp8 (e4m3): one scale a row; the rows of x are rounded to e4m3 on the way in.

Multiplied with a GPU's own fp8 products where it has them (compute capability 8.9 and later):
``torch._scaled_mm`` with a scale a row of both, which wants N and K to be multiples of 16.
Elsewhere the same rounded numbers are multiplied in bfloat16, which holds every e4m3 value exactly.
So fp8 says the same on every machine, up to the order of sums and one rounding of the result: what
is judged on a CPU is true of the GPU. Where there are no such products it saves memory, not time.

Source: Micikevicius et al., "FP8 formats for deep learning" (2022), section 3, for e4m3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from vla_ros.engine.quantised.int8 import widened
from vla_ros.engine.quantised.padding import rounded, with_columns, with_rows
from vla_ros.engine.quantised.ways import fp8_on_cuda, fp8_product

LARGEST = 448.0  # of e4m3
_MULTIPLE = 16
_PLACES = -0x7810  # 0x87F0 as int16: the sign, four bits of exponent, three of mantissa
_FURTHER = 2.0**120


@dataclass(frozen=True, slots=True, eq=False)
class Fp8:
    """``values`` float8_e4m3fn [N, K], ``scale`` float32 [N]: w = values * scale.

    ``width``, ``height``: K and N without zeros behind them, 0 for all. ``fast``: a GPU's products.
    """

    values: torch.Tensor
    scale: torch.Tensor
    width: int = 0
    height: int = 0
    fast: bool = False

    def __len__(self) -> int:
        return self.height or len(self.values)

    @property
    def shape(self) -> tuple[int, int]:
        """N, K."""
        return len(self), self.width or self.values.shape[1]

    @property
    def parameters(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scale.nbytes

    @staticmethod
    def of(weight: torch.Tensor) -> Fp8:
        """The largest value of a row becomes 448."""
        return Fp8(*rounded_rows(weight))

    @staticmethod
    def stacked(parts: Sequence[Fp8]) -> Fp8:
        """One matrix of several, on top of each other."""
        bytes_ = torch.cat([p.values.view(torch.uint8) for p in parts])
        return Fp8(bytes_.view(torch.float8_e4m3fn), torch.cat([p.scale for p in parts]))

    def rows(self, start: int, stop: int) -> Fp8:
        part = replace(self, values=self.values[start:stop], scale=self.scale[start:stop], height=0)
        return part.ready() if self.fast else part

    def whole(self) -> torch.Tensor:
        """The matrix again, bfloat16 [N, K]."""
        count, width = self.shape
        exact = self.values.float() * self.scale[:, None]
        return exact[:count, :width].bfloat16()

    def ready(self) -> Fp8:
        """As the product wants it."""
        on_gpu = self.values.is_cuda and fp8_on_cuda(self.values.device)
        return self.padded() if on_gpu else self

    def padded(self) -> Fp8:
        """As a GPU's product wants it."""
        count, width = self.shape
        bytes_ = self.values.view(torch.uint8)[:count, :width]  # what pads knows no fp8; 0 is 0
        bytes_ = with_columns(bytes_, rounded(width, _MULTIPLE))
        bytes_ = with_rows(bytes_, rounded(count, _MULTIPLE)).contiguous()
        scale = with_rows(self.scale[:count], len(bytes_))
        return Fp8(bytes_.view(torch.float8_e4m3fn), scale, width, count, fast=True)

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """x bfloat16 [M, K] -> [M, N]; on a GPU the matrix must be :meth:`ready`."""
        rows, factor = rounded_rows(with_columns(x, self.values.shape[1]))
        if self.fast:
            return fp8_product(rows, self.values, factor, self.scale)[:, : len(self)]
        out = widened(as_bfloat16(rows), self.values, as_bfloat16)
        return (out.float() * factor[:, None] * self.scale).to(x.dtype)


def rounded_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] -> e4m3 [M, K] and what to multiply each row with, float32 [M]."""
    exact = x.float()
    factor = (exact.abs().amax(1) / LARGEST).clamp_min(1e-30)
    small = (exact / factor[:, None]).clamp(-LARGEST, LARGEST)
    return small.to(torch.float8_e4m3fn), factor


def as_bfloat16(values: torch.Tensor) -> torch.Tensor:
    """e4m3 [...] -> the same numbers. Sign, exponent and mantissa lie alike in both, four bits
    further up, and the exponents count from -7 and -127: torch's own conversion on a CPU goes value
    by value and takes ten times as long."""
    if values.device.type != "cpu":
        return values.bfloat16()
    bits = (values.view(torch.int8).to(torch.int16) << 4) & _PLACES
    return bits.view(torch.bfloat16) * _FURTHER
