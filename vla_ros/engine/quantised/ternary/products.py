"""Int8 rows times packed ternary weights: every way gives the same integers, to the last one.

The sums are exact, whatever adds them up: of K products of at most 128 x 2 none is above 2 ** 24
for K up to 65536, so int32 and even float32 hold all of them. What differs is the time. On an x86
processor with VNNI, torch's int8 product takes half the time of one in bfloat16 and an eighth of
one in float32; a processor without it has no fast int8 product in torch, and float32 is used.

Weights go in as value + 1, as they are stored, and the sum of the row is subtracted after.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache, partial

import torch

from vla_ros.engine.packed.probe import first_that_runs
from vla_ros.engine.quantised.ternary.layout import PLANES, pack, plane, unpack, unpack_into

WIDEST = 1 << 16  # columns up to which float32 holds every sum
_TILE = 1024  # rows of the weight that are unpacked at a time: 2560 wide, 2.6 MB

#: rows int8 [M, 4 P], what to multiply each with float32 [M], packed uint8 [N, P], scale of each
#: weight's row float32 [N], dtype of the result -> [M, N]
Product = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor
]
#: int8 rows [M, K], codes 0, 1, 2 as uint8 [n, K] -> their product [M, n], as integers or floats
_Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def reference(
    rows: torch.Tensor,
    factor: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """What a :data:`Product` is, in int64 and float32. Slow."""
    weight = unpack(packed, PLANES * packed.shape[1]).long()
    sums = rows.cpu().long() @ weight.cpu().t()
    return (sums.to(rows.device).float() * factor[:, None] * scale).to(dtype)


def _tiled(
    multiply: _Multiply,
    rows: torch.Tensor,
    factor: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Unpack some rows of the weight, multiply, scale; in all, memory for one tile."""
    count, bytes_ = packed.shape
    out = torch.empty(len(rows), count, dtype=dtype, device=rows.device)
    codes = packed.new_empty(min(_TILE, count), PLANES * bytes_)
    sums, factors = rows.sum(1, dtype=torch.int32)[:, None], factor[:, None]
    for begin in range(0, count, _TILE):
        part = packed[begin : begin + _TILE]
        exact = multiply(rows, unpack_into(part, codes[: len(part)])) - sums
        out[:, begin : begin + _TILE] = (
            exact.float().mul_(factors).mul_(scale[begin : begin + _TILE])
        )
    return out


def _int_mm(rows: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return torch._int_mm(rows, codes.view(torch.int8).t())


def _float_mm(rows: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return rows.float() @ codes.float().t()


by_int8: Product = partial(_tiled, _int_mm)
by_float32: Product = partial(_tiled, _float_mm)


@lru_cache(8)
def choose_product(device: torch.device) -> Product:
    """The fastest on a device. A GPU's is tried once, and left out with one line of warning."""
    if device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
        found = first_that_runs("Ternary product", {"Triton's kernel": lambda: _triton(device)},
                                "torch in float32")[1]  # fmt: skip
        if found is not None:
            return found
    return by_int8 if device.type == "cpu" and torch.cpu._is_vnni_supported() else by_float32


def _triton(device: torch.device) -> Product:
    from vla_ros.engine.quantised.ternary.triton_kernel import product

    check_product(product, device)
    return product


def check_product(product: Product, device: torch.device) -> None:
    """Raises whatever the product raises, and ValueError where its integers are others."""
    random = torch.Generator().manual_seed(0)
    for count, rows, width in ((5, 24, 40), (65, 130, 288)):
        weight = torch.randint(-1, 2, (rows, width), generator=random, dtype=torch.int8)
        x = torch.randint(-128, 128, (count, PLANES * plane(width)), generator=random)
        x[:, width:] = 0
        given = (
            x.to(torch.int8).to(device),
            torch.ones(count, device=device),
            pack(weight).to(device),
            torch.ones(rows, device=device),
        )
        found, wanted = product(*given, torch.float32), reference(*given, torch.float32)
        if not torch.equal(found, wanted):
            raise ValueError(f"its result is off by {float((found - wanted).abs().max()):.2g}")
