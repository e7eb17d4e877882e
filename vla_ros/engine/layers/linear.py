"""Low-bit and prepacked weights [N, K]: int8, int4, fp8, ternary; :func:`linear` takes any of them.

=========  ============================================================================
int8       one scale a row, symmetric; activations stay bfloat16, or on a CPU with VNNI are
           rounded to eight bits, one scale a row
int4       a scale and a middle for every 32 values of a row; activations stay bfloat16
fp8        e4m3, one scale a row; the rows of x are rounded to e4m3 on the way in
           (Micikevicius et al., "FP8 formats for deep learning", 2022, section 3)
ternary    two bits and one scale a matrix: :mod:`vla_ros.engine.layers.ternary`
prepacked  all bits, as a CPU multiplies them: :mod:`vla_ros.engine.layers.prepacked`
=========  ============================================================================

Rows are quantized by themselves, so matrices may be stacked before or after. For inference: a
product has no gradient.

The kernels are torch's own, by names that begin with ``_`` and promise nothing, or on a GPU
Triton's where these are faster. So each is tried once, when the first matrix of its kind is made
ready, and held to the product of the same numbers in bfloat16: what fails is said in one line, and
the bfloat16 product runs instead. So fp8 says the same on every machine, up to the order of sums:
where a device has no fp8 product (compute capability below 8.9) it saves memory, not time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F

from vla_ros.engine.layers.devices import (
    first_that_runs,
    on_device,
    triton_may_run,
)
from vla_ros.engine.layers.prepacked import (
    Prepacked,
    can_prepack,
    few_rows,
    one_row,
    with_rows,
)
from vla_ros.engine.layers.ternary import Ternary
from vla_ros.engine.layers.tiles import Tile
from vla_ros.engine.layers.tuner import Tuned, stopwatch


def rounded(value: int, multiple: int) -> int:
    """The next multiple."""
    return -(-value // multiple) * multiple


def with_columns(x: torch.Tensor, count: int) -> torch.Tensor:
    """x [M, K] -> [M, ``count``], zeros behind; x itself where it has as many."""
    missing = count - x.shape[1]
    return F.pad(x, (0, missing)) if missing else x


GROUP = 32  # of int4
FEW = 8  # rows of x up to which the int8 kernel is faster than tiles that are made bfloat16
_TOLERANCE = 0.02  # of the result's norm: several roundings to bfloat16
_TIMED = 4096  # rows and columns of the matrix that int8's kernels are timed on
_MANY_ROWS = 288  # of a prompt of OpenVLA's
INT8_TILES = (Tile(64, 128, 64), Tile(128, 128, 64, warps=8))
INT4_TILES = (Tile(16, 32, 128, stages=4), Tile(64, 64, 64))  # for few rows, for many


@lru_cache
def int8_rows(device: torch.device) -> int:
    """Rows of x up to which torch's int8 kernel is taken; 0: never."""
    if device.type == "cpu":
        return FEW
    ways = {"torch's int8 product": lambda: _int8_kernel(device)}
    return first_that_runs("int8", ways, "bfloat16 on the way")[1] or 0


def _int8_kernel(device: torch.device) -> int:
    """The most rows, of 1, 2, 4 and 8, up to which it is faster. Raises where it is wrong, or not
    even for one."""
    with on_device(device), torch.inference_mode():
        values, scale = _codes(48, 96, 256, device).sub(128).to(torch.int8), _scales(48, device)
        x = _inputs(3, 96, device)
        _same(
            torch._weight_int8pack_mm(x, values, scale),
            F.linear(x.float(), values.float()) * scale.float(),
        )
        values = torch.zeros(_TIMED, _TIMED, dtype=torch.int8, device=device)
        scale = _scales(_TIMED, device)
        most, seconds = 0, stopwatch(device)
        for count in (1, 2, 4, FEW):
            x = _inputs(count, _TIMED, device)
            took = seconds(lambda: torch._weight_int8pack_mm(x, values, scale))  # noqa: B023
            other = seconds(lambda: F.linear(x, values.to(x.dtype)).mul_(scale))  # noqa: B023
            if took > other:
                break
            most = count
    if not most:
        raise RuntimeError("it is slower")
    return most


