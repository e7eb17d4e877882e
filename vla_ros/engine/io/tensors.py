"""The tensor table of a network: what a checkpoint holds, and which of it is multiplied together.

A table is rows by name, nested as the names are and repeated where layers are. Of it :func:`shapes`
makes what a folder must hold and what random weights are drawn for; :func:`read_map` and
:func:`read_weight` make a row's matrix as the network multiplies it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch

from vla_ros.engine.io.linear import Linear, behind_norm
from vla_ros.engine.io.quantize import Map, Rows, Take, mapped, matrix
from vla_ros.engine.io.weights import Shape, Shapes, Weights
from vla_ros.engine.layers.linear import Weight


@dataclass(frozen=True, slots=True)
class Plain:
    """A tensor by itself, such as an embedding."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix of one map (inputs, outputs) or more below each other, by the maps' names.

    The first is times ``scale``: Q's, by that of the scores. ``norm`` is the name of the one in
    front, which is folded in: into a whole map a layer norm, repeated ``times`` over its inputs,
    into a weight alone an RMS norm that scales by its own + ``offset``.
    """

    maps: Mapping[str, tuple[int, int]]
    scale: float = 1.0
    norm: str = ""
    times: int = 1
    offset: float = 0.0
    bias: bool = True

    def stacked(self, take: Callable[[str], torch.Tensor], base: str, kind: str) -> torch.Tensor:
        """``kind``, "weight" or "bias", of its maps at ``base``."""
        first, *more = (take(f"{base}{name}.{kind}") for name in self.maps)
        if self.scale != 1.0:
            first = first * self.scale
        return torch.cat((first, *more)) if more else first

    def weight(self, take: Take, base: str) -> Rows:
        """The matrix [N, K] alone."""
        return Rows(self._size, self._blocks(take, base))

    def _blocks(self, take: Take, base: str) -> Iterator[torch.Tensor]:
        norm = take(f"{base}{self.norm}.weight") + self.offset if self.norm else None
        for number, name in enumerate(self.maps):
            for block in take.rows(f"{base}{name}.weight").blocks:
                if not number and self.scale != 1.0:
                    block = block * self.scale
                yield block if norm is None else block * norm

    @property
    def _size(self) -> tuple[int, int]:
        sizes = list(self.maps.values())
        return sum(outputs for _, outputs in sizes), sizes[0][0]

    def linear(self, take: Take, base: str) -> Linear | tuple[Rows, torch.Tensor]:
        """The matrix and its bias."""
        if not self.norm:
            return self.weight(take, base), self.stacked(take, base, "bias")
        made = Linear(*(self.stacked(take, base, kind) for kind in ("weight", "bias")))
        return behind_norm(take, base + self.norm, made, self.times)


#: A layer norm by its width, a map with a bias by (inputs, outputs), or what else there is.
Row: TypeAlias = "int | tuple[int, int] | Plain | Matrix"
#: Rows by name; a table's names go before those in it, a number too where there are several.
Table: TypeAlias = "Mapping[str, Row | Table | Sequence[Table]]"


def shapes(table: Table, base: str = "") -> Shapes:
    """The tensors of a checkpoint, whose names begin with ``base``, in the table's order."""
    out: Shapes = {}
    for key, row in table.items():
        name = base + key
        if isinstance(row, Plain):
            out[name] = row.shape
        elif isinstance(row, int):
            out |= {f"{name}.{kind}": (row,) for kind in ("weight", "bias")}
        elif isinstance(row, tuple):
            out |= {f"{name}.weight": row[::-1], f"{name}.bias": row[1:]}
        elif isinstance(row, Matrix):
            bare = {f"{own}.weight": Plain(size[::-1]) for own, size in row.maps.items()}
            out |= shapes(row.maps if row.bias else bare, base)
        elif isinstance(row, Mapping):
            out |= shapes(row, name if name.endswith(".") else f"{name}.")
        else:
            out |= shapes({str(number): one for number, one in enumerate(row)}, f"{name}.")
    return out


def read_map(
    weights: Weights, base: str, table: Table, name: str, part: str, like: torch.Tensor
) -> Map:
    """The map ``name`` of a table at ``base``, in the format of its ``part``, or in the dtype of
    ``like``, on its device."""
    row = table.get(name)
    make = partial(row.linear, base=base) if isinstance(row, Matrix) else None
    return mapped(weights, base + name, part, like, make)


def read_weight(
    weights: Weights, base: str, table: Table, name: str, part: str, like: torch.Tensor
) -> Weight:
    """The matrix alone of a map that has no bias, or whose bias is read by itself."""
    row = table.get(name)
    make = partial(row.weight, base=base) if isinstance(row, Matrix) else None
    return matrix(weights, base + name, part, like, make)
