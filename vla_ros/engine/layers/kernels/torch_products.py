"""Products of bfloat16 rows by torch's own kernels, with weights of few bits and plain ones; no
Triton.

Torch's functions for few bits have names that begin with ``_`` and are guaranteed to nobody:
:mod:`~vla_ros.engine.layers.tuner` tries them before anything depends on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F

from vla_ros.engine.layers.prepacked import can_prepack, few_rows, one_row, with_rows

GROUP = 32  # columns of a row that share a scale in int4
LARGEST = 448.0  # of e4m3
_TILE = 512  # rows that are made wider at a time on a CPU: 4096 wide, 4 or 8 MB of its cache
_MANY = 4  # rows of x from which tiles in float32 are faster than torch's own bfloat16 there
_CACHED = 256  # rows of integers: 2,048 of 3,072 columns take 32 ms so, 54 at once
_HALF_ABOVE = torch.full((1, 1), 128.5)
_E4M3_BITS = -0x7810  # 0x87F0 as int16: the sign, four bits of exponent, three of mantissa
_E4M3_TO_BFLOAT16 = 2.0**120

Widen = Callable[[torch.Tensor], torch.Tensor]  # makes it bfloat16
#: x [M, K] -> e4m3 [M, K] and what to multiply each row with [M]
RoundRows = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def with_columns(x: torch.Tensor, count: int) -> torch.Tensor:
    """x [M, K] -> [M, ``count``], zeros behind; x itself where it has as many."""
    missing = count - x.shape[1]
    return F.pad(x, (0, missing)) if missing else x


@lru_cache
def wide_type(device: torch.device) -> torch.dtype:
    """The type that products of many bfloat16 rows are made in: float32 on a CPU without
    instructions for bfloat16, where torch takes 5 to 7 times as long for 89 rows (AVX2, one
    thread). A rule and no timing, so that every start gives the same bits."""
    if device.type != "cpu" or can_prepack(device, torch.bfloat16):
        return torch.bfloat16
    return torch.float32


def widened(
    x: torch.Tensor, values: torch.Tensor, widen: Widen = torch.Tensor.bfloat16
) -> torch.Tensor:
    """x bfloat16 [M, K] times ``values`` [N, K] of any type that bfloat16 holds -> [M, N].

    On a CPU tiles of the matrix are made :func:`wide_type` in the processor's cache; on a GPU all
    of it is made bfloat16.
    """
    if x.device.type != "cpu":
        return F.linear(x, widen(values))
    out, wide = x.new_empty(len(x), len(values)), wide_type(x.device)
    x = x.to(wide)
    for begin in range(0, len(values), _TILE):
        tile = widen(values[begin : begin + _TILE]).to(wide)
        out[:, begin : begin + _TILE] = F.linear(x, tile)
    return out


def plain_product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Product of x [..., K] and a plain matrix [N, K] -> [..., N]."""
    if not _is_slow(x, weight):
        return F.linear(x, weight, bias)
    out = widened(x.reshape(-1, x.shape[-1]), weight)
    if bias is not None:
        out = out + bias
    return out.reshape(*x.shape[:-1], len(weight))


