"""The one primitive: a pack of tokens that goes through the decoder as one sequence.

A pack is a fresh *prefill* (its tokens attend to each other only) followed by a *tail*: single
tokens, draft chains or draft trees of any live requests. Tail tokens are laid out as a grid
[slots, m], so that their attention is one batched product of every slot's queries with that
slot's keys, a view of the ring: no gathering, no copies, static shapes, no host sync.

A :class:`PackLayout` says what a pack looks like, a :class:`Plan` is the same as tensors; neither
depends on token values. :mod:`vla_ros.engine.packed.planner` turns one into the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


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


def chain(slot: int, start: int, count: int) -> tuple[TailToken, ...]:
    """``count`` tokens in a row, each seeing everything before it."""
    return tuple(TailToken(slot, start + i) for i in range(count))


def prefill_layout(tokens: int, rows: tuple[int, ...], slot: int = 0) -> PackLayout:
    """A causal prefill alone."""
    return PackLayout(rows=rows, prefill=tokens, slot=slot)
