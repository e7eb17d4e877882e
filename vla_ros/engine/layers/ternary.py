"""Ternary weights [N, K]: -1, 0 or 1 times one scale, two bits each, with exact integer products.

Source: BitVLA ``modeling_bitnet.py`` and ``modeling_siglip.py`` (``WeightQuant``, ``ActQuant``,
``BitLinear``), which are BitNet b1.58's (arXiv 2402.17764): a weight is -1, 0 or 1 times the mean
of all its magnitudes, an input of the product is int8 by the largest of its row. There both are
made float again and multiplied; here the integers are, and the two scales come after.

Layout: four weights a byte, in planes, so that unpacking is a shift and a mask of eight bytes at
once. A row of K columns has P bytes (a multiple of 8). Byte j holds, two bits each from the lowest,
the columns j, j + P, j + 2 P and j + 3 P, each as its value + 1; columns behind the last hold 0.

Products: int8 rows times such weights; every implementation gives the same integers, since of K
products of at most 128 x 2 no sum is above 2 ** 24 for K up to 65536: int32 and even float32 hold
all of them. On an x86 processor with VNNI torch's int8 product takes half the time of bfloat16's
and an eighth of float32's; without it float32 is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
import torch.nn.functional as F

from vla_ros.engine.layers.devices import tried

PLANES = 4
_BYTES = 8  # of the word that shift and mask work on
_MASK = 0x0303030303030303


def plane(width: int) -> int:
    """Bytes P of a row of ``width`` columns."""
    return -(-width // (PLANES * _BYTES)) * _BYTES


def stored_bytes(count: int, width: int) -> int:
    """Bytes of a matrix [N, K]: its values, and a scale a row."""
    return count * (plane(width) + 4)


def pack(values: torch.Tensor) -> torch.Tensor:
    """Int8 [N, K] of -1, 0, 1 -> uint8 [N, P]."""
    count, width = values.shape
    bytes_ = plane(width)
    codes = F.pad(values + 1, (0, PLANES * bytes_ - width), value=1).to(torch.uint8)
    planes = codes.view(count, PLANES, bytes_).unbind(1)
    packed = planes[0].clone()
    for number, codes in enumerate(planes[1:], 1):
        packed |= codes << (2 * number)
    return packed


def unpack_into(packed: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Uint8 [n, P] -> ``out`` uint8 [n, 4 P], each value + 1. Returns ``out``."""
    words, bytes_ = packed.view(torch.int64), packed.shape[1]
    for number in range(PLANES):
        part = out[:, number * bytes_ : (number + 1) * bytes_].view(torch.int64)
        if number:
            torch.bitwise_right_shift(words, 2 * number, out=part)
            part.bitwise_and_(_MASK)
        else:
            torch.bitwise_and(words, _MASK, out=part)
    return out


def unpack(packed: torch.Tensor, width: int) -> torch.Tensor:
    """Uint8 [N, P] -> int8 [N, width] of -1, 0, 1."""
    count, bytes_ = packed.shape
    out = packed.new_empty(count, PLANES * bytes_)
    return unpack_into(packed, out)[:, :width].to(torch.int8) - 1


WIDEST = 1 << 16  # columns up to which float32 holds every sum
_TILE = 1024  # rows of the weight that are unpacked at a time: 2560 wide, 2.6 MB