@lru_cache
def int8_tile(device: torch.device) -> Any:
    """The :class:`~vla_ros.engine.layers.tiles.Tile` in which Triton multiplies many rows with int8
    that becomes bfloat16 in its registers; None where that is not faster than to make all of the
    matrix bfloat16 first."""
    if device.type != "cuda":
        return None
    ways = {"Triton's kernel": lambda: _int8_tile(device)}
    return first_that_runs("int8, many rows", ways, "bfloat16 on the way")[1]


def _int8_tile(device: torch.device) -> Tile:
    """The fastest for the rows of a prompt. Raises where it is wrong, or not even as fast."""
    from vla_ros.engine.layers.kernels.gemm_triton import product

    with on_device(device), torch.inference_mode():
        values, scale = _codes(48, 96, 256, device).sub(128).to(torch.int8), _scales(48, device)
        x, wide = _inputs(20, 96, device), _inputs(_MANY_ROWS, _TIMED, device)
        big, steps = (
            torch.zeros(_TIMED, _TIMED, dtype=torch.int8, device=device),
            _scales(_TIMED, device),
        )
        seconds = stopwatch(device)
        best, taken = seconds(lambda: widened(wide, big).mul_(steps)), None
        for way in INT8_TILES:
            exact = F.linear(x.float(), values.float()) * scale.float()
            _same(product(x, values, None, way, gate=scale), exact)
            took = seconds(lambda: product(wide, big, None, way, gate=steps))  # noqa: B023
            if took < best:
                best, taken = took, way
    if taken is None:
        raise RuntimeError("it is slower")
    return taken


@lru_cache
def multiplies_integers(device: torch.device) -> bool:
    """Whether int8 is multiplied as integers: by oneDNN, on a CPU with VNNI. Without, the inputs
    would have seven bits (of eight, two products overflow the 16 bits of their sum)."""
    if device.type != "cpu" or not torch.cpu._is_vnni_supported():
        return False
    ways = {"oneDNN's product of integers": _integers}
    return bool(first_that_runs("int8", ways, "bfloat16 on the way")[1])


def _integers() -> bool:
    """Raises where it is wrong. Once more rows than one tile has, and a width that is no multiple
    of anything."""
    cpu = torch.device("cpu")
    for width in (96, 45):
        values, scale = _codes(48, width, 256, cpu).sub(128).to(torch.int8), _scales(48, cpu)
        packed = IntegerProduct.of(values, scale)
        if not torch.equal(packed.codes(), values):
            raise RuntimeError("it does not give its codes back")
        for count in (1, 20):
            x = _inputs(count, width, cpu)
            _same(packed.times(x), F.linear(x.float(), values.float()) * scale.float())
    return True


@lru_cache
def int4_on_cuda(device: torch.device) -> bool:
    """Whether tinygemm runs there."""
    ways = {"tinygemm": lambda: _tinygemm(device)}
    return bool(first_that_runs("int4", ways, "bfloat16 on the way")[1])


def _tinygemm(device: torch.device) -> bool:
    with on_device(device), torch.inference_mode():
        for width in (GROUP, 2 * GROUP, 4 * GROUP, 3 * GROUP):  # every order of tiles
            codes = _codes(48, width, 16, device).to(torch.int32)
            groups = width // GROUP
            steps = _scales(groups * 48, device).view(groups, 48)
            scale = torch.stack((steps, -steps), -1).contiguous()
            exact = (codes - 8).view(48, groups, GROUP) * steps.t()[..., None].float()
            exact = (exact - steps.t()[..., None].float()).flatten(1)
            for count in (1, 20):
                x = _inputs(count, width, device)
                out = int4_product(x, int4_packed(codes), scale)
                _same(out, F.linear(x.float(), exact))
    return True


@lru_cache
def int4_tiles(device: torch.device) -> tuple[Tile, Tile] | None:
    """The ways in which Triton multiplies few and many rows with int4; None where tinygemm is
    faster for a prompt and six tokens."""
    if device.type != "cuda":
        return None
    ways = {"Triton's kernel": lambda: _int4_tiles(device)}
    return first_that_runs("int4", ways, "tinygemm")[1]


