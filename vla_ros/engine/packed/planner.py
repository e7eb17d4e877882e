"""Turns pack layouts into plans. Steady streams repeat a few layouts, so plans are cached."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby, pairwise

import torch

from vla_ros.engine.packed.pack import PackLayout, PackShape, Plan, TailToken
from vla_ros.engine.packed.ring import Ring

PLANS = 512  # remembered per ring
WORD = 64  # entries that a word of bits speaks of


class Planner:
    """Builds plans for one ring and remembers the last :data:`PLANS` of them."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        #: The plan of a layout. Raises ValueError when it does not fit the ring.
        self.plan = lru_cache(PLANS)(self._plan)

    @property
    def built(self) -> int:
        """Plans made since the start, or since they were forgotten."""
        return self.plan.cache_info().misses

    def forget(self) -> None:
        """Drop all plans: the ring has another shape."""
        self.plan.cache_clear()

    def _plan(self, layout: PackLayout) -> Plan:
        _check(layout, self._ring)
        tail, front = layout.tail, layout.prefill + layout.pad
        fresh = range(front)
        positions = [*fresh, *(t.index if t.position is None else t.position for t in tail)]
        slot = [layout.slot] * front + [t.slot for t in tail]
        index = [*fresh, *(t.index for t in tail)]
        rows = [r if r < layout.prefill else r + layout.pad for r in layout.rows]
        seen = [seen_by(token) for token in tail]
        words = max((-(-(each[1] - each[2]) // WORD) for each in seen if each[3]), default=1)
        shape = PackShape(
            prefill=front,
            tail=len(tail),
            rows=len(rows),
            width=max((count for _, count in _runs(tail)), default=0),
            words=words,
            causal=layout.causal,
        )
        sees = [n for *ends, bits in seen for n in (*ends, *_words(bits, words))]
        numbers = [*positions, *slot, *index, *rows, layout.prefill, *sees]
        return Plan.of(shape, torch.tensor(numbers, dtype=torch.long).to(self._ring.device))


def seen_by(token: TailToken) -> tuple[int, int, int, int]:
    """What a token sees of its slot: length, reach, base and bits, see :class:`Plan`."""
    if token.sees is None:
        return token.index + 1, token.index + 1, token.index + 1, 0
    own, length = set(token.sees), token.trunk
    while length in own:
        length += 1
    rest = [entry for entry in own if entry >= length]
    if not rest:
        return length, length, length, 0
    base = min(rest)
    return length, max(rest) + 1, base, sum(1 << (entry - base) for entry in rest)


def _words(bits: int, count: int) -> list[int]:
    """As so many signed integers of 64 bits, the lowest first."""
    parts = [bits >> (WORD * number) & (1 << WORD) - 1 for number in range(count)]
    return [part - (1 << WORD) if part >> (WORD - 1) else part for part in parts]


def _runs(tail: tuple[TailToken, ...]) -> list[tuple[int, int]]:
    """(slot, tokens) as they lie together."""
    return [(slot, len(list(group))) for slot, group in groupby(tail, key=lambda t: t.slot)]


def _check(layout: PackLayout, ring: Ring) -> None:
    tail = layout.tail
    entries = [t.index for t in tail] + [layout.prefill + layout.pad - 1]
    slots = [t.slot for t in tail] + ([layout.slot] if layout.prefill else [])
    if max(entries) >= ring.slot_length:
        raise ValueError(
            f"the pack needs {max(entries) + 1} entries, a slot has {ring.slot_length}"
        )
    if not slots or not 0 <= min(slots) <= max(slots) < ring.slots:
        raise ValueError(f"the pack uses slots {sorted(set(slots))}, the ring has {ring.slots}")
    front = layout.prefill + layout.pad
    if layout.prefill and any(t.slot == layout.slot and t.index < front for t in tail):
        raise ValueError("a tail token of the prefill's slot lies within the prefill")
    if len({(t.slot, t.index) for t in tail}) != len(tail):
        raise ValueError("two tail tokens write the same KV entry")
    if len(_runs(tail)) != len({t.slot for t in tail}):
        raise ValueError("the tail tokens of a slot do not lie together")
    for before, after in pairwise(tail):
        in_line = before.slot != after.slot or after.index == before.index + 1
        if not in_line and after.sees is None:
            raise ValueError("a tail token does not follow the one before it, and says not why")
