"""A ternary weight [N, K]: made of a tensor, stored, multiplied.

Source: BitVLA ``modeling_bitnet.py`` and ``modeling_siglip.py`` (``WeightQuant``, ``ActQuant``,
``BitLinear``), which are BitNet b1.58's (arXiv 2402.17764): a weight is -1, 0 or 1 times the mean
of all its magnitudes, an input of the product is int8 by the largest of its row. There both are
made float again and multiplied; here the integers are, and the two scales come after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from vla_ros.engine.quantised.ternary.layout import PLANES, pack, unpack
from vla_ros.engine.quantised.ternary.products import WIDEST, Product, choose_product

_LEAST = 1e-5  # of the mean and of the largest, as in the original


@dataclass(frozen=True, slots=True, eq=False)
class Ternary:
    """``packed`` uint8 [N, P], see :mod:`layout`; ``scale`` float32 [N]: of each row; ``width`` K.

    ``product`` is the device's way to multiply, see :meth:`ready`.
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
        """With the product of the device that it is on."""
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
    # an infinite row has a scale of 0, and inf * 0 is no int8: its factor must say so
    return values, (1.0 / scale)[:, 0]
