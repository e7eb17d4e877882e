"""Turns pack layouts into plans. Steady streams repeat a few layouts, so plans are cached."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby, pairwise

import torch

from vla_ros.engine.packed.pack import PackLayout, PackShape, Plan, TailToken
from vla_ros.engine.packed.ring import Ring

PLANS = 512  # remembered per ring
SPAN = 32  # a tail looks at a multiple of this many ring entries, so that few shapes occur


def spread(first: int, last: int) -> tuple[int, ...]:
    """Of a tail's places first ... last so many that every rounding to :data:`SPAN` has come."""
    return (*range(first, last, SPAN), last) if last >= first else ()


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
        runs = [(layout.slot, front, front)] if front else []
        behind = tail_sequences(tail)
        branches = any(t.sees is not None for t in tail)
        span = max((seen for _, _, seen in behind), default=0)
        shape = PackShape(
            prefill=front,
            tail=len(tail),
            rows=len(rows),
            sequences=len(runs) + len(behind),
            width=max((queries for _, queries, _ in behind), default=0),
            span=self._ring.slot_length if branches else self._span(span),
            causal=layout.causal,
            tree=branches,
        )
        numbers = [n for run in (*runs, *behind) for n in run]
        device = self._ring.device
        flat = torch.tensor(positions + slot + index + rows + numbers, dtype=torch.long)
        tree = _tree(tail, shape.span).to(device) if shape.tree else None
        return Plan.of(shape, flat.to(device), tree)

    def _span(self, seen: int) -> int:
        return min(-(-seen // SPAN) * SPAN, self._ring.slot_length)


def tail_sequences(tail: tuple[TailToken, ...]) -> list[tuple[int, int, int]]:
    """(slot, queries, entries seen) of each slot's tokens."""
    out: list[tuple[int, int, int]] = []
    for slot, group in groupby(tail, key=lambda token: token.slot):
        tokens = list(group)
        out.append((slot, len(tokens), max(t.index for t in tokens) + 1))
    return out


def _tree(tail: tuple[TailToken, ...], span: int) -> torch.Tensor:
    seen = torch.zeros(len(tail), span, dtype=torch.bool)
    for row, token in enumerate(tail):
        if token.sees is None:
            seen[row, : token.index + 1] = True
        else:
            seen[row, : token.trunk] = True
            seen[row, list(token.sees)] = True
    return seen


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
    if len(tail_sequences(tail)) != len({t.slot for t in tail}):
        raise ValueError("the tail tokens of a slot do not lie together")
    for before, after in pairwise(tail):
        in_line = before.slot != after.slot or after.index == before.index + 1
        if not in_line and after.sees is None:
            raise ValueError("a tail token does not follow the one before it, and says not why")
