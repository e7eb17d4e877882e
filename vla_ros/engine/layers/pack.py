"""A pack: the tokens that go through the decoder as one sequence, whatever the way of decoding.

A pack is a fresh *prefill* (its tokens attend to each other only) followed by a *tail*: single
tokens, draft chains or draft trees of any live requests. Each token of the tail has its own account
of which entries of its KV slot it sees: all before a length and, of a draft tree, those whose bits
are set. The tail tokens of one request lie together.

A :class:`PackLayout` describes a pack, a :class:`Plan` is the same as tensors; neither depends on
token values. A :class:`Planner` turns one into the other and keeps plans: steady streams repeat a
few layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby, pairwise

import torch

from vla_ros.engine.layers.devices import upload
from vla_ros.engine.layers.kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class TailToken:
    """One token behind the prefill: the entry that its K and V go to, and what it sees of its slot.

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
    """Description of a pack; two equal layouts share one plan.

    ``prefill`` tokens go to ``slot`` from entry 0 on, ``rows`` are the tokens that are asked what
    comes next. A tail of the same slot lies behind the prefill and its padding, and sees it.
    ``causal`` is False where the prefill sees all of itself: parallel decoding, and prompts that
    are a prefix. ``pad`` tokens at the prefill's end only round its length up: later tokens of the
    slot overwrite their entries before anything can see them. ``masked``: a prefill that is not
    causal does not see them either.
    """

    rows: tuple[int, ...]
    prefill: int = 0
    slot: int = 0
    tail: tuple[TailToken, ...] = ()
    causal: bool = True
    pad: int = 0
    masked: bool = False


@dataclass(frozen=True, slots=True)
class PackShape:
    """The part of a layout that fixes tensor shapes: what a captured CUDA graph belongs to.

    ``prefill`` counts its padding. ``width`` is the most tokens of the tail in one slot, ``words``
    the number of 64-bit words for what a token of a draft tree sees. ``gaps``: in a tail of single
    tokens one sees entries that do not follow each other.
    """

    prefill: int
    tail: int
    rows: int
    width: int = 0
    words: int = 1
    causal: bool = True
    masked: bool = False
    gaps: bool = False


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
        """A copy of the plan in memory of its own."""
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


def prefill_layout(
    tokens: int, rows: tuple[int, ...], slot: int = 0, causal: bool = True
) -> PackLayout:
    """A prefill alone."""
    return PackLayout(rows=rows, prefill=tokens, slot=slot, causal=causal)


PLANS = 512  # remembered per KV cache
WORD = 64  # entries that a word of bits covers


class Planner:
    """Builds plans for one KV cache and remembers the last :data:`PLANS` of them."""

    def __init__(self, kv_cache: KVCache) -> None:
        #: The plan of a layout. Raises ValueError when it does not fit the KV cache. What remembers
        #: must not refer back to this object: a session's memory is free as soon as it ends.
        self.plan = lru_cache(PLANS)(partial(_plan, kv_cache))

    @property
    def built(self) -> int:
        """Plans made since the start, or since they were forgotten."""
        return self.plan.cache_info().misses

    def forget(self) -> None:
        """Drop all plans: the KV cache has another shape."""
        self.plan.cache_clear()


def _plan(kv_cache: KVCache, layout: PackLayout) -> Plan:
    _check(layout, kv_cache)
    tail, front = layout.tail, layout.prefill + layout.pad
    fresh = range(front)
    positions = [*fresh, *(t.index if t.position is None else t.position for t in tail)]
    slot = [layout.slot] * front + [t.slot for t in tail]
    index = [*fresh, *(t.index for t in tail)]
    rows = [r if r < layout.prefill else r + layout.pad for r in layout.rows]
    seen = [seen_by(token) for token in tail]
    words = max((-(-(each[1] - each[2]) // WORD) for each in seen if each[3]), default=1)
    width = max((count for _, count in _runs(tail)), default=0)
    shape = PackShape(
        prefill=front,
        tail=len(tail),
        rows=len(rows),
        width=width,
        words=words,
        causal=layout.causal,
        masked=layout.masked,
        gaps=width == 1 and any(bits for *_, bits in seen),
    )
    sees = [n for *ends, bits in seen for n in (*ends, *_words(bits, words))]
    numbers = [*positions, *slot, *index, *rows, layout.prefill, *sees]
    return Plan.of(shape, upload(numbers, kv_cache.device, torch.long))


def seen_by(token: TailToken) -> tuple[int, int, int, int]:
    """Entries of its slot that a token sees: length, reach, base and bits, see :class:`Plan`."""
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
    """Bits as ``count`` signed integers of 64 bits, the lowest first."""
    parts = [bits >> (WORD * number) & (1 << WORD) - 1 for number in range(count)]
    return [part - (1 << WORD) if part >> (WORD - 1) else part for part in parts]


def _runs(tail: tuple[TailToken, ...]) -> list[tuple[int, int]]:
    """Runs (slot, tokens) of a tail, as they lie together."""
    return [(slot, len(list(group))) for slot, group in groupby(tail, key=lambda t: t.slot)]


def _check(layout: PackLayout, kv_cache: KVCache) -> None:
    tail = layout.tail
    entries = [t.index for t in tail] + [layout.prefill + layout.pad - 1]
    slots = [t.slot for t in tail] + ([layout.slot] if layout.prefill else [])
    if max(entries) >= kv_cache.slot_length:
        raise ValueError(
            f"the pack needs {max(entries) + 1} entries, a slot has {kv_cache.slot_length}"
        )
    if not slots or not 0 <= min(slots) <= max(slots) < kv_cache.slots:
        used = sorted(set(slots))
        raise ValueError(f"the pack uses slots {used}, the KV cache has {kv_cache.slots}")
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
            raise ValueError(
                "a tail token does not follow the one before it, and does not name what it sees"
            )
