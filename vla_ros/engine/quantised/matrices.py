"""A weight [N, K] in int8, int4 or two bits: made of a tensor, stored, multiplied.

int8: one scale a row, symmetric. int4: a scale and a zero for every 32 values of a row. Activations
stay bfloat16. Rows are quantised by themselves, so matrices may be put on top of each other before
or after. The products are torch's own (``_weight_int8pack_mm``, ``_weight_int4pack_mm_for_cpu``),
which have fast code for bfloat16 on a CPU and for nothing else. Two bits: see ``ternary``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vla_ros.engine.quantised.prepacked import Prepacked
from vla_ros.engine.quantised.ternary.matrix import Ternary

GROUP = 32
_ROWS = 16  # of int4, what the kernel wants N to be a multiple of
_FEW = 8  # rows of x up to which the int8 kernel is faster than tiles that are made bfloat16
_TILE = 512  # rows of such a tile: 4096 wide, 4 MB


@dataclass(frozen=True, slots=True, eq=False)
class Int8:
    """``values`` int8 [N, K], ``scale`` bfloat16 [N]: w = values * scale."""

    values: torch.Tensor
    scale: torch.Tensor

    def __len__(self) -> int:
        return len(self.values)

    @property
    def parameters(self) -> int:
        return self.values.numel()

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
        return Int8(self.values[start:stop], self.scale[start:stop])

    def whole(self) -> torch.Tensor:
        """The matrix again, bfloat16 [N, K]."""
        return self.values.bfloat16() * self.scale[:, None]

    def ready(self) -> Int8:
        """As the product wants it."""
        return self

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """x bfloat16 [M, K] -> [M, N].

        For many rows of x, tiles of the matrix are made bfloat16 in the processor's cache and
        multiplied as such: the kernel, made for one row, then takes twice as long.
        """
        if len(x) <= _FEW:
            return torch._weight_int8pack_mm(x.contiguous(), self.values, self.scale)
        out = x.new_empty(len(x), len(self))
        for begin in range(0, len(self), _TILE):
            tile = self.values[begin : begin + _TILE].to(x.dtype)
            out[:, begin : begin + _TILE] = F.linear(x, tile)
        return out.mul_(self.scale)


@dataclass(frozen=True, slots=True, eq=False)
class Int4:
    """``values`` uint8 [N, K / 2], two columns a byte, the even one low; ``scale`` bfloat16
    [K / 32, N, 2]: of every group its scale and its middle, w = (value - 8) * scale + middle.

    Stored so on every machine; ``packed`` is the kernel's own order, which is this CPU's.
    """

    values: torch.Tensor
    scale: torch.Tensor
    packed: torch.Tensor | None = None

    def __len__(self) -> int:
        return self.scale.shape[1]

    @property
    def parameters(self) -> int:
        return self.scale.numel() // 2 * GROUP

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scale.nbytes

    @staticmethod
    def of(weight: torch.Tensor) -> Int4:
        """Sixteen even steps from the least to the most of each group."""
        count, width = weight.shape
        groups = weight.float().view(count, width // GROUP, GROUP)
        low, high = groups.amin(-1), groups.amax(-1)
        step = ((high - low) / 15).clamp_min(1e-30).bfloat16()
        middle = (low + 8 * step.float()).bfloat16()
        off = (groups - middle.float()[..., None]) / step.float()[..., None]
        values = (off.round() + 8).clamp(0, 15).to(torch.uint8).view(count, width)
        scale = torch.stack((step, middle), -1).transpose(0, 1).contiguous()
        return Int4(values[:, 0::2] | values[:, 1::2] << 4, scale)

    @staticmethod
    def stacked(parts: Sequence[Int4]) -> Int4:
        """One matrix of several, on top of each other."""
        return Int4(torch.cat([p.values for p in parts]), torch.cat([p.scale for p in parts], 1))

    def rows(self, start: int, stop: int) -> Int4:
        return Int4(self.values[start:stop], self.scale[:, start:stop].contiguous())

    def unpacked(self) -> torch.Tensor:
        """0..15 as int32 [N, K]."""
        pairs = torch.stack((self.values & 15, self.values >> 4), -1)
        return pairs.flatten(1).to(torch.int32)

    def whole(self) -> torch.Tensor:
        """The matrix again, bfloat16 [N, K]."""
        step, middle = (part.t()[..., None].float() for part in self.scale.unbind(-1))
        groups = (self.unpacked() - 8).view(len(self), -1, GROUP)
        return (groups * step + middle).flatten(1).bfloat16()

    def ready(self) -> Int4:
        """As the product wants it; the stored form is let go."""
        packed = torch._convert_weight_to_int4pack_for_cpu(self.unpacked(), 2)
        return Int4(self.values[:0], self.scale, packed)

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """x bfloat16 [M, K] -> [M, N]; the matrix must be :meth:`ready`."""
        assert self.packed is not None
        return torch._weight_int4pack_mm_for_cpu(x.contiguous(), self.packed, GROUP, self.scale)


Quantised = Int8 | Int4 | Ternary
Weight = torch.Tensor | Prepacked | Quantised


def quantise(weight: torch.Tensor, kind: str, name: str) -> Quantised:
    """``kind``: int8 or int4. ValueError, with ``name``, for sizes that the kernels would get wrong
    (int8 of another width does not fail, it gives other numbers)."""
    count, width = weight.shape
    if width % GROUP or (kind == "int4" and count % _ROWS):
        raise ValueError(
            f"{name} is {count} x {width}: {kind} needs a multiple of {_ROWS} x {GROUP};"
            " leave its part as bf16"
        )
    return Int8.of(weight) if kind == "int8" else Int4.of(weight)


def stacked(parts: Sequence[Quantised]) -> Quantised:
    """One matrix of several of one kind."""
    eights = [p for p in parts if isinstance(p, Int8)]
    fours = [p for p in parts if isinstance(p, Int4)]
    twos = [p for p in parts if isinstance(p, Ternary)]
    assert len(parts) in (len(eights), len(fours), len(twos))
    if twos:
        return Ternary.stacked(twos)
    return Int8.stacked(eights) if eights else Int4.stacked(fours)


def rows_of(weight: Weight, rows: range) -> Weight:
    """Some rows of a weight that is ready to be multiplied.

    A packed int4 is whole or not at all: fewer of its rows cannot be had.
    """
    if rows == range(len(weight)):
        return weight
    if isinstance(weight, Int4):
        raise ValueError("of a head in int4 some tokens cannot be had alone: give head=int8")
    if isinstance(weight, Int8 | Ternary):
        return weight.rows(rows.start, rows.stop)
    if isinstance(weight, Prepacked):
        return Prepacked.of(weight.whole()[rows.start : rows.stop])
    return weight[rows.start : rows.stop]


def plain(weight: Weight) -> torch.Tensor:
    """The matrix [N, K] as a tensor."""
    return weight if isinstance(weight, torch.Tensor) else weight.whole()


def linear(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., K] -> [..., N], whatever the weight is."""
    if isinstance(weight, torch.Tensor):
        return F.linear(x, weight, bias)
    if isinstance(weight, Prepacked):
        return weight.times(x, bias)
    out = weight.times(x.reshape(-1, x.shape[-1]))
    if bias is not None:
        out = out + bias
    return out.view(*x.shape[:-1], len(weight))


class QuantisedLinear(torch.nn.Module):
    """In the place of ``nn.Linear``. Inference only."""

    def __init__(self, weight: Quantised, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight, self._bias = weight, bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self._bias)
