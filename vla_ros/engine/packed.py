"""The one primitive: a pack of tokens that goes through the decoder as one sequence.

A pack is a fresh *prefill* (its tokens attend to each other only) followed by a *tail*: single
tokens, draft chains or draft trees of any live requests. Tail tokens are laid out as a grid
[slots, m], so that their attention is one batched product of every slot's queries with that
slot's keys, a view of the ring: no gathering, no copies, static shapes, no host sync.

A :class:`Plan` depends on slots and lengths only, never on token values; steady streams repeat
a few plans, so they are built once and cached.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

import torch

from vla_ros.engine.ring import Ring


@dataclass(frozen=True, slots=True)
class TailToken:
    """One token behind the prefill: where its K/V goes and what it sees of its own slot.

    It sees entries 0 ... ``index`` unless ``sees`` names others (draft trees; then ``position``
    differs from ``index`` too).
    """

    slot: int
    index: int
    position: int | None = None
    sees: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class PackLayout:
    """What a pack looks like; two equal layouts share one plan.

    ``prefill`` tokens go to ``slot`` from entry 0 on, ``rows`` are the tokens whose logits are
    wanted. ``causal`` is False for parallel decoding, where the prefill sees all of itself.
    ``pad`` tokens at the prefill's end only round its length up: later tokens of the slot
    overwrite their entries before anything can see them.
    """

    rows: tuple[int, ...]
    prefill: int = 0
    slot: int = 0
    tail: tuple[TailToken, ...] = ()
    causal: bool = True
    pad: int = 0


@dataclass(frozen=True, slots=True)
class PackShape:
    """The part of a layout that fixes tensor shapes: what a captured CUDA graph belongs to."""

    prefill: int
    tail: int
    width: int
    rows: int
    causal: bool
    span: int = 0  # ring entries the tail looks at: up to its last one, rounded up
    sequences: int = 0  # of variable-length attention, 0 without


@dataclass(frozen=True, slots=True)
class Varlen:
    """A pack as sequences for variable-length attention: the prefill, then each slot's tail.

    int32: ``starts`` [N + 1] of the queries, ``used`` [N] entries each sequence looks at,
    ``pages`` [N, 1] its slot.
    """

    starts: torch.Tensor
    used: torch.Tensor
    pages: torch.Tensor
    longest_query: int
    longest_key: int

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.starts, self.used, self.pages


def sequences(layout: PackLayout) -> list[tuple[int, int, int]] | None:
    """(slot, queries, entries seen) of each sequence; None where a pack has trees in it.

    A slot's tail must lie together and see all before it.
    """
    out: list[tuple[int, int, int]] = []
    front = layout.prefill + layout.pad
    if front:
        out.append((layout.slot, front, front))
    for token in layout.tail:
        if token.sees is not None:
            return None
        if out and out[-1][0] == token.slot and out[-1][2] == token.index:
            out[-1] = (token.slot, out[-1][1] + 1, token.index + 1)
        elif any(slot == token.slot for slot, _, _ in out):
            return None
        else:
            out.append((token.slot, 1, token.index + 1))
    return out


@dataclass(frozen=True, slots=True)
class Plan:
    """A layout as tensors on the device. T = prefill (with pad) + tail; m = grid width.

    ``positions``, ``slot``, ``index`` are int64 [T]; ``rows`` int64 [R]; ``grid`` int64
    [slots * m]: the token in each grid cell (idle cells repeat some token); ``cells`` int64
    [tail]: the cell of each tail token; ``mask`` additive [slots, 1, m, span]. All
    integers are views of ``flat``, so that a CUDA graph is fed with one copy. ``front_slot`` is
    the prefill's slot where the host may know it: on a CPU a slice is copied faster than indices.
    """

    shape: PackShape
    flat: torch.Tensor
    positions: torch.Tensor
    slot: torch.Tensor
    index: torch.Tensor
    rows: torch.Tensor
    grid: torch.Tensor | None = None
    cells: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    front_slot: int | None = None
    varlen: Varlen | None = None

    @staticmethod
    def of(shape: PackShape, flat: torch.Tensor, mask: torch.Tensor | None) -> Plan:
        """Cut ``flat`` into the plan's integer tensors."""
        total = shape.prefill + shape.tail
        if mask is None:
            positions, slot, index, rows = flat.split([total] * 3 + [shape.rows])
            return Plan(shape, flat, positions, slot, index, rows)
        sizes = [total] * 3 + [shape.rows, mask.shape[0] * mask.shape[2], shape.tail]
        positions, slot, index, rows, grid, cells = flat.split(sizes)
        return Plan(shape, flat, positions, slot, index, rows, grid, cells, mask)

    def copy(self) -> Plan:
        """The same plan in memory of its own."""
        mask = None if self.mask is None else self.mask.clone()
        plan, own = Plan.of(self.shape, self.flat.clone(), mask), self.varlen
        if own is None:
            return plan
        starts, used, pages = (t.clone() for t in own.tensors())
        copied = Varlen(starts, used, pages, own.longest_query, own.longest_key)
        return replace(plan, varlen=copied)

    def load(self, other: Plan) -> None:
        """Take over the content of a plan of the same shape."""
        self.flat.copy_(other.flat)
        if self.mask is not None and other.mask is not None:
            self.mask.copy_(other.mask)
        if self.varlen is not None and other.varlen is not None:
            for mine, theirs in zip(self.varlen.tensors(), other.varlen.tensors(), strict=True):
                mine.copy_(theirs)


class Planner:
    """Builds plans for one ring and remembers the last ``limit`` of them.

    A tail looks at the ring's entries up to its last one, rounded up to ``span_step``; None
    makes it look at whole slots (a CPU would have to copy a part of a slot first).
    """

    def __init__(
        self,
        ring: Ring,
        mask_dtype: torch.dtype,
        span_step: int | None,
        varlen: bool = False,
        limit: int = 512,
    ) -> None:
        self._varlen = varlen
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
            return replace(plan, front_slot=layout.slot)
        grid = [front] * (self._ring.slots * width)
        for number, cell in enumerate(cells):
            grid[cell] = front + number
        flat = self._long(positions + slot + index + rows + grid + cells)
        plan = Plan.of(shape, flat, self._mask(tail, cells, width, span))
        return replace(plan, front_slot=layout.slot if front else None)

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


def chain(slot: int, start: int, count: int) -> tuple[TailToken, ...]:
    """``count`` tokens in a row, each seeing everything before it."""
    return tuple(TailToken(slot, start + i) for i in range(count))


def prefill_layout(tokens: int, rows: tuple[int, ...], slot: int = 0) -> PackLayout:
    """A causal prefill alone."""
    return PackLayout(rows=rows, prefill=tokens, slot=slot)
