"""All bits of a matrix, laid out once in the order that oneDNN multiplies in on a CPU; and where
that pays: for several rows, for one row, on this processor."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from vla_ros.engine.layers.devices import multiplies_bfloat16, tried


def with_rows(x: torch.Tensor, count: int) -> torch.Tensor:
    """x [M, ...] -> [``count``, ...], zeros behind; x itself where it has as many."""
    missing = count - len(x)
    return torch.cat((x, x.new_zeros(missing, *x.shape[1:]))) if missing else x


@dataclass(frozen=True, slots=True, eq=False)
class Prepacked:
    """``values``: opaque to everything but the product. For inference: no gradient, no writing.
    ``blocks``: see :meth:`for_one_row`."""

    values: torch.Tensor
    blocks: Any = None

    def __len__(self) -> int:
        return len(self.values)

    @staticmethod
    def of(weight: torch.Tensor) -> Prepacked:
        """Lay out a matrix of float32 or bfloat16, on a CPU that :func:`can_prepack`."""
        return Prepacked(torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous()))

    def rows(self, start: int, stop: int) -> Prepacked:
        part = Prepacked.of(self.whole()[start:stop])
        return part if self.blocks is None else part.for_one_row()

    def whole(self) -> torch.Tensor:
        """The matrix again [N, K], as it was to the bit."""
        return self.values.to_dense()

    def for_one_row(self) -> Prepacked:
        """This matrix, laid out for ``kernels/one_row_numba.py`` too where that can read it."""
        functions = one_row()
        if functions is None:
            return self
        return replace(self, blocks=functions.blocks(self.values, self.whole()))

    def times(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, gelu: str | None = None
    ) -> torch.Tensor:
        """x [..., K] -> [..., N]; ``gelu``: of the sums, "none" exactly or "tanh"."""
        count = len(x)
        padded = x.dim() == 2 and count < few_rows()
        if padded:
            able = count == 1 and gelu is None and self.blocks is not None
            if able and (alone := one_row()) is not None:
                found = alone.multiply(self.blocks, alone.NO_SCALE, alone.as_floats(x[0]))
                one = torch.from_numpy(found)[None].to(x.dtype)
                return one if bias is None else one + bias
            x = with_rows(x, few_rows())
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.values, bias, "none" if gelu is None else "gelu", [], gelu or ""
        )
        return out[:count] if padded else out


@lru_cache
def _numba() -> Any:
    """The module ``kernels/one_row_numba.py`` where Numba is installed and right, and reads faster
    than oneDNN: measured with AVX-512 (one row's product reads at 25 GB/s on one core of a Zen 4,
    oneDNN's at 16), with AMX (12 on one of a Xeon, oneDNN's at 8) and AVX2 (25 on one of a Zen 3,
    oneDNN's at 15, torch's of a plain matrix at 20). A rule and no timing, so that every start on a
    machine gives the same bits."""
    known = torch.backends.cpu.get_cpu_capability() in ("AVX512", "AVX2")
    if not known or importlib.util.find_spec("numba") is None:
        return None

    def numba() -> Any:
        from vla_ros.engine.layers.kernels import one_row_numba

        one_row_numba.check()
        return one_row_numba

    return tried("a pass of one token", "Numba", numba, "torch")


def one_row() -> Any:
    """The functions for one row on one core, None where torch's are to be taken."""
    return _numba() if torch.get_num_threads() == 1 and not torch.compiler.is_compiling() else None


@lru_cache
def few_rows() -> int:
    """The least rows that oneDNN multiplies at its best, so that fewer get zeros behind them: with
    AVX-512 four are read at 17 to 21 GB/s where one is at 14 to 16, two at 12 to 14 (one core of a
    Zen 4)."""
    return 4 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 1


def has_wide_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether prepacked matrices were measured to be faster with the hundreds of rows of images
    and prompts too: with AVX-512 1.1 to 1.5 times, without 0.85."""
    return can_prepack(device, dtype) and torch.backends.cpu.get_cpu_capability() == "AVX512"


@lru_cache
def can_prepack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies in this type here; tried, as torch guarantees none of these
    calls."""
    if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16):
        return False
    weight, x = torch.eye(16, dtype=dtype), torch.arange(32).view(2, 16).to(dtype)
    try:
        fast = dtype == torch.float32 or multiplies_bfloat16(device)
        packed = Prepacked.of(weight)
        return fast and torch.equal(packed.times(x), x) and torch.equal(packed.whole(), weight)
    except Exception:  # whatever a build of torch lacks: then its own product runs
        return False
