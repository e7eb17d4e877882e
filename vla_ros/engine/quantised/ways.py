"""The kernels of torch that multiply with few bits, and which of them run on a device.

Each is tried once, when the first matrix of its kind is made ready, and held to the product of the
same numbers in bfloat16: what fails is said in one line, and that product runs instead. torch
promises nobody these calls (they begin with ``_``).
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F

from vla_ros.engine.gemm.stopwatch import stopwatch
from vla_ros.engine.packed.devices import on_device
from vla_ros.engine.packed.probe import first_that_runs

GROUP = 32  # of int4
FEW = 8  # rows of x up to which the int8 kernel is faster than tiles that are made bfloat16
_TOLERANCE = 0.02  # of the result's norm: several roundings to bfloat16
_TIMED = 4096  # rows and columns of the matrix that int8's kernel is timed on


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
