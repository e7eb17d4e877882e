"""The ways in which Triton's kernels may multiply x [M, K] with a weight [N, K], and their check.

A decode pass has few rows: it reads every weight once and is done when the last byte is there. A
packed pass has hundreds, and what counts is how evenly its tiles fill the device. Which way is the
fastest depends on M, N, K and the device, and nobody can say it beforehand: see
:mod:`vla_ros.engine.gemm.tuner`, which times them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

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
