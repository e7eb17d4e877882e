"""A weight [N, K] in the order that oneDNN multiplies in: the same numbers, laid out once.

torch's own product lays a plain weight out anew at every call, or walks it as it lies. For a pass
of one token that is most of its time: on a Zen 5 core (AVX-512, no AMX) 0.25 ms for 2304 x 768 in
bfloat16, 0.10 ms prepacked; in float32, where torch asks MKL, 0.45 and 0.24 ms, and of 89 rows 4.1
and 1.5 ms. Source: torch's inductor, which packs the weights that it freezes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Prepacked:
    """``values``: opaque to everything but the product. For inference: no gradient, no writing."""

    values: torch.Tensor

    def __len__(self) -> int:
        return len(self.values)

    @staticmethod
    def of(weight: torch.Tensor) -> Prepacked:
        """Of float32 or bfloat16, on a CPU that :func:`can_prepack`."""
        return Prepacked(torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous()))

    def whole(self) -> torch.Tensor:
        """The matrix again [N, K], as it was to the bit."""
        return self.values.to_dense()

    def times(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [..., K] -> [..., N]."""
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.values, bias, "none", [], "")
        return out


@lru_cache
def can_prepack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies in this type here; tried, as torch promises nobody these calls."""
    if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16):
        return False
    weight, x = torch.eye(16, dtype=dtype), torch.arange(32).view(2, 16).to(dtype)
    try:
        fast = dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        packed = Prepacked.of(weight)
        return fast and torch.equal(packed.times(x), x) and torch.equal(packed.whole(), weight)
    except Exception:  # whatever a build of torch lacks: then its own product runs
        return False
