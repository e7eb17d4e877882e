"""A layout becomes tensors: what a plan says of every token, and which layouts are refused."""

from __future__ import annotations

import pytest
import torch

from support.engine import CPU
from vla_ros.engine.layers import pack
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.pack import (
    PackLayout,
    PackShape,
    Plan,
    Planner,
    TailToken,
    branching,
    chain,
    prefill_layout,
)


def ring_of(slots: int = 3, entries: int = 256) -> KVCache:
    return KVCache(1, slots, entries, 1, 2, torch.float32, CPU)


def plan_of(layout: PackLayout, slots: int = 3) -> Plan:
    return Planner(ring_of(slots)).plan(layout)


def test_a_prefill_fills_its_slot_from_the_first_entry_on() -> None:
    plan = plan_of(prefill_layout(4, (1, 3), slot=2))
    assert plan.shape == PackShape(prefill=4, tail=0, rows=2, width=0, words=1, causal=True)
    assert plan.positions.tolist() == plan.index.tolist() == [0, 1, 2, 3]
    assert plan.slot.tolist() == [2, 2, 2, 2]
    assert (plan.rows.tolist(), plan.filled.tolist()) == ([1, 3], [4])
    assert plan.sees.shape == (0, 4)
    assert plan.flat.dtype == torch.long


def test_padding_lies_between_a_prefill_and_what_is_behind_it() -> None:
    """Rows keep their tokens: those of the tail move with it."""
    layout = PackLayout((2, 3, 4), 3, 1, (*chain(1, 5, 1), *chain(0, 9, 1)), pad=2)
    plan = plan_of(layout)
    assert plan.shape == PackShape(prefill=5, tail=2, rows=3, width=1, words=1, causal=True)
    assert plan.positions.tolist() == plan.index.tolist() == [0, 1, 2, 3, 4, 5, 9]
    assert plan.slot.tolist() == [1, 1, 1, 1, 1, 1, 0]
    assert (plan.rows.tolist(), plan.filled.tolist()) == ([2, 5, 6], [3])
    assert plan.sees.tolist() == [[6, 6, 6, 0], [10, 10, 10, 0]]


def test_a_tree_is_at_the_positions_of_its_levels_wherever_it_lies() -> None:
    """Entries 16 ... 18 behind a trunk of nine: two children of the root, one behind the second."""
    tail = branching(0, 16, 9, ((0,), (1,), (1, 2)))
    assert tail == (
        TailToken(0, 16, 9, (16,), 9),
        TailToken(0, 17, 9, (17,), 9),
        TailToken(0, 18, 10, (17, 18), 9),
    )
    plan = plan_of(PackLayout((0,), tail=tail))
    assert plan.shape == PackShape(prefill=0, tail=3, rows=1, width=3, words=1, causal=True)
    assert plan.positions.tolist() == [9, 9, 10]
    assert plan.index.tolist() == [16, 17, 18]
    assert plan.sees.tolist() == [[9, 17, 16, 1], [9, 18, 17, 1], [9, 19, 17, 3]]


def test_of_what_a_token_sees_the_beginning_is_a_length_and_only_the_rest_is_bits() -> None:
    """So a tree that lies right behind its trunk needs few words, and a chain none."""
    first, far = branching(0, 9, 9, ((0,), (1,)))
    assert plan_of(PackLayout((0,), tail=(first, far))).sees.tolist() == [
        [10, 10, 10, 0],
        [9, 11, 10, 1],
    ]


