"""The kernel that multiplies a matrix on a device: tried once, and on a GPU timed.

Two choices, both made before service. Of weights of few bits, when the first of a format is made
ready on a device: torch's own kernel or Triton's, held to the product of the same numbers in
bfloat16. What fails is logged in one line, and the bfloat16 product runs instead.

Of plain weights (``gemm: auto``) :class:`Tuner`, the GEMM autotuner: Triton's kernels timed beside
torch's product, and of a layer what lies around a product (norm, RoPE, activation, residual) as one
kernel beside torch's several: :meth:`Tuner.fastest`. cuBLAS chooses its kernels by rules; which one
it takes for one row (a decode pass, bound by reading the weights) or for 300 (a packed pass, bound
by how evenly tiles fill the device) is often not the best there is. So every tiling that is worth a
try is timed on all weights of a shape, once for every number of rows that a pass has, when that
pass is captured; what is faster, and gives the same, is taken from then on. Nothing is timed in
service, unless a graph is captured there.

Another kernel rounds its sums otherwise. Where the same bits are wanted from one process to the
next, ``gemm: torch`` leaves all products to torch. Not measured on a GPU so far: off by default.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F

from vla_ros.core.numbers import round_up
from vla_ros.engine.layers.devices import (
    cache_bytes,
    on_device,
    reason,
    tried,
    triton_may_run,
    warn_once,
)
from vla_ros.engine.layers.kernels.torch_products import (
    GROUP,
    IntegerProduct,
    RoundRows,
    fp8_product,
    int4_packed,
    int4_product,
    rounded_rows,
    widened,
)
from vla_ros.engine.layers.tiles import FEW, INT4_TILES, INT8_TILES, Gemv, Tile, Way, ways

#: a call -> the seconds that its device is busy with it
Stopwatch = Callable[[Callable[[], object]], float]

_ROUNDS = 5
_CYCLES_A_SECOND = 2.5e9  # no GPU's clock is faster


def stopwatch(device: torch.device) -> Stopwatch:
    """A stopwatch of a device: the best of five rounds, behind one that is not counted.

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
    """Hold a product to torch's. Raises whatever the call raises, and ValueError where it gives
    something else."""
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
class KernelChoice:
    """The kernel that is taken for x [rows, width] times a weight [count, width] (of attention: for
    ``rows`` queries and ``count`` entries), and the microseconds of one such call in that ``way``
    and in torch's. ``kind`` is the step of a layer."""

    rows: int
    count: int
    width: int
    way: str
    us: float
    torch_us: float
    kind: str = PRODUCT