def _int4_tiles(device: torch.device) -> tuple[Tile, Tile]:
    """Raises where they are wrong, or slower."""
    from vla_ros.engine.layers.kernels.int4_triton import product

    with on_device(device), torch.inference_mode():
        small = Int4.of(_inputs(48, 96, device))
        big = Int4.of(_inputs(_TIMED, _TIMED, device))
        few, many = _inputs(1, _TIMED, device), _inputs(_MANY_ROWS, _TIMED, device)
        for way in INT4_TILES:
            x = _inputs(20, 96, device)
            _same(product(x, small.values, small.scale, GROUP, way), F.linear(x, small.whole()))
        packed = int4_packed(big.unpacked()) if int4_on_cuda(device) else None
        seconds, spent = stopwatch(device), [0.0, 0.0]
        for x, way, times in ((few, INT4_TILES[0], 6), (many, INT4_TILES[1], 1)):
            own = seconds(lambda: product(x, big.values, big.scale, GROUP, way))  # noqa: B023
            if packed is None:
                continue
            other = seconds(lambda: int4_product(x, packed, big.scale))  # noqa: B023
            spent = [spent[0] + times * own, spent[1] + times * other]
    if spent[0] > spent[1]:
        raise RuntimeError("it is slower")
    return INT4_TILES


def int4_packed(codes: torch.Tensor) -> torch.Tensor:
    """0..15 int32 [N, K] in the order of the device's kernel. N a multiple of 16, K of 32."""
    if codes.device.type == "cpu":
        return torch._convert_weight_to_int4pack_for_cpu(codes, 2)
    return tinygemm_packed(codes)


def tinygemm_packed(codes: torch.Tensor) -> torch.Tensor:
    """The same for tinygemm, N a multiple of 8."""
    pairs = (codes[:, 0::2] << 4 | codes[:, 1::2]).to(torch.uint8)  # here the even one is high
    return torch._convert_weight_to_int4pack(pairs.contiguous(), _inner_tiles(codes.shape[1]))


def _inner_tiles(width: int) -> int:
    """Tiles of 16 columns that lie behind each other: the most that divide K."""
    return next(tiles for tiles in (8, 4, 2) if width % (16 * tiles) == 0)


