"""Int4 weights [N, K]: a scale and a middle for every 32 values of a row; activations stay
bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from vla_ros.core.numbers import round_up
from vla_ros.engine.layers.kernels.torch_products import (
    GROUP,
    int4_packed,
    int4_product,
    with_columns,
)
from vla_ros.engine.layers.prepacked import with_rows
from vla_ros.engine.layers.tuner import LowBitProduct, fastest_int4, runs_tinygemm

_ROWS = 16  # what the kernels want N to be a multiple of (CUDA's: 8)
_AT_A_TIME = 256  # of them that are packed at a time, a multiple of every block's
_MIDDLE = 0x88  # two values of 8, which are 0


@dataclass(frozen=True, slots=True, eq=False)
class Int4:
    """``values`` uint8 [N, K / 2], two columns a byte, the even one low; ``scale`` bfloat16
    [K / 32, N, 2]: of every group its scale and its middle, w = (value - 8) * scale + middle.

    Stored so on every machine, K with zeros behind it up to a multiple of 32. ``width`` and
    ``height``: K and N without what was put behind, 0 for all. How it is multiplied, as
    :meth:`ready` found: ``packed`` in the order of torch's kernel, or by the ``product`` that reads
    it as it is stored.
    """

    values: torch.Tensor
    scale: torch.Tensor
    packed: torch.Tensor | None = None
    width: int = 0
    height: int = 0
    product: LowBitProduct | None = None

    def __len__(self) -> int:
        return self.height or self.scale.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """N, K."""
        return len(self), self.width or len(self.scale) * GROUP

    @property
    def parameters(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        packed = 0 if self.packed is None else self.packed.nbytes
        return self.values.nbytes + self.scale.nbytes + packed

    @staticmethod
    def of(weight: torch.Tensor) -> Int4:
        """Quantize a matrix: sixteen even steps from the least to the most of each group."""
        count, width = weight.shape
        exact = with_columns(weight.float(), round_up(width, GROUP))
        groups = exact.view(count, -1, GROUP)
        low, high = groups.amin(-1), groups.amax(-1)
        step = ((high - low) / 15).clamp_min(1e-30).bfloat16()
        middle = (low + 8 * step.float()).bfloat16()
        off = (groups - middle.float()[..., None]).div_(step.float()[..., None])
        values = off.round_().add_(8).clamp_(0, 15).to(torch.uint8).flatten(1)
        scale = torch.stack((step, middle), -1).transpose(0, 1).contiguous()
        return Int4(values[:, 0::2] | values[:, 1::2] << 4, scale, None, width)

    @staticmethod
    def stacked(parts: Sequence[Int4]) -> Int4:
        """One matrix of several, on top of each other."""
        values, scale = [p.values for p in parts], [p.scale for p in parts]
        return Int4(torch.cat(values), torch.cat(scale, 1), None, parts[0].width)

    def rows(self, start: int, stop: int) -> Int4:
        part = self.scale[:, start:stop].contiguous()
        return replace(self, values=self.values[start:stop], scale=part)

    def unpacked(self) -> torch.Tensor:
        """Codes 0..15 as int32 [N, K], with the padding behind K."""
        pairs = torch.stack((self.values & 15, self.values >> 4), -1)
        return pairs.flatten(1).to(torch.int32)

    def whole(self) -> torch.Tensor:
        """The matrix again, bfloat16 [N, K]; not of one that is packed."""
        count, width = self.shape
        step, middle = (part.t()[..., None].float() for part in self.scale.unbind(-1))
        groups = (self.unpacked() - 8).view(len(self.values), -1, GROUP)
        return (groups * step + middle).flatten(1)[:count, :width].bfloat16()

    def ready(self) -> Int4:
        """This matrix in the layout of the device's kernel, which is tried and timed on a GPU
        when the first matrix is made ready there; the stored form is let go where a kernel takes
        another."""
        device = self.values.device
        product = fastest_int4(device)
        if product is not None or (self.values.is_cuda and not runs_tinygemm(device)):
            return replace(self, product=product)
        count, width = self.shape
        missing = round_up(count, _ROWS) - count
        scale = with_rows(self.scale.transpose(0, 1), count + missing).transpose(0, 1).contiguous()
        return Int4(self.values.new_empty(0), scale, self._packed(missing), width, count)

    def _packed(self, missing: int) -> torch.Tensor:
        """The values in the order of torch's kernel, ``missing`` rows behind them; some rows at a
        time, as they lie in blocks of 64 at most behind each other and are int32 on the way."""
        pieces = []
        for first in range(0, len(self.values), _AT_A_TIME):
            values = self.values[first : first + _AT_A_TIME]
            if missing and first + _AT_A_TIME >= len(self.values):
                values = F.pad(values, (0, 0, 0, missing), value=_MIDDLE)
            pieces.append(int4_packed(replace(self, values=values).unpacked()))
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0]

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """x bfloat16 [M, K] -> [M, N]; the matrix must be :meth:`ready`."""
        if self.product is not None:
            x = with_columns(x, len(self.scale) * GROUP).contiguous()
            return self.product(x, self.values, self.scale)[:, : len(self)]
        if self.packed is None:  # a GPU without the kernel: it costs time, and saves memory
            return F.linear(x, self.whole())
        x = with_columns(x, len(self.scale) * GROUP).contiguous()
        return int4_product(x, self.packed, self.scale)[:, : len(self)]
