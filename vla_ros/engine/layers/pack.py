"""The one primitive: a pack of tokens that goes through the decoder as one sequence.

A pack is a fresh *prefill* (its tokens attend to each other only) followed by a *tail*: single
tokens, draft chains or draft trees of any live requests. Each token of the tail says by itself
which entries of its KV slot it sees: all before a length and, of a draft tree, those whose bits
are set. The tail tokens of one request lie together.

A :class:`PackLayout` says what a pack looks like, a :class:`Plan` is the same as tensors; neither
depends on token values. :mod:`vla_ros.engine.packed.planner` turns one into the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TailToken:
    """One token behind the prefill: where its K/V goes and what it sees of its own slot.

    It sees entries 0 ... ``index`` unless it is of a draft tree: then the first ``trunk`` entries
    and those that ``sees`` names, and ``position`` differs from ``index`` too.
    """

    slot: int
    index: int
    position: int | None = None
    sees: tuple[int, ...] | None = None
    trunk: int = 0


@dataclass(frozen=True, slots=True)
class PackLayout:
    """What a pack looks like; two equal layouts share one plan.

    ``prefill`` tokens go to ``slot`` from entry 0 on, ``rows`` are the tokens that are asked what
    comes next. A tail of the same slot lies behind the prefill and its padding, and sees it.
    ``causal`` is False for parallel decoding, where the prefill sees all of itself.
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
    """The part of a layout that fixes tensor shapes: what a captured CUDA graph belongs to.

    ``prefill`` counts its padding. ``width`` is the most tokens of the tail in one slot, ``words``
    the number of 64-bit words that say what a token of a draft tree sees.
    """

    prefill: int
    tail: int
    rows: int
    width: int = 0
    words: int = 1
    causal: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A layout as tensors on the device. T = prefill + tail.

    int64, and views of ``flat``, so that a CUDA graph is fed with one copy: ``positions``,
    ``slot``, ``index`` [T] and ``rows`` [R] per token, ``filled`` [1] the prefill without its
    padding, and ``sees`` [tail, 3 + words]: length, reach, base, bits. A token of the tail sees
    the entries of its slot before ``length``, and base + i where bit i is set, all before
    ``reach``.
    """

    shape: PackShape
    flat: torch.Tensor
    positions: torch.Tensor
    slot: torch.Tensor
    index: torch.Tensor
    rows: torch.Tensor
    filled: torch.Tensor
    sees: torch.Tensor

    @staticmethod
    def of(shape: PackShape, flat: torch.Tensor) -> Plan:
        """Cut ``flat`` into the plan's tensors."""
        total, wide = shape.prefill + shape.tail, 3 + shape.words
        sizes = [total, total, total, shape.rows, 1, shape.tail * wide]
        positions, slot, index, rows, filled, sees = flat.split(sizes)
        return Plan(shape, flat, positions, slot, index, rows, filled, sees.view(-1, wide))

    def copy(self) -> Plan:
        """The same plan in memory of its own."""
        return Plan.of(self.shape, self.flat.clone())

    def load(self, other: Plan) -> None:
        """Take over the content of a plan of the same shape."""
        self.flat.copy_(other.flat)


def chain(slot: int, start: int, count: int) -> tuple[TailToken, ...]:
    """``count`` tokens in a row, each seeing everything before it."""
    return tuple(TailToken(slot, start + i) for i in range(count))


def branching(
    slot: int, start: int, trunk: int, branches: Sequence[tuple[int, ...]]
) -> tuple[TailToken, ...]:
    """A draft tree: node i in entry ``start`` + i, behind the ``trunk`` entries that all see.

    ``branches`` are of every node its ancestors, from the first level on, and itself.
    """
    return tuple(
        TailToken(
            slot,
            start + node,
            position=trunk + len(branch) - 1,
            sees=tuple(start + other for other in branch),
            trunk=trunk,
        )
        for node, branch in enumerate(branches)
    )


def prefill_layout(tokens: int, rows: tuple[int, ...], slot: int = 0) -> PackLayout:
    """A causal prefill alone."""
    return PackLayout(rows=rows, prefill=tokens, slot=slot)
