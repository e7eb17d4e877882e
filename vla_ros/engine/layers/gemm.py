"""GEMM autotuner for unquantized weights [N, K]: Triton's kernels timed beside torch's product.

cuBLAS chooses its kernels by rules; which one it takes for one row (a decode pass, bound by
reading the weights) or for 300 (a packed pass, bound by how evenly tiles fill the device) is often
not the best there is. So every kernel configuration that is worth a try is timed on all weights of
a shape, once for every number of rows that a pass has, when that pass is captured; what is faster,
and gives the same, is taken from then on. Nothing is timed in service, unless a graph is captured
there.

Another kernel rounds its sums otherwise. Where the same bits are wanted from one process to the
next, ``gemm: torch`` leaves all products to torch. Not measured on a GPU so far: off by default.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch
import torch.nn.functional as F

from vla_ros.engine.layers.devices import (
    cache_bytes,
    first_that_runs,
    on_device,
    reason,
    say,
    triton_may_run,
)

#: a call -> the seconds that its device is busy with it
Stopwatch = Callable[[Callable[[], object]], float]

_ROUNDS = 5
_CYCLES_A_SECOND = 2.5e9  # no GPU's clock is faster


def stopwatch(device: torch.device) -> Stopwatch:
    """The best of five rounds, behind one that is not counted.

    On CUDA the device is kept busy until everything is asked for, as a graph asks for it: kernels
    of microseconds would be timed by the host's pace otherwise.
    """
    return partial(_on_cuda, device) if device.type == "cuda" else _on_cpu


def _on_cpu(run: Callable[[], object]) -> float:
    run()
    return min(_host_seconds(run) for _ in range(_ROUNDS))


def _host_seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _on_cuda(device: torch.device, run: Callable[[], object]) -> float:
    with on_device(device):
        run()  # compiles
        torch.cuda.synchronize()
        asking = _host_seconds(run)
        torch.cuda.synchronize()
        best = float("inf")
        for _ in range(_ROUNDS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
            torch.cuda._sleep(int(2 * asking * _CYCLES_A_SECOND))
            begin.record()
            run()
            end.record()
            end.synchronize()
            best = min(best, begin.elapsed_time(end) * 1e-3)
    return best


#: x [M, K], weight [N, K], bias [N] or None -> [M, N]
Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

FEW = 16  # rows that fit one tile of a tensor core
_TOLERANCE = 0.01  # of the result's norm: it is rounded to bfloat16 once


@dataclass(frozen=True, slots=True)
class Gemv:
    """At most :attr:`MOST` rows: a program makes ``columns`` results of each, ``depth`` numbers of
    K at a time, without tensor cores, which need 16 rows."""

    columns: int
    depth: int
    warps: int

    MOST = 4

    def __str__(self) -> str:
        return f"GEMV {self.columns}x{self.depth}"


@dataclass(frozen=True, slots=True)
class Tile:
    """A program makes ``rows`` x ``columns`` results, ``depth`` numbers of K at a time.

    ``parts``: K is split among so many programs, where N is too small to fill a device; a second
    kernel adds the parts up, always in the same order.
    """

    rows: int
    columns: int
    depth: int
    parts: int = 1
    warps: int = 4
    stages: int = 3

    def __str__(self) -> str:
        split = f" in {self.parts} parts" if self.parts > 1 else ""
        return f"tiles {self.rows}x{self.columns}x{self.depth}{split}"


Way = Gemv | Tile

_ONE_TO_FOUR = (Gemv(4, 512, 4), Gemv(8, 512, 4), Gemv(8, 1024, 8), Gemv(4, 2048, 8))
_UP_TO_SIXTEEN = (
    Tile(16, 32, 128, stages=5),
    Tile(16, 32, 128, parts=2, stages=5),
    Tile(16, 32, 128, parts=4, stages=5),
    Tile(16, 64, 128, stages=4),
)
_MANY = (
    Tile(64, 64, 64, stages=4),
    Tile(64, 128, 64, stages=4),
    Tile(128, 64, 64, stages=4),
    Tile(128, 128, 64, warps=8),
    Tile(128, 128, 64, parts=2, warps=8),
    Tile(64, 256, 64, warps=8),
    Tile(128, 256, 64, warps=8),
)


def ways(rows: int, dtype: torch.dtype) -> tuple[Way, ...]:
    """What is worth a try for so many rows. In float32 there are no tensor cores to fill: there
    only the passes that wait for the weights."""
    if rows <= Gemv.MOST:
        return _ONE_TO_FOUR + (() if dtype == torch.float32 else _UP_TO_SIXTEEN)
    if dtype == torch.float32:
        return ()
    return _UP_TO_SIXTEEN if rows <= FEW else _MANY


def check_product(
    call: Product, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> None:
    """Against torch's. Raises whatever the call raises, and ValueError where it gives something
    else."""
    wanted = F.linear(x, weight, bias).float()
    off = float((call(x, weight, bias).float() - wanted).norm() / wanted.norm())
    if not off < _TOLERANCE:
        raise ValueError(f"its result is off by {off:.2g}")


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


_CACHES = 4  # sizes of a cache behind which nothing is left in it


def choose_tuner(device: torch.device, dtype: torch.dtype) -> Tuner | None:
    """What chooses between torch's products and Triton's; None where torch's are to be used."""
    if not triton_may_run(device):
        return None

    def kernels() -> Tuner:
        from vla_ros.engine.layers.kernels.gemm_triton import product

        def made(way: Way) -> Product:
            return partial(product, way=way)

        random = torch.Generator().manual_seed(0)
        numbers = torch.randn(72, 200, generator=random).to(device, dtype)
        for way, rows in ((Gemv(4, 64, 4), 3), (Tile(16, 32, 64, parts=2), 20)):
            x, weight = numbers[:rows], numbers[rows:]
            for bias in (None, weight[:, 0].contiguous()):
                check_product(made(way), x, weight, bias)
        return Tuner(made, stopwatch(device), _CACHES * cache_bytes(device))

    return first_that_runs("GEMM", {"Triton's kernels": kernels}, "torch")[1]
