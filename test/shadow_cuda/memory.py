"""Device memory as torch's caching allocator hands it out, page-locked memory, and graphs' pools.

The allocator counts and holds nothing: values are in tensors of the CPU. A graph's pool holds its
memory itself, since what it hands out a second time is overwritten by the first graph's replays.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

import torch

from shadow_cuda.journal import Journal
from shadow_cuda.order import Actor, Uses

SMALL, LARGE, ROUND = 1 << 20, 10 << 20, 512  # torch's c10/core/AllocatorConfig.h
_SMALL_SEGMENT, _SEGMENT, _STEP = 2 << 20, 20 << 20, 2 << 20


@dataclass(eq=False)
class Block:
    """Bytes of a segment from an address on, between its neighbours there."""

    at: int
    size: int
    place: tuple[str, bool]  # the stream, and whether it is of small segments
    before: Block | None = None
    behind: Block | None = None
    free: bool = False


@dataclass
class Allocator:
    """One device's: free blocks are kept by stream, split, joined and asked of the device last.
    ``in_use``, ``reserved`` and their ``peaks`` in bytes.

    Of free blocks the smallest that fits is taken, of equal ones the lowest address, as in torch:
    which one it is decides whether a later one still fits."""

    journal: Journal
    in_use: int = 0
    reserved: int = 0
    peaks: list[int] = field(default_factory=lambda: [0, 0])
    _free: dict[tuple[str, bool], list[tuple[int, int, Block]]] = field(default_factory=dict)
    _end: int = 0  # the address behind the last segment

    def take(self, size: int, stream: Actor) -> Block:
        size = max(-(-size // ROUND) * ROUND, ROUND)
        place = (stream.name, size <= SMALL)
        free = self._free.setdefault(place, [])
        at = bisect_left(free, (size, 0))
        if at < len(free):
            block = free.pop(at)[2]
            block.free = False
        else:
            block = self._segment(size, place)
        left = block.size - size
        if left >= ROUND if place[1] else left > SMALL:
            block.size = size
            rest = Block(block.at + size, left, place, block, block.behind)
            if rest.behind is not None:
                rest.behind.before = rest
            block.behind = rest
            self._keep(rest)
        self.in_use += block.size
        self.peaks[0] = max(self.peaks[0], self.in_use)
        return block

    def _segment(self, size: int, place: tuple[int, bool]) -> Block:
        """Asked of the device, which waits for all that it was given before."""
        self.journal.note("malloc")
        if place[1]:
            size = _SMALL_SEGMENT
        elif size < LARGE:
            size = _SEGMENT
        else:
            size = -(-size // _STEP) * _STEP
        self.reserved += size
        self.peaks[1] = max(self.peaks[1], self.reserved)
        self._end += size
        return Block(self._end - size, size, place)

    def give(self, block: Block) -> None:
        self.in_use -= block.size
        for other in (block.before, block.behind):
            if other is not None and other.free:
                self._free[block.place].remove((other.size, other.at, other))
                self._join(block, other)
        self._keep(block)

    @staticmethod
    def _join(block: Block, other: Block) -> None:
        block.size += other.size
        if other is block.before:
            block.at, block.before = other.at, other.before
            if block.before is not None:
                block.before.behind = block
        else:
            block.behind = other.behind
            if block.behind is not None:
                block.behind.before = block

    def _keep(self, block: Block) -> None:
        block.free = True
        insort(self._free.setdefault(block.place, []), (block.size, block.at, block))

    def empty(self) -> None:
        """Give whole segments that are free back to the device."""
        for blocks in self._free.values():
            for one in [b for b in blocks if b[2].before is None and b[2].behind is None]:
                blocks.remove(one)
                self.reserved -= one[0]


class Pool:
    """Memory of the graphs that share it: what is free is handed out again, to whichever graph."""

    def __init__(self) -> None:
        self._free: list[torch.Tensor] = []
        self.nbytes = 0

    def take(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Room for a tensor, the smallest that is free: the tensor there, and what is held."""
        sizes = zip(like.shape, like.stride(), strict=True)
        span = 1 + sum((size - 1) * stride for size, stride in sizes) if like.numel() else 0
        size = max(-(-span * like.element_size() // ROUND) * ROUND, ROUND)
        fits = [held for held in self._free if size <= held.numel() <= 4 * size]
        held = min(fits, key=torch.Tensor.numel, default=None)
        if held is None:
            held = torch.empty(size, dtype=torch.uint8)
            self.nbytes += size
        else:
            self._free = [other for other in self._free if other is not held]
        made = torch.empty(0, dtype=like.dtype)
        made.set_(held.untyped_storage(), 0, like.shape, like.stride())
        return made, held

    def give(self, held: torch.Tensor) -> None:
        self._free.append(held)


class Pinned:
    """Page-locked memory: what the device still reads is not handed out again."""

    def __init__(self, journal: Journal, host: Actor) -> None:
        self._journal, self._host = journal, host
        self._free: dict[int, list[Uses]] = {}
        self.uses: dict[int, Uses] = {}  # by the address of the storage

    def take(self, nbytes: int) -> tuple[int, Uses]:
        """The size that is handed out, a power of two, and what was done to it."""
        size = 1 << max(nbytes - 1, 1).bit_length()
        for uses in self._free.get(size, []):
            if not uses.unknown_to(self._host):
                self._free[size].remove(uses)
                return size, Uses()
        self._journal.note("host malloc")
        return size, Uses()

    def give(self, address: int, size: int) -> None:
        self._free.setdefault(size, []).append(self.uses.pop(address))
