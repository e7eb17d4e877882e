"""The matrices of flow policies, each in its part's format.

A family says how a matrix is made of a checkpoint's tensors (Q, K and V on top of each other, the
weight of a norm folded in) and to which part it belongs; here it is made, and stored as it is or
in fewer bits. So what is quantised is what is multiplied, and a family knows no format.
:class:`Formatting` quantises when a checkpoint is loaded and can note what it made, which
:mod:`~vla_ros.engine.flow.quantise` writes; :mod:`~vla_ros.engine.flow.stored` reads it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch

from vla_ros.engine.flow.suffix import Linear
from vla_ros.engine.flow.weights import Weights
from vla_ros.engine.gemm.tuner import Tuned
from vla_ros.engine.quantised.formats import STORED, Formats
from vla_ros.engine.quantised.matrices import (
    QuantisedLinear,
    Stored,
    Weight,
    linear,
    quantise,
)
from vla_ros.engine.quantised.prepacked import Prepacked

VISION, DECODER, HEAD = "vision", "decoder", "head"

#: name -> tensor float32 on the model's device
Take = Callable[[str], torch.Tensor]
#: What makes a matrix [N, K], and a bias [N] if it has one, of tensors
Make = Callable[[Take], tuple[torch.Tensor, torch.Tensor | None]]
Made = tuple[Weight, torch.Tensor | None]


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """y = W x + b, W in any format."""

    weight: Weight
    bias: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)


@dataclass(slots=True)
class Record:
    """What a directory in these formats holds: ``kept``, the names of a checkpoint's tensors that
    are read as they are, and ``made``, tensors on the CPU by their names there, unless ``counting``
    alone is wanted: of the bytes that are ``saved``."""

    counting: bool = False
    saved: int = 0
    kept: set[str] = field(default_factory=set)
    made: dict[str, torch.Tensor] = field(default_factory=dict)

    def add(self, name: str, kind: str, few: Stored, bias: torch.Tensor | None, size: int) -> None:
        """A matrix that would be ``size`` bytes otherwise."""
        self.saved += size - few.nbytes
        if self.counting:
            return
        stored = {f"{name}.{kind}": few.values, f"{name}.scale": few.scale}
        if bias is not None:
            stored[f"{name}.bias"] = bias
        self.made |= {n: t.cpu() for n, t in stored.items()}


@runtime_checkable
class Maker(Protocol):
    """Weights that know the format of each part."""

    def made(self, name: str, part: str, like: torch.Tensor, make: Make, take: Take) -> Made: ...


class Formatting:
    """Weights whose matrices are quantised as they are read."""

    def __init__(self, within: Weights, formats: Formats, record: Record | None = None) -> None:
        self._within, self._formats = within, formats
        self._record = record
        self._making = False

    def take(self, name: str) -> torch.Tensor:
        """See Weights."""
        if self._record is not None and not self._making:
            self._record.kept.add(name)
        return self._within.take(name)

    def take_row(self, name: str, row: int) -> torch.Tensor:
        """See RowWeights."""
        if self._record is not None:
            self._record.kept.add(name)
        taken: torch.Tensor = self._within.take_row(name, row)  # type: ignore[attr-defined]
        return taken

    def made(self, name: str, part: str, like: torch.Tensor, make: Make, take: Take) -> Made:
        """See Maker."""
        kind = getattr(self._formats, part)
        if kind == STORED:
            return plain(like, make, take)
        self._making = True
        try:
            weight, bias = make(take)
        finally:
            self._making = False
        few = quantise(weight, kind)
        if self._record is not None:
            self._record.add(name, kind, few, bias, weight.numel() * like.itemsize)
        return few.ready(), None if bias is None else bias.to(like)


def matrix(
    weights: Weights, name: str, part: str, like: torch.Tensor, make: Callable[[Take], torch.Tensor]
) -> Weight:
    """The matrix ``name`` of a ``part``, in its format or in the dtype of ``like``, on its device.

    ``make`` is given what takes tensors, float32 on that device, and takes each once.
    """
    return _made(weights, name, part, like, lambda take: (make(take), None))[0]


def mapped(
    weights: Weights, name: str, part: str, like: torch.Tensor, make: Callable[[Take], Linear]
) -> Map:
    """The same of a matrix and its bias."""

    def both(take: Take) -> tuple[torch.Tensor, torch.Tensor | None]:
        made = make(take)
        return made.weight, made.bias

    weight, bias = _made(weights, name, part, like, both)
    assert bias is not None
    return Map(weight, bias)


def mapped_all(
    weights: Weights, names: Mapping[str, str], part: str, like: torch.Tensor
) -> dict[str, Map]:
    """Maps as they are in the checkpoint: own name -> its name there."""
    return {own: mapped(weights, name, part, like, as_it_is(name)) for own, name in names.items()}


def placed(module: torch.nn.Module, maps: Mapping[str, Map]) -> dict[str, torch.Tensor]:
    """Put those of few bits in the place of a module's maps; returns the tensors of the others,
    by their names in its state."""
    state: dict[str, torch.Tensor] = {}
    for path, made in maps.items():
        if isinstance(made.weight, torch.Tensor):
            state |= {f"{path}.weight": made.weight, f"{path}.bias": made.bias}
            continue
        assert not isinstance(made.weight, Prepacked | Tuned)
        place, _, own = path.rpartition(".")
        setattr(module.get_submodule(place), own, QuantisedLinear(made.weight, made.bias))
    return state


def plain(like: torch.Tensor, make: Make, take: Take) -> Made:
    """As it is stored."""
    weight, bias = make(take)
    return weight.to(like), None if bias is None else bias.to(like)


def as_it_is(name: str) -> Callable[[Take], Linear]:
    """What makes a map that is nothing but its two tensors."""
    return lambda take: Linear(take(f"{name}.weight"), take(f"{name}.bias"))


def _made(weights: Weights, name: str, part: str, like: torch.Tensor, make: Make) -> Made:
    def take(one: str) -> torch.Tensor:
        return weights.take(one).to(like.device)

    source = weights
    while (within := getattr(source, "within", None)) is not None:  # such as checked tables
        source = within
    if isinstance(source, Maker):
        return source.made(name, part, like, make, take)
    return plain(like, make, take)
