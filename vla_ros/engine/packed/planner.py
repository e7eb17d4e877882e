"""Turns pack layouts into plans. Steady streams repeat a few layouts, so plans are cached."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import torch

from vla_ros.engine.packed.pack import (
    PackLayout,
    PackShape,
    Plan,
    TailToken,
    Varlen,
    sequences,
)
from vla_ros.engine.packed.ring import Ring


class Planner:
    """Builds plans for one ring and remembers the last ``limit`` of them.

    A tail looks at the ring's entries up to its last one, rounded up to ``span_step``; None
    makes it look at whole slots (a CPU would have to copy a part of a slot first). Without
    ``host_slots`` no plan tells the host its slot: torch.compile would make code for each.
    """

    def __init__(
        self,
        ring: Ring,
        mask_dtype: torch.dtype,
        span_step: int | None,
        varlen: bool = False,
        host_slots: bool = True,
        limit: int = 512,
    ) -> None:
        self._varlen, self._host_slots = varlen, host_slots
        self._ring, self._limit, self._span_step = ring, limit, span_step
        self._mask_dtype = mask_dtype
        self._device = ring.keys[0].device
        self._plans: OrderedDict[PackLayout, Plan] = OrderedDict()
        self.built = 0

    def forget(self) -> None:
        """Drop all plans: the ring has another shape."""
        self._plans.clear()

    def plan(self, layout: PackLayout) -> Plan:
        """The plan of a layout, cached. Raises ValueError when it does not fit the ring."""
        cached = self._plans.get(layout)
        if cached is not None:
            self._plans.move_to_end(layout)
            return cached
        _check(layout, self._ring)
        plan = self._build(layout)
        found = sequences(layout) if self._varlen else None
        if found is not None:
            shape = replace(plan.shape, sequences=len(found))
            plan = replace(plan, shape=shape, varlen=self._sequences(found, plan.shape.span))
        self.built += 1
        self._plans[layout] = plan
        if len(self._plans) > self._limit:
            self._plans.popitem(last=False)
        return plan

    def _build(self, layout: PackLayout) -> Plan:
        tail, front = layout.tail, layout.prefill + layout.pad
        fresh = list(range(front))
        positions = fresh + [t.index if t.position is None else t.position for t in tail]
        slot = [layout.slot] * front + [t.slot for t in tail]
        index = fresh + [t.index for t in tail]
        rows = [r if r < layout.prefill else r + layout.pad for r in layout.rows]
        cells, width = _grid_cells(tail)
        span = self._span(tail)
        shape = PackShape(front, len(tail), width, len(rows), layout.causal, span)
        if not tail:
            plan = Plan.of(shape, self._long(positions + slot + index + rows), None)
            return self._with_slot(plan, layout)
        grid = [front] * (self._ring.slots * width)
        for number, cell in enumerate(cells):
            grid[cell] = front + number
        flat = self._long(positions + slot + index + rows + grid + cells)
        plan = Plan.of(shape, flat, self._mask(tail, cells, width, span))
        return self._with_slot(plan, layout) if front else plan

    def _with_slot(self, plan: Plan, layout: PackLayout) -> Plan:
        return replace(plan, front_slot=layout.slot) if self._host_slots else plan

    def _sequences(self, found: list[tuple[int, int, int]], span: int) -> Varlen:
        slots, queries, used = zip(*found, strict=True)
        starts = [sum(queries[:i]) for i in range(len(queries) + 1)]

        def ints(values: list[int] | tuple[int, ...]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32).to(self._device)

        longest_key = max(span, *used[:1])  # fixed by the pack's shape
        return Varlen(ints(starts), ints(used), ints(slots)[:, None], max(queries), longest_key)

    def _span(self, tail: tuple[TailToken, ...]) -> int:
        whole = self._ring.slot_length
        if not tail or self._span_step is None:
            return whole if tail else 0
        last = max(t.index for t in tail)
        return min((last // self._span_step + 1) * self._span_step, whole)

    def _mask(
        self, tail: tuple[TailToken, ...], cells: list[int], width: int, span: int
    ) -> torch.Tensor:
        mask = torch.zeros(self._ring.slots * width, span)
        for token, cell in zip(tail, cells, strict=True):
            mask[cell] = float("-inf")
            if token.sees is None:
                mask[cell, : token.index + 1] = 0.0
            else:
                mask[cell, list(token.sees)] = 0.0
        mask = mask.view(self._ring.slots, 1, width, span)
        return mask.to(self._device, self._mask_dtype)

    def _long(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long).to(self._device)


def _grid_cells(tail: tuple[TailToken, ...]) -> tuple[list[int], int]:
    """Cell slot * m + k for the k-th tail token of a slot, and m, the most any slot has."""
    per_slot: dict[int, int] = {}
    order = []
    for token in tail:
        order.append(per_slot.get(token.slot, 0))
        per_slot[token.slot] = order[-1] + 1
    width = max(per_slot.values(), default=0)
    return [t.slot * width + k for t, k in zip(tail, order, strict=True)], width


def _check(layout: PackLayout, ring: Ring) -> None:
    entries = [t.index for t in layout.tail] + [layout.prefill + layout.pad - 1]
    slots = [t.slot for t in layout.tail] + ([layout.slot] if layout.prefill else [])
    if max(entries) >= ring.slot_length:
        raise ValueError(
            f"the pack needs {max(entries) + 1} entries, a slot has {ring.slot_length}"
        )
    if not slots or not 0 <= min(slots) <= max(slots) < ring.slots:
        raise ValueError(f"the pack uses slots {sorted(set(slots))}, the ring has {ring.slots}")
    if layout.prefill and any(t.slot == layout.slot for t in layout.tail):
        raise ValueError("a prefill and tail tokens of the same slot cannot share a pack")
    if len({(t.slot, t.index) for t in layout.tail}) != len(layout.tail):
        raise ValueError("two tail tokens write the same KV entry")