def int4_product(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """x bfloat16 [M, K], :func:`int4_packed` [N, K], ``scale`` [K / 32, N, 2] -> [M, N]."""
    if x.device.type == "cpu":
        return torch._weight_int4pack_mm_for_cpu(x, packed, GROUP, scale)
    return torch._weight_int4pack_mm(x, packed, GROUP, scale)


@lru_cache
def fp8_on_cuda(device: torch.device) -> bool:
    """Whether a GPU has fp8 products. An older one is not tried, and nothing is said of it."""
    if torch.cuda.get_device_capability(device) < (8, 9):
        return False
    ways = {"torch's fp8 product": lambda: _scaled_mm(device)}
    return bool(first_that_runs("fp8", ways, "bfloat16 on the way")[1])


def _scaled_mm(device: torch.device) -> bool:
    with on_device(device), torch.inference_mode():
        values = _inputs(48, 96, device).to(torch.float8_e4m3fn)
        scale = _scales(48, device).float()
        for count in (1, 7, 100):
            rows = _inputs(count, 96, device).to(torch.float8_e4m3fn)
            factor = _scales(count, device).float()
            exact = F.linear(rows.float(), values.float()) * factor[:, None] * scale
            _same(fp8_product(rows, values, factor, scale), exact)
    return True


Round = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@lru_cache
def fp8_rounding(device: torch.device) -> Round:
    """What rounds rows to e4m3 there: one kernel, or torch's eight, which say the same bits."""
    if not triton_may_run(device):
        return rounded_rows

    def kernel() -> Round:
        from vla_ros.engine.layers.kernels.fp8_triton import rounded_rows as made

        with on_device(device), torch.inference_mode():
            for width in (45, 96, 4096):
                x = torch.cat((_inputs(3, width, device), _inputs(1, width, device) * 1e-4))
                for one, other in zip(made(x), rounded_rows(x), strict=True):
                    if not torch.equal(one.view(torch.uint8), other.view(torch.uint8)):
                        raise RuntimeError("it rounds otherwise")
        return made

    return first_that_runs("fp8 rows", {"Triton's kernel": kernel}, "torch")[1] or rounded_rows


def fp8_product(
    rows: torch.Tensor, values: torch.Tensor, factor: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """e4m3 [M, K] and [N, K], float32 [M] and [N] -> bfloat16 [M, N]; sums in float32.

    Hopper's faster sums (``use_fast_accum``) keep 14 bits and are left off: a pass of few rows is
    bound by the weight's bytes, and other devices would say something else.
    """
    return torch._scaled_mm(
        rows, values.t(), scale_a=factor[:, None], scale_b=scale[None], out_dtype=torch.bfloat16
    )


def _codes(rows: int, width: int, many: int, device: torch.device) -> torch.Tensor:
    """Integers from 0 to ``many`` - 1, float32 [rows, width], all of them and in no order."""
    return (torch.arange(rows * width, device=device) * 7919 % many).view(rows, width).float()


def _inputs(rows: int, width: int, device: torch.device) -> torch.Tensor:
    """bfloat16 [rows, width] in [-1, 1)."""
    return (_codes(rows, width, 251, device) / 125.5 - 1).bfloat16()


def _scales(count: int, device: torch.device) -> torch.Tensor:
    """bfloat16 [count], all different for some."""
    return (torch.arange(count, device=device) % 13 + 1).bfloat16() / 16


def _same(found: torch.Tensor, exact: torch.Tensor) -> None:
    off = float((found.float() - exact).norm() / exact.norm())
    if not off <= _TOLERANCE:
        raise RuntimeError(f"its result is off by {off:.3g}")


_COLUMNS = 32  # the CPU's kernel does not fail for another width, it gives other numbers
_TILE = 512  # rows that are made wider at a time on a CPU: 4096 wide, 4 or 8 MB of its cache
_MANY = 4  # rows of x from which tiles in float32 are faster than torch's own bfloat16 there

Widen = Callable[[torch.Tensor], torch.Tensor]  # makes it bfloat16


@dataclass(frozen=True, slots=True, eq=False)
class IntegerProduct:
    """Int8 weights in the order that oneDNN multiplies integers in; ``values`` are opaque to
    everything else, ``scale`` float32 and ``zero`` int64 [N].

    The rows of x are rounded to 1 ... 255, their middle 128, by the largest of each. The sums are
    integers, so a row's result does not depend on what stands beside it.
    """

    values: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor
    blocks: Any = None  # see for_one_row

    @staticmethod
    def of(values: torch.Tensor, scale: torch.Tensor) -> IntegerProduct:
        """int8 [N, K] and the scale of each row [N]."""
        packed = torch.ops.onednn.qlinear_prepack(values.contiguous(), None)
        return IntegerProduct(packed, scale.float(), torch.zeros(len(scale), dtype=torch.int64))

    def codes(self) -> torch.Tensor:
        """int8 [N, K] again."""
        return self.values.to_dense().t().contiguous()

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """x bfloat16 [M, K] -> [M, N]."""
        count = len(x)
        functions = one_row() if self.blocks is not None else None
        if functions is not None and count <= functions.MOST:
            rows = functions.as_floats(x)
            found = functions.of_int8_rows(self.blocks, self.scale.numpy(), rows)
            return torch.from_numpy(found).to(x.dtype)
        if count > _CACHED:  # what is made on the way stays in the cache
            out = x.new_empty(count, len(self.scale))
            for first in range(0, count, _CACHED):
                out[first : first + _CACHED] = self._times(x[first : first + _CACHED])
            return out
        return self._times(with_rows(x, max(count, few_rows())))[:count]

    def _times(self, x: torch.Tensor) -> torch.Tensor:
        exact = x.float()
        largest = exact.abs().amax(1, keepdim=True).clamp_min_(1e-30)
        codes = torch.addcmul(_HALF_ABOVE, exact, 127 / largest).to(torch.uint8)  # rounds down
        out = torch.ops.onednn.qlinear_pointwise(
            codes, 1 / 127, 128, self.values, self.scale, self.zero,
            None, 1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        return out.mul_(largest).to(x.dtype)


_CACHED = 256  # rows: 2,048 of 3,072 columns take 32 ms so, 54 at once
_HALF_ABOVE = torch.full((1, 1), 128.5)


@dataclass(frozen=True, slots=True, eq=False)
class Int8:
    """``values`` int8 [N, K], ``scale`` bfloat16 [N]: w = values * scale.

    ``width``: K without zeros behind it, 0 where there are none. ``few``: rows of x up to which
    torch's kernel for bfloat16 x is taken. ``packed`` holds the values instead of ``values`` where
    integers are multiplied. Both as :meth:`ready` found.
    """

    values: torch.Tensor
    scale: torch.Tensor
    width: int = 0
    few: int = 0
    packed: IntegerProduct | None = None

    def __len__(self) -> int:
        return len(self.scale)

    @property
    def shape(self) -> tuple[int, int]:
        """N, K."""
        return len(self.scale), self.width or self.values.shape[1]

    @property
    def parameters(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        return max(self.values.nbytes, self.parameters) + self.scale.nbytes

    @staticmethod
    def of(weight: torch.Tensor) -> Int8:
        """Round to the nearest; the scale is rounded first, so that it fits its values."""
        exact = weight.float()
        scale = (exact.abs().amax(1) / 127).clamp_min(1e-30).bfloat16()
        values = (exact / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
        return Int8(values, scale)

    @staticmethod
    def stacked(parts: Sequence[Int8]) -> Int8:
        """One matrix of several, on top of each other."""
        return Int8(torch.cat([p.values for p in parts]), torch.cat([p.scale for p in parts]))

    def rows(self, start: int, stop: int) -> Int8:
        scale = self.scale[start:stop]
        if self.packed is not None:
            part = Int8(self.packed.codes()[start:stop], scale).ready()
            return part if self.packed.blocks is None else for_one_row(part)  # type: ignore[return-value]
        return replace(self, values=self.values[start:stop], scale=scale)

    def whole(self) -> torch.Tensor:
        """The matrix again, bfloat16 [N, K]."""
        codes = self.values if self.packed is None else self.packed.codes()
        return codes[:, : self.shape[1]].bfloat16() * self.scale[:, None]

    def ready(self) -> Int8:
        """As the product wants it."""
        width, device = self.shape[1], self.values.device
        if multiplies_integers(device):
            packed = IntegerProduct.of(self.values, self.scale)
            return Int8(self.values[:0], self.scale, width, packed=packed)
        values = with_columns(self.values, rounded(width, _COLUMNS)).contiguous()
        return Int8(values, self.scale, width, int8_rows(device))

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """x bfloat16 [M, K] -> [M, N]; the matrix must be :meth:`ready`."""
        if self.packed is not None:
            return self.packed.times(x)
        x = with_columns(x, self.values.shape[1])
        if len(x) <= self.few:
            return torch._weight_int8pack_mm(x.contiguous(), self.values, self.scale)
        if (way := int8_tile(x.device)) is not None:
            from vla_ros.engine.layers.kernels.gemm_triton import product

            return product(x.contiguous(), self.values, None, way, gate=self.scale)
        return widened(x, self.values).mul_(self.scale)


@lru_cache
def wide_type(device: torch.device) -> torch.dtype:
    """What products of many bfloat16 rows are made in there: float32 on a CPU without instructions
    for bfloat16, where torch takes 5 to 7 times as long for 89 rows (AVX2, one thread). A rule and
    no timing, so that every start says the same bits."""
    if device.type != "cpu" or can_prepack(device, torch.bfloat16):
        return torch.bfloat16
    return torch.float32


def widened(
    x: torch.Tensor, values: torch.Tensor, widen: Widen = torch.Tensor.bfloat16
) -> torch.Tensor:
    """x bfloat16 [M, K] times ``values`` [N, K] of any type that bfloat16 holds -> [M, N].

    On a CPU tiles of the matrix are made :func:`wide_type` in the processor's cache; on a GPU all
    of it is made bfloat16.
    """
    if x.device.type != "cpu":
        return F.linear(x, widen(values))
    out, wide = x.new_empty(len(x), len(values)), wide_type(x.device)
    x = x.to(wide)
    for begin in range(0, len(values), _TILE):
        tile = widen(values[begin : begin + _TILE]).to(wide)
        out[:, begin : begin + _TILE] = F.linear(x, tile)
    return out


_ROWS = 16  # what the kernels want N to be a multiple of (CUDA's: 8)
_MIDDLE = 0x88  # two values of 8, which are 0


@dataclass(frozen=True, slots=True, eq=False)
class Int4:
    """``values`` uint8 [N, K / 2], two columns a byte, the even one low; ``scale`` bfloat16
    [K / 32, N, 2]: of every group its scale and its middle, w = (value - 8) * scale + middle.

    Stored so on every machine, K with zeros behind it up to a multiple of 32; ``packed`` is a
    kernel's own order. ``width``, ``height``: K and N without what was put behind, 0 for all.
    """

    values: torch.Tensor
    scale: torch.Tensor
    packed: torch.Tensor | None = None
    width: int = 0
    height: int = 0

    def __len__(self) -> int:
        return self.height or self.scale.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """N, K."""
        return len(self), self.width or len(self.scale) * GROUP

    @property
    def parameters(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        packed = 0 if self.packed is None else self.packed.nbytes
        return self.values.nbytes + self.scale.nbytes + packed

    @staticmethod
    def of(weight: torch.Tensor) -> Int4:
        """Sixteen even steps from the least to the most of each group."""
        count, width = weight.shape
        exact = with_columns(weight.float(), rounded(width, GROUP))
        groups = exact.view(count, -1, GROUP)
        low, high = groups.amin(-1), groups.amax(-1)
        step = ((high - low) / 15).clamp_min(1e-30).bfloat16()
        middle = (low + 8 * step.float()).bfloat16()
        off = (groups - middle.float()[..., None]) / step.float()[..., None]
        values = (off.round() + 8).clamp(0, 15).to(torch.uint8).flatten(1)
        scale = torch.stack((step, middle), -1).transpose(0, 1).contiguous()
        return Int4(values[:, 0::2] | values[:, 1::2] << 4, scale, None, width)

    @staticmethod
    def stacked(parts: Sequence[Int4]) -> Int4:
        """One matrix of several, on top of each other."""
        values, scale = [p.values for p in parts], [p.scale for p in parts]
        return Int4(torch.cat(values), torch.cat(scale, 1), None, parts[0].width)

    def rows(self, start: int, stop: int) -> Int4:
        part = self.scale[:, start:stop].contiguous()
        return replace(self, values=self.values[start:stop], scale=part)

    def unpacked(self) -> torch.Tensor:
        """0..15 as int32 [N, K], with what was put behind K."""
        pairs = torch.stack((self.values & 15, self.values >> 4), -1)
        return pairs.flatten(1).to(torch.int32)

    def whole(self) -> torch.Tensor:
        """The matrix again, bfloat16 [N, K]; of one that is not packed."""
        count, width = self.shape
        step, middle = (part.t()[..., None].float() for part in self.scale.unbind(-1))
        groups = (self.unpacked() - 8).view(len(self.values), -1, GROUP)
        return (groups * step + middle).flatten(1)[:count, :width].bfloat16()

    def ready(self) -> Int4:
        """As the product wants it; the stored form is let go where a kernel takes another."""
        device = self.values.device
        if int4_tiles(device) is not None or (self.values.is_cuda and not int4_on_cuda(device)):
            return self
        count, width = self.shape
        missing = rounded(count, _ROWS) - count
        values = F.pad(self.values, (0, 0, 0, missing), value=_MIDDLE) if missing else self.values
        scale = with_rows(self.scale.transpose(0, 1), count + missing).transpose(0, 1).contiguous()
        packed = int4_packed(replace(self, values=values).unpacked())
        return Int4(self.values[:0], scale, packed, width, count)

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """x bfloat16 [M, K] -> [M, N]; the matrix must be :meth:`ready`."""
        tiles = int4_tiles(x.device)
        if tiles is not None:
            from vla_ros.engine.layers.kernels.int4_triton import product

            way = tiles[len(x) > tiles[0].rows]
            x = with_columns(x, len(self.scale) * GROUP).contiguous()
            return product(x, self.values, self.scale, GROUP, way)[:, : len(self)]
        if self.packed is None:  # a GPU without the kernel: it costs time, and saves memory
            return F.linear(x, self.whole())
        x = with_columns(x, len(self.scale) * GROUP).contiguous()
        return int4_product(x, self.packed, self.scale)[:, : len(self)]


LARGEST = 448.0  # of e4m3
_MULTIPLE = 16
_PLACES = -0x7810  # 0x87F0 as int16: the sign, four bits of exponent, three of mantissa
_FURTHER = 2.0**120


@dataclass(frozen=True, slots=True, eq=False)
class Fp8:
    """``values`` float8_e4m3fn [N, K], ``scale`` float32 [N]: w = values * scale.

    ``width``, ``height``: K and N without zeros behind them, 0 for all. ``fast``: a GPU's products.
    """

    values: torch.Tensor
    scale: torch.Tensor
    width: int = 0
    height: int = 0
    fast: bool = False

    def __len__(self) -> int:
        return self.height or len(self.values)

    @property
    def shape(self) -> tuple[int, int]:
        """N, K."""
        return len(self), self.width or self.values.shape[1]

    @property
    def parameters(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scale.nbytes

    @staticmethod
    def of(weight: torch.Tensor) -> Fp8:
        """The largest value of a row becomes 448."""
        return Fp8(*rounded_rows(weight))

    @staticmethod
    def stacked(parts: Sequence[Fp8]) -> Fp8:
        """One matrix of several, on top of each other."""
        bytes_ = torch.cat([p.values.view(torch.uint8) for p in parts])
        return Fp8(bytes_.view(torch.float8_e4m3fn), torch.cat([p.scale for p in parts]))

    def rows(self, start: int, stop: int) -> Fp8:
        part = replace(self, values=self.values[start:stop], scale=self.scale[start:stop], height=0)
        return part.ready() if self.fast else part

    def whole(self) -> torch.Tensor:
        """The matrix again, bfloat16 [N, K]."""
        count, width = self.shape
        exact = self.values.float() * self.scale[:, None]
        return exact[:count, :width].bfloat16()

    def ready(self) -> Fp8:
        """As the product wants it."""
        on_gpu = self.values.is_cuda and fp8_on_cuda(self.values.device)
        return self.padded() if on_gpu else self

    def padded(self) -> Fp8:
        """As a GPU's product wants it."""
        count, width = self.shape
        bytes_ = self.values.view(torch.uint8)[:count, :width]  # what pads knows no fp8; 0 is 0
        bytes_ = with_columns(bytes_, rounded(width, _MULTIPLE))
        bytes_ = with_rows(bytes_, rounded(count, _MULTIPLE)).contiguous()
        scale = with_rows(self.scale[:count], len(bytes_))
        return Fp8(bytes_.view(torch.float8_e4m3fn), scale, width, count, fast=True)

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """x bfloat16 [M, K] -> [M, N]; on a GPU the matrix must be :meth:`ready`."""
        x = with_columns(x, self.values.shape[1])
        if self.fast:
            rows, factor = fp8_rounding(x.device)(x)
            return fp8_product(rows, self.values, factor, self.scale)[:, : len(self)]
        rows, factor = rounded_rows(x)
        out = widened(as_bfloat16(rows), self.values, as_bfloat16)
        return (out.float() * factor[:, None] * self.scale).to(x.dtype)


def rounded_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] -> e4m3 [M, K] and what to multiply each row with, float32 [M]."""
    exact = x.float()
    factor = (exact.abs().amax(1) / LARGEST).clamp_min(1e-30)
    small = (exact / factor[:, None]).clamp(-LARGEST, LARGEST)
    return small.to(torch.float8_e4m3fn), factor


def as_bfloat16(values: torch.Tensor) -> torch.Tensor:
    """e4m3 [...] -> the same numbers. Sign, exponent and mantissa lie alike in both, four bits
    further up, and the exponents count from -7 and -127: torch's own conversion on a CPU goes value
    by value and takes ten times as long."""
    if values.device.type != "cpu":
        return values.bfloat16()
    bits = (values.view(torch.int8).to(torch.int16) << 4) & _PLACES
    return bits.view(torch.bfloat16) * _FURTHER


def for_one_row(weight: Weight) -> Weight:
    """The same weight, whose memory can be read as ``kernels/one_row_numba.py`` does it (its
    ``blocks``) where that is possible: for who has passes of one row on one core. (To import Numba
    takes half a second, and to compile the first time some.)"""
    functions = one_row()
    if functions is None:
        return weight
    if isinstance(weight, Prepacked):
        return replace(weight, blocks=functions.blocks(weight.values, weight.whole()))
    if isinstance(weight, Int8) and (packed := weight.packed) is not None and functions.HAS_VNNI:
        blocks = functions.blocks(packed.values, packed.codes())
        return replace(weight, packed=replace(packed, blocks=blocks))
    return weight


def prepack_linear(
    module: torch.nn.Module, tensors: dict[str, torch.Tensor], prefix: str = ""
) -> dict[str, Prepacked]:
    """Give a CPU all matrices of a module's maps in its own order: they leave ``tensors``, where
    their names begin with ``prefix``, and are returned by name. Low-bit ones stay as they are."""
    found: dict[str, Prepacked] = {}
    for path, own in list(module.named_modules()):
        if isinstance(own, torch.nn.Linear):
            name = f"{prefix}{path}.weight"
            found[name] = Prepacked.of(tensors.pop(name))
            place, _, last = path.rpartition(".")
            setattr(module.get_submodule(place), last, LowBitLinear(found[name], own.bias))
    return found


__all__ = ["GROUP", "Fp8", "Int4", "Int8", "LowBit", "Stored", "Weight"]

#: What a directory can hold, by the name of its format.
Stored = Int8 | Int4 | Fp8
KINDS: dict[str, type[Int8] | type[Int4] | type[Fp8]] = {"int8": Int8, "int4": Int4, "fp8": Fp8}

LowBit = Stored | Ternary
Weight = torch.Tensor | Prepacked | Tuned | LowBit


def quantize(weight: torch.Tensor, kind: str) -> Stored:
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


def stacked(parts: Sequence[LowBit]) -> LowBit:
    """One matrix of several of one kind."""
    first = parts[0]
    assert all(type(part) is type(first) for part in parts)
    made: LowBit = type(first).stacked(parts)  # type: ignore[arg-type]
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
        part = Prepacked.of(weight.whole()[rows.start : rows.stop])
        return part if weight.blocks is None else for_one_row(part)
    return weight[rows.start : rows.stop]


def plain(weight: Weight) -> torch.Tensor:
    """The matrix [N, K] as a tensor."""
    return weight if isinstance(weight, torch.Tensor) else weight.whole()


def linear(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., K] -> [..., N], whatever the weight is."""
    if isinstance(weight, Prepacked):
        return weight.times(x, bias)
    if isinstance(weight, torch.Tensor) and not _is_slow(x, weight):
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    if isinstance(weight, Tuned):
        out = weight.times(rows, bias)
    else:
        out = widened(rows, weight) if isinstance(weight, torch.Tensor) else weight.times(rows)
        if bias is not None:
            out = out + bias
    return out.reshape(*x.shape[:-1], len(weight))


def _is_slow(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether torch's own product of a plain matrix is: never where a gradient goes through."""
    return (
        weight.dtype == torch.bfloat16
        and x.numel() >= _MANY * x.shape[-1]
        and wide_type(x.device) != torch.bfloat16
        and not torch.is_grad_enabled()
    )


class LowBitLinear(torch.nn.Module):
    """In the place of ``nn.Linear``, also of prepacked weights. Inference only."""

    def __init__(self, weight: LowBit | Prepacked, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)


def linear_gelu(made: Any, x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """GELU of a map with a weight and a bias, such as ``nn.Linear``: within the product where the
    weight is prepacked, and so before the sums are rounded."""
    if isinstance(made.weight, Prepacked):
        return made.weight.times(x, made.bias, approximate)
    return F.gelu(made(x), approximate=approximate)


def replace_linear(
    module: torch.nn.Module, few: Mapping[str, LowBit], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Put the matrices ``X.weight`` in the place of the maps X of a module, with the biases that
    are among ``tensors``."""
    for name, matrix in few.items():
        path = name.removesuffix(".weight")
        place, _, own = path.rpartition(".")
        made = LowBitLinear(matrix.ready(), tensors.get(f"{path}.bias"))
        setattr(module.get_submodule(place), own, made)
