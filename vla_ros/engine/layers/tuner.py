"""GEMM autotuner for unquantized weights [N, K]: Triton's kernels timed beside torch's product.
Of flow policies also what lies around a product (norm, RoPE, activation, residual), as one kernel
beside torch's several: :func:`fastest`.

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
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

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
from vla_ros.engine.layers.tiles import FEW, Gemv, Tile, Way, ways

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

_TOLERANCE = 0.01  # of the result's norm: it is rounded to bfloat16 once
_SEVERAL = 0.03  # where torch rounds on the way too


def check_product(
    call: Product, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> None:
    """Against torch's. Raises whatever the call raises, and ValueError where it gives something
    else."""
    _check(call(x, weight, bias), F.linear(x, weight, bias))


def _check(
    found: torch.Tensor | tuple[torch.Tensor, ...],
    wanted: torch.Tensor | tuple[torch.Tensor, ...],
    limit: float = _TOLERANCE,
) -> None:
    one, other = _flat(found), _flat(wanted)
    off = float((one - other).norm() / other.norm())
    if not off < limit:
        raise ValueError(f"its result is off by {off:.2g}")


def _flat(made: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    parts = (made,) if isinstance(made, torch.Tensor) else made
    return torch.cat([part.float().flatten() for part in parts])


Function = TypeVar("Function")
Captured = TypeVar("Captured")
Result = TypeVar("Result", bound="torch.Tensor | tuple[torch.Tensor, ...]")

TORCH = "torch"
PRODUCT = "product"
_STEP = 16  # more rows than few are told apart in steps, as prompts are padded
_GAIN = 0.97  # of torch's time: what is hardly faster is not worth another rounding


@dataclass(frozen=True, slots=True)
class Choice:
    """What is taken for x [rows, width] times a weight [count, width] (of attention: for ``rows``
    queries and ``count`` entries), and the microseconds of one such call in that way and in
    torch's. ``kind`` says what is done besides."""

    rows: int
    count: int
    width: int
    way: str
    us: float
    torch_us: float
    kind: str = PRODUCT


class Tuner:
    """Chooses for all weights of one model.

    ``make`` gives the product of a way, ``seconds`` times a call on the device; ``cold`` is the
    number of bytes behind which nothing of a weight is left in the device's cache.
    """

    def __init__(self, make: Callable[[Way], Product], seconds: Stopwatch, cold: int = 0) -> None:
        self._make, self._seconds, self._cold = make, seconds, cold
        self._weights: dict[torch.Size, list[Tuned]] = {}
        self._taken: dict[Hashable, Any] = {}
        self._choosing = False
        #: what was found, in the order in which it was
        self.choices: list[Choice] = []
        #: ways that do not run here, or give something else, by what they were to do
        self.unfit: set[tuple[str, Any]] = set()

    def of(self, weight: torch.Tensor) -> Tuned:
        """That weight, which stays where it is."""
        tuned = Tuned(weight, self)
        self._weights.setdefault(weight.shape, []).append(tuned)
        return tuned

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

        def run(way: Way | None, tuned: Tuned, x: torch.Tensor) -> torch.Tensor:
            return self._product(way)(x, tuned.values, None)

        like = x.new_empty(_step(len(x)), x.shape[1])
        some = ways(len(like), x.dtype)
        return self._product(self.way(PRODUCT, self._weights[weight.shape], (like,), run, some))

    def _product(self, way: Way | None) -> Product:
        return F.linear if way is None else self._make(way)

    def fastest(
        self,
        kind: str,
        weight: Tuned | None,
        given: tuple[torch.Tensor, ...],
        run: Callable[..., Result],
        some: Sequence[Way],
    ) -> Result:
        """``run(way, weight, *given)`` in the fastest of ``some`` ways; None is torch's.

        Tried with numbers of its own in the place of ``given``, and any weights of this shape; so
        ``run`` writes nothing that is not written again.
        """
        alike = [None] if weight is None else self._weights[weight.values.shape]
        return run(self.way(kind, alike, given, run, some), weight, *given)

    def way(
        self,
        kind: str,
        alike: Sequence[Any],
        given: tuple[torch.Tensor, ...],
        run: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]],
        some: Sequence[Any],
    ) -> Any:
        """Which of ``some``, or None, is taken there; ``alike`` are weights, layers, or [None]."""
        shape = alike[0].values.shape if isinstance(alike[0], Tuned) else ()
        key = kind, *(one.shape for one in given), shape
        if self._choosing and key not in self._taken:
            self._taken[key] = self._choose(kind, alike, given, run, some)
        return self._taken.get(key)

    @contextmanager
    def _may_choose(self) -> Iterator[None]:
        before, self._choosing = self._choosing, True
        try:
            yield
        finally:
            self._choosing = before

    def _choose(
        self,
        kind: str,
        alike: Sequence[Any],
        given: tuple[torch.Tensor, ...],
        run: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]],
        some: Sequence[Any],
    ) -> Any:
        first, rows = alike[0], given[0].shape[-2]
        count, width = first.values.shape if isinstance(first, Tuned) else given[1].shape[-2:]
        several = _cold(alike, self._cold) if isinstance(first, Tuned) else alike
        random = torch.Generator().manual_seed(rows)
        trial = [torch.randn(x.shape, generator=random).to(x) for x in given]

        def seconds(way: Any) -> float:
            calls = self._seconds(lambda: [run(way, weight, *trial) for weight in several])
            return calls / len(several)

        wanted, limit = run(None, first, *trial), _TOLERANCE if kind == PRODUCT else _SEVERAL
        own = seconds(None)
        taken, best = None, own * _GAIN
        for way in some:
            if (kind, way) in self.unfit:
                continue
            try:
                _check(run(way, first, *trial), wanted, limit)
                took = seconds(way)
            except Exception as error:  # too little shared memory, say: others are tried
                self.unfit.add((kind, way))
                what = "GEMM" if kind == PRODUCT else kind
                say(f"{what}: {way} is left out ({reason(error)})")
                continue
            if took < best:
                best, taken = took, way
        us = own if taken is None else best
        name = TORCH if taken is None else str(taken)
        self.choices.append(Choice(rows, count, width, name, us * 1e6, own * 1e6, kind))
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


def _cold(weights: Sequence[Tuned], bytes_wanted: int) -> Sequence[Tuned]:
    """As many weights as it takes for the first to have left the cache when it comes again, as in
    a pass, where all others lie between; all of them if they are too few."""
    enough = -(-bytes_wanted // max(weights[0].values.nbytes, 1))
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
