"""A weight [N, K] in int8, int4, fp8 or two bits: made of a tensor, stored, multiplied.

One file a format: :mod:`.int8`, :mod:`.int4`, :mod:`.fp8`, :mod:`.ternary`. Rows are quantised by
themselves, so matrices may be put on top of each other before or after. For inference: a product
has no gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from vla_ros.engine.gemm.tuner import Tuned
from vla_ros.engine.quantised.fp8 import Fp8
from vla_ros.engine.quantised.int4 import Int4
from vla_ros.engine.quantised.int8 import Int8
from vla_ros.engine.quantised.prepacked import Prepacked
from vla_ros.engine.quantised.ternary.matrix import Ternary
from vla_ros.engine.quantised.ways import GROUP

__all__ = ["GROUP", "Fp8", "Int4", "Int8", "Quantised", "Stored", "Weight"]

#: What a directory can hold, by the name of its format.
Stored = Int8 | Int4 | Fp8
KINDS: dict[str, type[Int8] | type[Int4] | type[Fp8]] = {"int8": Int8, "int4": Int4, "fp8": Fp8}

Quantised = Stored | Ternary
Weight = torch.Tensor | Prepacked | Tuned | Quantised


def quantise(weight: torch.Tensor, kind: str) -> Stored:
    """``kind``: int8, int4 or fp8; sizes as they come."""
    return KINDS[kind].of(weight)


def stored_shapes(count: int, width: int, kind: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of a matrix [N, K]: the shapes of its values and of its scale."""
    if kind != "int4":
        return (count, width), (count,)
    groups = -(-width // GROUP)
    return (count, groups * GROUP // 2), (groups, count, 2)


def from_stored(kind: str, values: torch.Tensor, scale: torch.Tensor, width: int) -> Stored:
    """What was stored, of a matrix with ``width`` columns."""
    if kind == "int4":
        return Int4(values, scale, None, width)
    return Int8(values, scale) if kind == "int8" else Fp8(values, scale)


def kind_of(matrix: Stored) -> str:
    """The name of its format."""
    return next(name for name, made in KINDS.items() if isinstance(matrix, made))


def stacked(parts: Sequence[Quantised]) -> Quantised:
    """One matrix of several of one kind."""
    first = parts[0]
    assert all(type(part) is type(first) for part in parts)
    made: Quantised = type(first).stacked(parts)  # type: ignore[arg-type]
    return made


def rows_of(weight: Weight, rows: range) -> Weight:
    """Some rows of a weight that is ready to be multiplied.

    A packed int4 is whole or not at all: fewer of its rows cannot be had.
    """
    if rows == range(len(weight)):
        return weight
    if isinstance(weight, Int4):
        raise ValueError("of a head in int4 some tokens cannot be had alone: give head=int8")
    if isinstance(weight, Int8 | Fp8 | Ternary | Tuned):
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
    rows = x.reshape(-1, x.shape[-1])
    if isinstance(weight, Tuned):
        out = weight.times(rows, bias)
    else:
        out = weight.times(rows)
        if bias is not None:
            out = out + bias
    return out.reshape(*x.shape[:-1], len(weight))


class QuantisedLinear(torch.nn.Module):
    """In the place of ``nn.Linear``. Inference only."""

    def __init__(self, weight: Quantised, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight, self._bias = weight, bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self._bias)


def replace_linear(
    module: torch.nn.Module, few: Mapping[str, Quantised], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Put the matrices ``X.weight`` in the place of the maps X of a module, with the biases that
    are among ``tensors``."""
    for name, matrix in few.items():
        path = name.removesuffix(".weight")
        place, _, own = path.rpartition(".")
        made = QuantisedLinear(matrix.ready(), tensors.get(f"{path}.bias"))
        setattr(module.get_submodule(place), own, made)
