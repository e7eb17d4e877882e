"""Tilings of a product over a GPU's programs, and which are worth a try for how many rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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

FEW = 16  # rows that fit one tile of a tensor core
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
    Tile(64, 128, 64, parts=2, stages=4),
    Tile(128, 64, 64, stages=4),
    Tile(128, 128, 64, warps=8),
    Tile(128, 128, 64, parts=2, warps=8),
    Tile(64, 256, 64, warps=8),
    Tile(128, 256, 64, warps=8),
)
_PAIRED_ONE = (
    Tile(16, 16, 128, stages=5),
    Tile(16, 32, 128, stages=4),
    Tile(16, 16, 256),
)
_PAIRED_FEW = (
    Tile(64, 16, 128, stages=4),
    Tile(64, 32, 64, stages=4),
    Tile(64, 32, 128),
    Tile(64, 64, 64),
)
_PAIRED_MANY = (
    Tile(64, 64, 64),
    Tile(128, 32, 64, warps=8, stages=4),
    Tile(128, 64, 64, warps=8),
)
INT8_TILES = (Tile(64, 128, 64), Tile(128, 128, 64, warps=8))  # for the many rows of a prompt
INT4_TILES = (Tile(16, 32, 128, stages=4), Tile(64, 64, 64))  # for few rows, for many
_ATTENTION = (
    Tile(16, 32, 0, stages=2),
    Tile(32, 32, 0, stages=2),
    Tile(64, 32, 0, warps=8, stages=2),
    Tile(64, 64, 0, warps=8, stages=2),
)


def ways(rows: int, dtype: torch.dtype) -> tuple[Way, ...]:
    """Tilings of a product of so many rows that are worth a try. In float32 there are no tensor
    cores to fill: there only the passes that wait for the weights."""
    if rows <= Gemv.MOST:
        return _ONE_TO_FOUR + (() if dtype == torch.float32 else _UP_TO_SIXTEEN)
    if dtype == torch.float32:
        return ()
    return _UP_TO_SIXTEEN if rows <= FEW else _MANY


def paired_ways(rows: int, dtype: torch.dtype) -> tuple[Way, ...]:
    """Tilings of a product whose results go together by twos, such as gate and up: a tile has so
    many columns of either, and K is not split, as the norm is over all of it."""
    if dtype == torch.float32:
        return ()
    if rows <= FEW:
        return _PAIRED_ONE
    return _PAIRED_FEW if rows <= 64 else _PAIRED_MANY


def sum_ways(rows: int, dtype: torch.dtype) -> tuple[Way, ...]:
    """Tilings of a product whose results are added to something."""
    return tuple(way for way in ways(max(rows, FEW), dtype) if isinstance(way, Tile))


def attention_ways(dtype: torch.dtype) -> tuple[Way, ...]:
    """Tilings of attention: ``rows`` queries (tokens times the heads that share K and V) by
    ``columns`` entries."""
    return () if dtype == torch.float32 else _ATTENTION
