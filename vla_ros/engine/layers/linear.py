"""Weights [N, K] of any format: :func:`linear` multiplies rows with any of them.

=========  ============================================================================
plain      a tensor
tuned      the same on a GPU, whose kernel is chosen: :mod:`vla_ros.engine.layers.tuner`
int8       :mod:`vla_ros.engine.layers.int8`
int4       :mod:`vla_ros.engine.layers.int4`
fp8        :mod:`vla_ros.engine.layers.fp8`
ternary    two bits and one scale a matrix: :mod:`vla_ros.engine.layers.ternary`
prepacked  all bits, as a CPU multiplies them: :mod:`vla_ros.engine.layers.prepacked`
=========  ============================================================================

Rows are quantized by themselves, so matrices may be stacked before or after. For inference: a
product of any but a plain one has no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from vla_ros.core.numbers import round_up
from vla_ros.engine.layers.fp8 import Fp8
from vla_ros.engine.layers.int4 import Int4
from vla_ros.engine.layers.int8 import Int8
from vla_ros.engine.layers.kernels.torch_products import GROUP, plain_product
from vla_ros.engine.layers.prepacked import Prepacked
from vla_ros.engine.layers.ternary import Ternary
from vla_ros.engine.layers.tuner import TunedWeight

#: What a directory can hold, by the name of its format.
Stored = Int8 | Int4 | Fp8
KINDS: dict[str, type[Int8] | type[Int4] | type[Fp8]] = {"int8": Int8, "int4": Int4, "fp8": Fp8}

LowBit = Stored | Ternary
Weight = torch.Tensor | Prepacked | TunedWeight | LowBit


def linear(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Product of rows x [..., K] and a weight [N, K] of any format, plus a bias [N] -> [..., N]."""
    if isinstance(weight, torch.Tensor):
        return plain_product(x, weight, bias)
    if isinstance(weight, Prepacked):
        return weight.times(x, bias)
    rows = x.reshape(-1, x.shape[-1])
    if isinstance(weight, TunedWeight):
        out = weight.times(rows, bias)
    else:
        out = weight.times(rows)
        if bias is not None:
            out = out + bias
    return out.reshape(*x.shape[:-1], len(weight))


def linear_gelu(made: Any, x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """GELU of a map with a weight and a bias, such as ``nn.Linear``: within the product where the
    weight is prepacked, and so before the sums are rounded."""
    if isinstance(made.weight, Prepacked):
        return made.weight.times(x, made.bias, approximate)
    return F.gelu(made(x), approximate=approximate)


def plain(weight: Weight) -> torch.Tensor:
    """The matrix [N, K] as a tensor."""
    return weight if isinstance(weight, torch.Tensor) else weight.whole()


def rows_of(weight: Weight, rows: range) -> Weight:
    """Some rows of a weight that is ready to be multiplied.

    A packed int4 is whole or not at all: fewer of its rows cannot be had.
    """
    if rows == range(len(weight)):
        return weight
    if isinstance(weight, Int4):
        raise ValueError("of a head in int4 some tokens cannot be had alone: give head=int8")
    if isinstance(weight, torch.Tensor):
        return weight[rows.start : rows.stop]
    return weight.rows(rows.start, rows.stop)


def for_one_row(weight: Weight) -> Weight:
    """The weight, laid out for passes of one row on one core where
    ``kernels/one_row_numba.py`` can read it (its ``blocks``). To import Numba takes half a second,
    and to compile the first time some."""
    return weight.for_one_row() if isinstance(weight, Prepacked | Int8) else weight


def quantize(weight: torch.Tensor, kind: str) -> Stored:
    """A matrix [N, K] of any size in the format ``kind``: int8, int4 or fp8."""
    return KINDS[kind].of(weight)


def quantize_rows(blocks: Iterable[torch.Tensor], count: int, width: int, kind: str) -> Stored:
    """A matrix [N, K] of some rows at a time, to the bit what :func:`quantize` makes of all."""
    values, scale, begin = torch.empty(0), torch.empty(0), 0
    for block in blocks:
        few = quantize(block, kind)
        if not begin:
            sizes = stored_shapes(count, width, kind)
            values, scale = few.values.new_empty(sizes[0]), few.scale.new_empty(sizes[1])
        values[begin : begin + len(block)] = few.values
        scale.narrow(int(kind == "int4"), begin, len(block)).copy_(few.scale)
        begin += len(block)
    return from_stored(kind, values, scale, width)


def stored_shapes(count: int, width: int, kind: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the stored values and scale of a matrix [N, K]."""
    if kind != "int4":
        return (count, width), (count,)
    padded = round_up(width, GROUP)
    return (count, padded // 2), (padded // GROUP, count, 2)


def from_stored(kind: str, values: torch.Tensor, scale: torch.Tensor, width: int) -> Stored:
    """The matrix of a format that was stored as values and scale, with ``width`` columns."""
    if kind == "int4":
        return Int4(values, scale, None, width)
    return Int8(values, scale) if kind == "int8" else Fp8(values, scale)


def kind_of(matrix: Stored) -> str:
    """The name of a matrix' format."""
    return next(name for name, made in KINDS.items() if isinstance(matrix, made))


def stacked(parts: Sequence[LowBit]) -> LowBit:
    """One matrix of several of one format, on top of each other."""
    first = parts[0]
    assert all(type(part) is type(first) for part in parts)
    made: LowBit = type(first).stacked(parts)  # type: ignore[arg-type]
    return made


class LowBitLinear(torch.nn.Module):
    """A map in the place of ``nn.Linear``, of weights of few bits or prepacked. Inference only."""

    def __init__(self, weight: LowBit | Prepacked, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)


def replace_linear(
    module: torch.nn.Module, few: Mapping[str, LowBit], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Put the matrices ``X.weight`` in the place of the maps X of a module, with the biases that
    are among ``tensors``."""
    for name, matrix in few.items():
        path = name.removesuffix(".weight")
        parent, _, own = path.rpartition(".")
        made = LowBitLinear(matrix.ready(), tensors.get(f"{path}.bias"))
        setattr(module.get_submodule(parent), own, made)


def prepack_linear(
    module: torch.nn.Module, take: Callable[[str], torch.Tensor], biases: Callable[[str], Any]
) -> dict[str, Prepacked]:
    """Give a CPU all matrices of a module's maps in its own order, one after another; they are
    returned by name. ``take`` gives one by its name, ``biases`` what is added. Low-bit ones stay as
    they are."""
    found: dict[str, Prepacked] = {}
    for path, own in list(module.named_modules()):
        if isinstance(own, torch.nn.Linear):
            name = f"{path}.weight"
            found[name] = Prepacked.of(take(name))
            bias = None if own.bias is None else biases(f"{path}.bias")
            parent, _, last = path.rpartition(".")
            setattr(module.get_submodule(parent), last, LowBitLinear(found[name], bias))
    return found