#: rows int8 [M, 4 P], what to multiply each with float32 [M], packed uint8 [N, P], scale of each
#: weight's row float32 [N], dtype of the result -> [M, N]
Product = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor
]
#: int8 rows [M, K], codes 0, 1, 2 as uint8 [n, K] -> their product [M, n], as integers or floats
_Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def reference(
    rows: torch.Tensor,
    factor: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The product that every :data:`Product` must give, in int64 and float32. Slow."""
    weight = unpack(packed, PLANES * packed.shape[1]).long()
    sums = rows.cpu().long() @ weight.cpu().t()
    return (sums.to(rows.device).float() * factor[:, None] * scale).to(dtype)


def _tiled(
    multiply: _Multiply,
    rows: torch.Tensor,
    factor: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Product by tiles: unpack some rows of the weight, multiply, scale; in all, memory for one
    tile."""
    count, bytes_ = packed.shape
    out = torch.empty(len(rows), count, dtype=dtype, device=rows.device)
    codes = packed.new_empty(min(_TILE, count), PLANES * bytes_)
    sums, factors = rows.sum(1, dtype=torch.int32)[:, None], factor[:, None]
    for begin in range(0, count, _TILE):
        part = packed[begin : begin + _TILE]
        exact = multiply(rows, unpack_into(part, codes[: len(part)])) - sums
        out[:, begin : begin + _TILE] = (
            exact.float().mul_(factors).mul_(scale[begin : begin + _TILE])
        )
    return out


def _int_mm(rows: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return torch._int_mm(rows, codes.view(torch.int8).t())


def _float_mm(rows: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return rows.float() @ codes.float().t()


by_int8: Product = partial(_tiled, _int_mm)
by_float32: Product = partial(_tiled, _float_mm)


@lru_cache(8)
def choose_product(device: torch.device) -> Product:
    """The fastest on a device. A GPU's is tried once, and left out with one line of warning."""
    if device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
        triton = partial(_triton, device)
        found = tried("Ternary product", "Triton's kernel", triton, "torch in float32")
        if found is not None:
            return found
    return by_int8 if device.type == "cpu" and torch.cpu._is_vnni_supported() else by_float32


def _triton(device: torch.device) -> Product:
    from vla_ros.engine.layers.kernels.layer_triton import ternary_product as product

    check_product(product, device)
    return product


def check_product(product: Product, device: torch.device) -> None:
    """Hold a product to the reference. Raises whatever it raises, and ValueError where its integers
    are others."""
    random = torch.Generator().manual_seed(0)
    for count, rows, width in ((5, 24, 40), (65, 130, 288)):
        weight = torch.randint(-1, 2, (rows, width), generator=random, dtype=torch.int8)
        x = torch.randint(-128, 128, (count, PLANES * plane(width)), generator=random)
        x[:, width:] = 0
        given = (
            x.to(torch.int8).to(device),
            torch.ones(count, device=device),
            pack(weight).to(device),
            torch.ones(rows, device=device),
        )
        found, wanted = product(*given, torch.float32), reference(*given, torch.float32)
        if not torch.equal(found, wanted):
            raise ValueError(f"its result is off by {float((found - wanted).abs().max()):.2g}")


_LEAST = 1e-5  # of the mean and of the largest, as in the original


@dataclass(frozen=True, slots=True, eq=False)
class Ternary:
    """``packed`` uint8 [N, P] (the layout above); ``scale`` float32 [N]: of each row; ``width`` K.

    ``product`` is its device's, see :meth:`ready`.
    """

    packed: torch.Tensor
    scale: torch.Tensor
    width: int
    product: Product | None = None

    def __len__(self) -> int:
        return len(self.packed)

    @property
    def parameters(self) -> int:
        return len(self.packed) * self.width

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.scale.nbytes

    @staticmethod
    def of(weight: torch.Tensor) -> Ternary:
        """Round to -1, 0, 1 times the mean magnitude of the whole matrix."""
        count, width = weight.shape
        if width > WIDEST:
            raise ValueError(f"a ternary matrix has at most {WIDEST} columns, not {width}")
        exact = weight.float()
        inverse = 1.0 / exact.abs().mean().clamp_min(_LEAST)
        values = (exact * inverse).round_().clamp_(-1, 1).to(torch.int8)
        return Ternary(pack(values), (1.0 / inverse).repeat(count), width)

    def to(self, device: torch.device) -> Ternary:
        return replace(self, packed=self.packed.to(device), scale=self.scale.to(device))

    @staticmethod
    def stacked(parts: Sequence[Ternary]) -> Ternary:
        """One matrix of several, on top of each other; every row keeps its scale."""
        packed, scale = (torch.cat([getattr(p, n) for p in parts]) for n in ("packed", "scale"))
        return Ternary(packed, scale, parts[0].width)

    def rows(self, start: int, stop: int) -> Ternary:
        return replace(self, packed=self.packed[start:stop], scale=self.scale[start:stop])

    def values(self) -> torch.Tensor:
        """Int8 [N, K] of -1, 0, 1."""
        return unpack(self.packed, self.width)

    def whole(self) -> torch.Tensor:
        """The matrix again, float32 [N, K]."""
        return self.values().float() * self.scale[:, None]

    def ready(self) -> Ternary:
        """This matrix with the product of its device."""
        return replace(self, product=choose_product(self.packed.device))

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """x [M, K] of any float type -> [M, N] of the same; the matrix must be :meth:`ready`."""
        assert self.product is not None
        rows, factor = int8_rows(x)
        beyond = PLANES * self.packed.shape[1] - self.width
        if beyond:
            rows = F.pad(rows, (0, beyond))
        return self.product(rows, factor, self.packed, self.scale, x.dtype)


def int8_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] -> int8 [M, K] and float32 [M], which gives x again: x = values * factor.

    A row that is not finite has a factor that is not.
    """
    exact = x.float()
    scale = 127.0 / exact.abs().amax(-1, keepdim=True).clamp_min_(_LEAST)
    values = (exact * scale).round_().clamp_(-128, 127).to(torch.int8)
    # an infinite row has a scale of 0, and inf * 0 is no int8: its factor must not be finite
    return values, (1.0 / scale)[:, 0]
