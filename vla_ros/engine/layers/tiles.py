"""How a product is laid out over a GPU's programs."""

from __future__ import annotations

from dataclasses import dataclass


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