@pytest.mark.parametrize(("span", "words"), [(1, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
def test_a_word_speaks_of_64_entries_the_last_bit_too(span: int, words: int) -> None:
    """The highest bit of a word is the sign of a signed integer."""
    last = 10 + span - 1
    token = TailToken(0, last, 5, tuple(sorted({10, last})), 4)
    plan = plan_of(PackLayout((0,), tail=(token,)))
    assert plan.shape.words == words
    length, reach, base, *bits = plan.sees[0].tolist()
    assert (length, reach, base) == (4, last + 1, 10)
    whole = sum((word % (1 << 64)) << (64 * number) for number, word in enumerate(bits))
    assert whole == (1 | 1 << (span - 1))


def test_the_width_is_that_of_the_slot_with_most_tokens() -> None:
    layout = PackLayout((0,), tail=(*chain(0, 4, 2), *chain(2, 7, 5), *chain(1, 0, 1)))
    shape = plan_of(layout).shape
    assert (shape.tail, shape.width) == (8, 5)


def test_a_pack_that_is_not_causal_says_so_in_its_shape() -> None:
    """Parallel decoding must not share a graph with a prompt of its length."""
    causal, whole = (plan_of(PackLayout((0,), 4, causal=c)).shape for c in (True, False))
    assert causal != whole
    assert not whole.causal


def test_the_last_entry_and_the_last_slot_can_be_used() -> None:
    assert plan_of(prefill_layout(256, (0,), slot=2)).shape.prefill == 256
    assert plan_of(PackLayout((0,), tail=chain(2, 255, 1))).index.tolist() == [255]
    assert plan_of(PackLayout((0,), 200, 2, chain(2, 200, 1))).index.tolist()[-1] == 200


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (prefill_layout(257, (0,)), "the pack needs 257 entries, a slot has 256"),
        (PackLayout((0,), 250, pad=7), "the pack needs 257 entries, a slot has 256"),
        (PackLayout((0,), tail=chain(0, 256, 1)), "the pack needs 257 entries, a slot has 256"),
        (prefill_layout(3, (0,), slot=3), "the pack uses slots [3], the KV cache has 3"),
        (prefill_layout(3, (0,), slot=-1), "the pack uses slots [-1], the KV cache has 3"),
        (
            PackLayout((0,), 3, 2, (*chain(4, 1, 2), *chain(0, 1, 1))),
            "the pack uses slots [0, 2, 4], the KV cache has 3",
        ),
        (PackLayout((0,)), "the pack uses slots [], the KV cache has 3"),
        (
            PackLayout((0,), 4, 1, chain(1, 3, 1)),
            "a tail token of the prefill's slot lies within the prefill",
        ),
        (
            PackLayout((0,), 4, 1, chain(1, 5, 1), pad=2),
            "a tail token of the prefill's slot lies within the prefill",
        ),
        (
            PackLayout((0,), tail=(*chain(0, 4, 1), *chain(0, 4, 1))),
            "two tail tokens write the same KV entry",
        ),
        (
            PackLayout((0,), tail=(*chain(0, 4, 1), *chain(1, 4, 1), *chain(0, 5, 1))),
            "the tail tokens of a slot do not lie together",
        ),
        (
            PackLayout((0,), tail=(*chain(0, 4, 1), *chain(0, 6, 1))),
            "a tail token does not follow the one before it, and does not name what it sees",
        ),
        (
            PackLayout((0,), tail=(*chain(0, 5, 1), *chain(0, 4, 1))),
            "a tail token does not follow the one before it, and does not name what it sees",
        ),
    ],
)
def test_what_an_invalid_layout_says(layout: PackLayout, message: str) -> None:
    with pytest.raises(ValueError) as refused:
        plan_of(layout)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    "layout",
    [
        PackLayout((0,), 4, 1, chain(1, 4, 1)),
        PackLayout((0,), 4, 1, chain(0, 2, 1)),  # an entry that the prefill has in its own slot
        PackLayout((0,), 4, 1, chain(1, 6, 1), pad=2),
        PackLayout((0,), tail=(*chain(0, 4, 2), *chain(1, 9, 1))),
        PackLayout((0,), tail=(*chain(0, 4, 1), *chain(1, 4, 1))),
        PackLayout((0,), tail=(*chain(0, 4, 1), *branching(0, 8, 5, ((0,), (1,))))),
        PackLayout((0,), 0, 7, chain(1, 4, 1)),  # of no prefill the slot means nothing
    ],
)
def test_layouts_that_are_as_they_should_be(layout: PackLayout) -> None:
    assert plan_of(layout).shape.rows == 1


def test_a_planner_remembers_a_number_of_plans_and_counts_what_it_made() -> None:
    planner = Planner(ring_of())
    for _ in range(2):
        for tokens in (3, 4, 5):
            planner.plan(prefill_layout(tokens, (0,)))
    assert planner.built == 3
    planner.forget()
    assert planner.built == 0
    planner.plan(prefill_layout(3, (0,)))
    assert planner.built == 1


def test_a_planner_does_not_grow_for_ever() -> None:
    planner = Planner(ring_of())
    first = planner.plan(prefill_layout(1, (0,)))
    for row in range(pack.PLANS):
        planner.plan(PackLayout((row,), 2))
    assert planner.plan(prefill_layout(1, (0,))) is not first
    again = planner.plan(PackLayout((pack.PLANS - 1,), 2))
    assert planner.plan(PackLayout((pack.PLANS - 1,), 2)) is again


def test_a_copied_plan_lies_in_memory_of_its_own_and_takes_another_over() -> None:
    first, second = (plan_of(PackLayout((0,), tail=chain(slot, 7, 2))) for slot in (0, 1))
    copy = first.copy()
    assert copy.shape == first.shape
    assert copy.flat.data_ptr() != first.flat.data_ptr()
    copy.load(second)
    for part in ("positions", "slot", "index", "rows", "filled", "sees"):
        mine = getattr(copy, part)
        assert mine.tolist() == getattr(second, part).tolist()
        assert mine.untyped_storage().data_ptr() == copy.flat.untyped_storage().data_ptr()
    assert first.slot.tolist() == [0, 0]
