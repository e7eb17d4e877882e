"""A weight [N, K] of all its bits as a GPU multiplies it: in the way that was the fastest there.

cuBLAS chooses among its kernels by rules; which one it takes for one row, or for 300 of a packed
pass, is often not the best that the device can do, and no rule of ours would be better. So the ways
of :mod:`vla_ros.engine.gemm.ways` are timed beside torch's own product, once for every
number of rows that a pass has, when that pass is captured; what is faster, and gives the same, is
taken from then on. So nothing is timed in service, unless a graph is captured in service.

The sums of another way are rounded otherwise. Where to the bit the same is wanted from one process
to the next, ``gemm: torch`` leaves all products to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.nn.functional as F

from vla_ros.engine.gemm.stopwatch import Stopwatch
from vla_ros.engine.gemm.ways import FEW, Product, Way, check_product, ways
from vla_ros.engine.packed.probe import reason, say

Function = TypeVar("Function")
Captured = TypeVar("Captured")

TORCH = "torch"
_STEP = 16  # more rows than few are told apart in steps, as prompts are padded
_GAIN = 0.97  # of torch's time: what is hardly faster is not worth another rounding


@dataclass(frozen=True, slots=True)
class Choice:
    """What is taken for x [rows, width] times a weight [count, width], and the microseconds of one
    such product in that way and in torch's."""

    rows: int
    count: int
    width: int
    way: str
    us: float
    torch_us: float


@dataclass(slots=True, eq=False)
class _Shape:
    """All weights of one shape, and what is taken for them by their numbers of rows."""

    weights: list[torch.Tensor] = field(default_factory=list)
    taken: dict[int, Product] = field(default_factory=dict)


class Tuner:
    """Chooses for all weights of one model.

    ``make`` gives the product of a way, ``seconds`` times a call on the device; ``cold`` is the
    number of bytes behind which nothing of a weight is left in the device's cache.
    """

    def __init__(self, make: Callable[[Way], Product], seconds: Stopwatch, cold: int = 0) -> None:
        self._make, self._seconds, self._cold = make, seconds, cold
        self._shapes: dict[torch.Size, _Shape] = {}
        self._choosing = False
        #: what was found, in the order in which it was
        self.choices: list[Choice] = []
        #: ways that do not run here, or give something else
        self.unfit: set[Way] = set()

    def of(self, weight: torch.Tensor) -> Tuned:
        """That weight, which stays where it is."""
        shape = self._shapes.setdefault(weight.shape, _Shape())
        shape.weights.append(weight)
        return Tuned(weight, self)

    def while_capturing(
        self, capture: Callable[[Function], Captured]
    ) -> Callable[[Function], Captured]:
        """The same capture, but what is new in a function is timed in the calls that warm it up."""

        def call(function: Function) -> Captured:
            with self._may_choose():
                return capture(function)

        return call

    def product(self, x: torch.Tensor, weight: torch.Tensor) -> Product:
        """For x [M, K] and a weight of :meth:`of`."""
        shape, rows = self._shapes[weight.shape], _step(len(x))
        taken = shape.taken.get(rows)
        if taken is None:
            if not self._choosing:
                return F.linear
            taken = shape.taken[rows] = self._choose(shape.weights, rows)
        return taken

    @contextmanager
    def _may_choose(self) -> Iterator[None]:
        before, self._choosing = self._choosing, True
        try:
            yield
        finally:
            self._choosing = before

    def _choose(self, weights: Sequence[torch.Tensor], rows: int) -> Product:
        first, some = weights[0], _cold(weights, self._cold)
        count, width = first.shape
        random = torch.Generator().manual_seed(rows)
        x = torch.randn(rows, width, generator=random).to(first.device, first.dtype)

        def seconds(product: Product) -> float:
            return self._seconds(lambda: [product(x, weight, None) for weight in some]) / len(some)

        own = seconds(F.linear)
        taken: Product = F.linear
        best, name = own * _GAIN, TORCH
        for way in ways(rows, first.dtype):
            if way in self.unfit:
                continue
            product = self._make(way)
            try:
                check_product(product, x, first)
                took = seconds(product)
            except Exception as error:  # too little shared memory, say: others are tried
                self.unfit.add(way)
                say(f"GEMM: {way} is left out ({reason(error)})")
                continue
            if took < best:
                best, name, taken = took, str(way), product
        us = own if name == TORCH else best
        self.choices.append(Choice(rows, count, width, name, us * 1e6, own * 1e6))
        return taken


@dataclass(frozen=True, slots=True, eq=False)
class Tuned:
    """A weight of a :class:`Tuner`. For inference: a product may have no gradient."""

    values: torch.Tensor
    tuner: Tuner

    def __len__(self) -> int:
        return len(self.values)

    def whole(self) -> torch.Tensor:
        """The matrix [N, K] itself."""
        return self.values

    def rows(self, start: int, stop: int) -> Tuned:
        """Some rows of it."""
        return self.tuner.of(self.values[start:stop])

    def times(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [M, K] -> [M, N]."""
        return self.tuner.product(x, self.values)(x, self.values, bias)


def _step(rows: int) -> int:
    return rows if rows <= FEW else -(-rows // _STEP) * _STEP


def _cold(weights: Sequence[torch.Tensor], bytes_wanted: int) -> Sequence[torch.Tensor]:
    """As many weights as it takes for the first to have left the cache when it comes again, as in
    a pass, where all others lie between; all of them if they are too few."""
    enough = -(-bytes_wanted // max(weights[0].nbytes, 1))
    return weights[: max(enough, 1)]