class Tuner:
    """The choices for all weights of one model.

    ``make`` gives the product of a tiling, ``seconds`` times a call on the device; ``cold`` is the
    number of bytes behind which nothing of a weight is left in the device's cache.
    """

    def __init__(self, make: Callable[[Way], Product], seconds: Stopwatch, cold: int = 0) -> None:
        self._make, self._seconds, self._cold = make, seconds, cold
        self._weights: dict[torch.Size, list[TunedWeight]] = {}
        self._taken: dict[Hashable, Any] = {}
        self._choosing = False
        #: what was found, in the order in which it was
        self.choices: list[KernelChoice] = []
        #: ways that do not run here, or give something else, by what they were to do
        self.unfit: set[tuple[str, Any]] = set()

    def of(self, weight: torch.Tensor) -> TunedWeight:
        """The weight as one of this tuner's; its values stay where they are."""
        tuned = TunedWeight(weight, self)
        self._weights.setdefault(weight.shape, []).append(tuned)
        return tuned

    def while_capturing(
        self, capture: Callable[[Function], Captured]
    ) -> Callable[[Function], Captured]:
        """A capture in whose warm-up calls whatever is new in the function is timed."""

        def call(function: Function) -> Captured:
            with self._may_choose():
                return capture(function)

        return call

    def product(self, x: torch.Tensor, weight: torch.Tensor) -> Product:
        """The product for x [M, K] and a weight of :meth:`of`."""

        def run(way: Way | None, tuned: TunedWeight, x: torch.Tensor) -> torch.Tensor:
            return self._product(way)(x, tuned.values, None)

        like = x.new_empty(_step(len(x)), x.shape[1])
        some = ways(len(like), x.dtype)
        return self._product(self.way(PRODUCT, self._weights[weight.shape], (like,), run, some))

    def _product(self, way: Way | None) -> Product:
        return F.linear if way is None else self._make(way)

    def fastest(
        self,
        kind: str,
        weight: TunedWeight | None,
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
        """The way of ``some`` that is taken there, or None; ``alike`` are weights, layers, or
        [None]."""
        shape = alike[0].values.shape if isinstance(alike[0], TunedWeight) else ()
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
        count, width = first.values.shape if isinstance(first, TunedWeight) else given[1].shape[-2:]
        several = _cold(alike, self._cold) if isinstance(first, TunedWeight) else alike
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
                warn_once(f"{what}: {way} is left out ({reason(error)})")
                continue
            if took < best:
                best, taken = took, way
        us = own if taken is None else best
        name = TORCH if taken is None else str(taken)
        self.choices.append(KernelChoice(rows, count, width, name, us * 1e6, own * 1e6, kind))
        return taken


@dataclass(frozen=True, slots=True, eq=False)
class TunedWeight:
    """A weight of a :class:`Tuner`. For inference: a product may have no gradient."""

    values: torch.Tensor
    tuner: Tuner

    def __len__(self) -> int:
        return len(self.values)

    def whole(self) -> torch.Tensor:
        """The matrix [N, K] itself."""
        return self.values

    def rows(self, start: int, stop: int) -> TunedWeight:
        """Some rows of it."""
        return self.tuner.of(self.values[start:stop])

    def times(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [M, K] -> [M, N]."""
        return self.tuner.product(x, self.values)(x, self.values, bias)


def _step(rows: int) -> int:
    return rows if rows <= FEW else round_up(rows, _STEP)


def _cold(weights: Sequence[TunedWeight], bytes_wanted: int) -> Sequence[TunedWeight]:
    """Copies of a weight, as many as it takes for the first to have left the cache when it comes
    again, as in a pass, where all others lie between; all of them if they are too few."""
    enough = -(-bytes_wanted // max(weights[0].values.nbytes, 1))
    return weights[: max(enough, 1)]


_CACHES = 4  # sizes of a cache behind which nothing is left in it


def choose_tuner(device: torch.device, dtype: torch.dtype) -> Tuner | None:
    """The tuner between torch's products and Triton's; None where torch's are to be used."""
    if not triton_may_run(device):
        return None

    def kernels() -> Tuner:
        from vla_ros.engine.layers.kernels.layer_triton import product

        def made(way: Way) -> Product:
            return partial(product, way=way)

        random = torch.Generator().manual_seed(0)
        numbers = torch.randn(72, 200, generator=random).to(device, dtype)
        for way, rows in ((Gemv(4, 64, 4), 3), (Tile(16, 32, 64, parts=2), 20)):
            x, weight = numbers[:rows], numbers[rows:]
            for bias in (None, weight[:, 0].contiguous()):
                check_product(made(way), x, weight, bias)
        return Tuner(made, stopwatch(device), _CACHES * cache_bytes(device))

    return tried("GEMM", "Triton's kernels", kernels, "torch")


# Weights of few bits.

#: x bfloat16 [M, K], values and scale of a matrix [N, K] as its format has them -> [M, N]
LowBitProduct = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

_FEW_INT8 = 8  # rows up to which torch's kernel is faster on a CPU than tiles made bfloat16
_LOW_BIT_TOLERANCE = 0.02  # of the result's norm: several roundings to bfloat16
_TIMED = 4096  # rows and columns of the matrix that is timed
_PROMPT = 288  # rows of a prompt of OpenVLA's
_ACTION = 6  # passes of one row for each prompt
_WIDENED = "bfloat16 on the way"  # what runs where a kernel does not


@lru_cache
def multiplies_integers(device: torch.device) -> bool:
    """Whether int8 is multiplied as integers: by oneDNN, on a CPU with VNNI. Without, the inputs
    would have seven bits (of eight, two products overflow the 16 bits of their sum)."""
    if device.type != "cpu" or not torch.cpu._is_vnni_supported():
        return False
    return tried("int8", "oneDNN's product of integers", _integers, _WIDENED) is not None


@lru_cache
def fastest_int8(device: torch.device) -> tuple[int, LowBitProduct | None]:
    """How int8 is multiplied with bfloat16 rows, timed on a GPU: up to so many by torch's kernel
    (0: never), more of them by that product; None: the matrix is made bfloat16 first."""
    if device.type == "cpu":
        return _FEW_INT8, None
    few = tried("int8", "torch's int8 product", partial(_few_int8_rows, device), _WIDENED) or 0
    if device.type != "cuda":
        return few, None
    made = partial(_many_int8_rows, device)
    return few, tried("int8, many rows", "Triton's kernel", made, _WIDENED)


@lru_cache
def fastest_int4(device: torch.device) -> LowBitProduct | None:
    """The product of int4 as it is stored; None where torch's kernel, with an order of its own, was
    faster for a prompt and six tokens."""
    if device.type != "cuda":
        return None
    return tried("int4", "Triton's kernel", partial(_int4_as_stored, device), "tinygemm")


@lru_cache
def runs_tinygemm(device: torch.device) -> bool:
    """Whether torch's int4 kernel for GPUs runs there."""
    return tried("int4", "tinygemm", partial(_tinygemm, device), _WIDENED) is not None


@lru_cache
def choose_fp8(device: torch.device) -> RoundRows | None:
    """The rounding of rows to e4m3 for a GPU's fp8 products, one kernel or torch's eight, which
    give the same bits; None: it has no such products. An older GPU is not tried, and nothing is
    logged."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9):
        return None
    if not tried("fp8", "torch's fp8 product", partial(_scaled_mm, device), _WIDENED):
        return None
    kernel = partial(_round_rows, device)
    return tried("fp8 rows", "Triton's kernel", kernel, "torch") or rounded_rows


def _integers() -> bool:
    """Raises where it is wrong. Once more rows than one tile has, and a width that is no multiple
    of anything."""
    cpu = torch.device("cpu")
    for width in (96, 45):
        values, scale = _int8(48, width, cpu)
        packed = IntegerProduct.of(values, scale)
        if not torch.equal(packed.codes(), values):
            raise RuntimeError("it does not give its codes back")
        for count in (1, 20):
            x = _inputs(count, width, cpu)
            _same(packed.times(x), F.linear(x.float(), values.float()) * scale.float())
    return True


def _few_int8_rows(device: torch.device) -> int:
    """The most rows, of 1, 2, 4 and 8, up to which it is faster. Raises where it is wrong, or not
    even for one."""
    with on_device(device), torch.inference_mode():
        values, scale = _int8(48, 96, device)
        x = _inputs(3, 96, device)
        _same(
            torch._weight_int8pack_mm(x, values, scale),
            F.linear(x.float(), values.float()) * scale.float(),
        )
        values = torch.zeros(_TIMED, _TIMED, dtype=torch.int8, device=device)
        scale = _scales(_TIMED, device)
        most, seconds = 0, stopwatch(device)
        for count in (1, 2, 4, _FEW_INT8):
            x = _inputs(count, _TIMED, device)
            took = seconds(lambda: torch._weight_int8pack_mm(x, values, scale))  # noqa: B023
            other = seconds(lambda: F.linear(x, values.to(x.dtype)).mul_(scale))  # noqa: B023
            if took > other:
                break
            most = count
    if not most:
        raise RuntimeError("it is slower")
    return most


def _many_int8_rows(device: torch.device) -> LowBitProduct:
    """Int8 that becomes bfloat16 in the registers, in the fastest tiles for the rows of a prompt.
    Raises where it is wrong, or not even as fast as to make all of the matrix bfloat16 first."""
    from vla_ros.engine.layers.kernels.layer_triton import product

    with on_device(device), torch.inference_mode():
        values, scale = _int8(48, 96, device)
        x, wide = _inputs(20, 96, device), _inputs(_PROMPT, _TIMED, device)
        big = torch.zeros(_TIMED, _TIMED, dtype=torch.int8, device=device)
        steps, seconds = _scales(_TIMED, device), stopwatch(device)
        best, taken = seconds(lambda: widened(wide, big).mul_(steps)), None
        for way in INT8_TILES:
            exact = F.linear(x.float(), values.float()) * scale.float()
            _same(product(x, values, None, way, gate=scale), exact)
            took = seconds(lambda: product(wide, big, None, way, gate=steps))  # noqa: B023
            if took < best:
                best, taken = took, way
    if taken is None:
        raise RuntimeError("it is slower")
    return lambda x, values, scale: product(x, values, None, taken, gate=scale)


def _int4_as_stored(device: torch.device) -> LowBitProduct:
    """Raises where it is wrong, or slower than tinygemm."""
    from vla_ros.engine.layers.kernels.layer_triton import int4_product as product

    def made(x: torch.Tensor, values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return product(x, values, scale, GROUP, INT4_TILES[len(x) > INT4_TILES[0].rows])

    with on_device(device), torch.inference_mode():
        codes, scale, exact = _int4(48, 96, device)
        x = _inputs(20, 96, device)
        for way in INT4_TILES:
            _same(product(x, _pairs(codes), scale, GROUP, way), F.linear(x.float(), exact))
        if not runs_tinygemm(device):
            return made
        codes, scale, _ = _int4(_TIMED, _TIMED, device)
        values, packed, seconds = _pairs(codes), int4_packed(codes), stopwatch(device)
        own = other = 0.0
        for rows, times in ((1, _ACTION), (_PROMPT, 1)):
            x = _inputs(rows, _TIMED, device)
            own += times * seconds(lambda: made(x, values, scale))  # noqa: B023
            other += times * seconds(lambda: int4_product(x, packed, scale))  # noqa: B023
    if own > other:
        raise RuntimeError("it is slower")
    return made


def _tinygemm(device: torch.device) -> bool:
    """Raises where it is wrong."""
    with on_device(device), torch.inference_mode():
        for width in (GROUP, 2 * GROUP, 4 * GROUP, 3 * GROUP):  # every order of tiles
            codes, scale, exact = _int4(48, width, device)
            for count in (1, 20):
                x = _inputs(count, width, device)
                out = int4_product(x, int4_packed(codes), scale)
                _same(out, F.linear(x.float(), exact))
    return True


def _scaled_mm(device: torch.device) -> bool:
    """Raises where it is wrong."""
    with on_device(device), torch.inference_mode():
        values = _inputs(48, 96, device).to(torch.float8_e4m3fn)
        scale = _scales(48, device).float()
        for count in (1, 7, 100):
            rows = _inputs(count, 96, device).to(torch.float8_e4m3fn)
            factor = _scales(count, device).float()
            exact = F.linear(rows.float(), values.float()) * factor[:, None] * scale
            _same(fp8_product(rows, values, factor, scale), exact)
    return True


def _round_rows(device: torch.device) -> RoundRows:
    """Raises where it is not torch's to the bit."""
    from vla_ros.engine.layers.kernels.layer_triton import rounded_rows as made

    with on_device(device), torch.inference_mode():
        for width in (45, 96, 4096):
            x = torch.cat((_inputs(3, width, device), _inputs(1, width, device) * 1e-4))
            for one, other in zip(made(x), rounded_rows(x), strict=True):
                if not torch.equal(one.view(torch.uint8), other.view(torch.uint8)):
                    raise RuntimeError("it rounds otherwise")
    return made


def _codes(rows: int, width: int, many: int, device: torch.device) -> torch.Tensor:
    """Integers from 0 to ``many`` - 1, float32 [rows, width], all of them and in no order."""
    return (torch.arange(rows * width, device=device) * 7919 % many).view(rows, width).float()


def _inputs(rows: int, width: int, device: torch.device) -> torch.Tensor:
    """bfloat16 [rows, width] in [-1, 1)."""
    return (_codes(rows, width, 251, device) / 125.5 - 1).bfloat16()


def _scales(count: int, device: torch.device) -> torch.Tensor:
    """bfloat16 [count], all different for some."""
    return (torch.arange(count, device=device) % 13 + 1).bfloat16() / 16


def _int8(rows: int, width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Values int8 [rows, width] and a scale for each row."""
    return _codes(rows, width, 256, device).sub(128).to(torch.int8), _scales(rows, device)


def _int4(rows: int, width: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Codes int32 [rows, width], scale [width / 32, rows, 2] and the matrix that they are."""
    codes, groups = _codes(rows, width, 16, device).to(torch.int32), width // GROUP
    steps = _scales(groups * rows, device).view(groups, rows)
    scale = torch.stack((steps, -steps), -1).contiguous()
    each = steps.t()[..., None].float()
    exact = (codes - 8).view(rows, groups, GROUP) * each - each
    return codes, scale, exact.flatten(1)


def _pairs(codes: torch.Tensor) -> torch.Tensor:
    """Two columns a byte, the even one low."""
    return (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)


def _same(found: torch.Tensor, exact: torch.Tensor) -> None:
    off = float((found.float() - exact).norm() / exact.norm())
    if not off <= _LOW_BIT_TOLERANCE:
        raise RuntimeError(f"its result is off by {off:.3g}")