def _is_slow(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether torch's own product of a plain matrix is slow here: never where a gradient goes
    through."""
    return (
        weight.dtype == torch.bfloat16
        and x.numel() >= _MANY * x.shape[-1]
        and wide_type(x.device) != torch.bfloat16
        and not torch.is_grad_enabled()
    )


@dataclass(frozen=True, slots=True, eq=False)
class IntegerProduct:
    """Int8 weights in the order that oneDNN multiplies integers in; ``values`` are opaque to
    everything else, ``scale`` float32 and ``zero`` int64 [N].

    The rows of x are rounded to 1 ... 255, their middle 128, by the largest of each. The sums are
    integers, so a row's result does not depend on what stands beside it.
    """

    values: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor
    blocks: Any = None  # see :meth:`for_one_row`

    @staticmethod
    def of(values: torch.Tensor, scale: torch.Tensor) -> IntegerProduct:
        """int8 [N, K] and the scale of each row [N]."""
        packed = torch.ops.onednn.qlinear_prepack(values.contiguous(), None)
        return IntegerProduct(packed, scale.float(), torch.zeros(len(scale), dtype=torch.int64))

    def codes(self) -> torch.Tensor:
        """int8 [N, K] again."""
        return self.values.to_dense().t().contiguous()

    def for_one_row(self) -> IntegerProduct:
        """These weights, laid out for ``kernels/one_row_numba.py`` too where that can read
        them."""
        functions = one_row()
        if functions is None or not functions.HAS_VNNI:
            return self
        return replace(self, blocks=functions.blocks(self.values, self.codes()))

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """x bfloat16 [M, K] -> [M, N]."""
        count = len(x)
        functions = one_row() if self.blocks is not None else None
        if functions is not None and count <= functions.MOST:
            rows = functions.as_floats(x)
            found = functions.of_int8_rows(self.blocks, self.scale.numpy(), rows)
            return torch.from_numpy(found).to(x.dtype)
        if count > _CACHED:  # what is made on the way stays in the cache
            out = x.new_empty(count, len(self.scale))
            for first in range(0, count, _CACHED):
                out[first : first + _CACHED] = self._times(x[first : first + _CACHED])
            return out
        return self._times(with_rows(x, max(count, few_rows())))[:count]

    def _times(self, x: torch.Tensor) -> torch.Tensor:
        exact = x.float()
        largest = exact.abs().amax(1, keepdim=True).clamp_min_(1e-30)
        codes = torch.addcmul(_HALF_ABOVE, exact, 127 / largest).to(torch.uint8)  # rounds down
        out = torch.ops.onednn.qlinear_pointwise(
            codes, 1 / 127, 128, self.values, self.scale, self.zero,
            None, 1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        return out.mul_(largest).to(x.dtype)


def int4_packed(codes: torch.Tensor) -> torch.Tensor:
    """Codes 0..15 int32 [N, K] in the order of the device's kernel. N a multiple of 16, K of 32."""
    if codes.device.type == "cpu":
        return torch._convert_weight_to_int4pack_for_cpu(codes, 2)
    return tinygemm_packed(codes)


def tinygemm_packed(codes: torch.Tensor) -> torch.Tensor:
    """Codes 0..15 int32 [N, K] in the order of tinygemm, N a multiple of 8."""
    pairs = (codes[:, 0::2] << 4 | codes[:, 1::2]).to(torch.uint8)  # here the even one is high
    return torch._convert_weight_to_int4pack(pairs.contiguous(), _inner_tiles(codes.shape[1]))


def _inner_tiles(width: int) -> int:
    """Tiles of 16 columns that lie behind each other: the most that divide K."""
    return next(tiles for tiles in (8, 4, 2) if width % (16 * tiles) == 0)


def int4_product(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Product of x bfloat16 [M, K] and :func:`int4_packed` [N, K], ``scale`` [K / 32, N, 2] -> [M,
    N]."""
    if x.device.type == "cpu":
        return torch._weight_int4pack_mm_for_cpu(x, packed, GROUP, scale)
    return torch._weight_int4pack_mm(x, packed, GROUP, scale)


def rounded_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows x [M, K] -> e4m3 [M, K] and the factor of each, float32 [M]."""
    exact = x.float()
    factor = (exact.abs().amax(1) / LARGEST).clamp_min(1e-30)
    small = (exact / factor[:, None]).clamp(-LARGEST, LARGEST)
    return small.to(torch.float8_e4m3fn), factor


def fp8_product(
    rows: torch.Tensor, values: torch.Tensor, factor: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """Product of e4m3 [M, K] and [N, K] with their factors float32 [M] and [N] -> bfloat16 [M, N];
    sums in float32.

    Hopper's faster sums (``use_fast_accum``) keep 14 bits and are left off: a pass of few rows is
    bound by the weight's bytes, and other devices would give something else.
    """
    return torch._scaled_mm(
        rows, values.t(), scale_a=factor[:, None], scale_b=scale[None], out_dtype=torch.bfloat16
    )


def as_bfloat16(values: torch.Tensor) -> torch.Tensor:
    """The numbers of e4m3 [...] as bfloat16. Sign, exponent and mantissa lie alike in both, four
    bits further up, and the exponents count from -7 and -127: torch's own conversion on a CPU goes
    value by value and takes ten times as long."""
    if values.device.type != "cpu":
        return values.bfloat16()
    bits = (values.view(torch.int8).to(torch.int16) << 4) & _E4M3_BITS
    return bits.view(torch.bfloat16) * _E4M3_TO_BFLOAT16
