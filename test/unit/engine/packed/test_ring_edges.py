"""The ring by itself: whose turn it is, what it keeps, how long its slots are."""

from __future__ import annotations

import pytest
import torch

from support.engine import CPU
from vla_ros.engine.packed.ring import Ring


def ring_of(slots: int = 3, dtype: torch.dtype = torch.float32) -> Ring:
    return Ring(2, slots, 8, 2, 4, dtype, CPU)


def test_every_layer_has_keys_and_values_of_its_own() -> None:
    ring = ring_of(dtype=torch.bfloat16)
    assert (ring.device, ring.dtype) == (CPU, torch.bfloat16)
    assert (ring.slots, ring.slot_length, ring.longest) == (3, 8, 8)
    assert len(ring.keys) == len(ring.values) == len(ring.both) == 2
    number = 0
    for layer in range(2):
        for part in (ring.keys[layer], ring.values[layer]):
            assert part.shape == (3, 2, 8, 4)
            assert part.dtype == torch.bfloat16
            assert not part.any()
            number += 1
            part.fill_(number)
    assert [float(part.float().mean()) for part in (*ring.keys, *ring.values)] == [1, 3, 2, 4]
    for layer, both in enumerate(ring.both):
        assert torch.equal(both[0], ring.keys[layer])
        assert torch.equal(both[1], ring.values[layer])


def test_slots_are_given_in_turn() -> None:
    """The one that was free longest comes last into use again; a flush begins anew."""
    ring = ring_of()
    assert [ring.acquire() for _ in range(2)] == [0, 1]
    ring.release(0)
    assert ring.acquire() == 2
    assert ring.acquire() == 0
    ring.release(2)
    ring.release(1)
    assert ring.acquire() == 1
    assert ring.live == {0, 1}
    ring.flush()
    assert ring.live == frozenset()
    assert [ring.acquire() for _ in range(3)] == [0, 1, 2]
    ring.release(1)
    assert ring.acquire() == 1  # the only free one, though another's turn came


def test_a_slot_that_is_taken_is_passed_over_for_the_next_behind_it() -> None:
    ring = ring_of(4)
    for _ in range(4):
        ring.acquire()
    ring.release(1)
    ring.release(3)
    assert [ring.acquire(), ring.acquire()] == [1, 3]


def test_what_a_ring_says_of_slots_that_are_not_to_be_had() -> None:
    ring = ring_of(2)
    ring.acquire(), ring.acquire()
    with pytest.raises(RuntimeError) as full:
        ring.acquire()
    assert str(full.value) == "all 2 KV slots are taken: a request was never released"
    ring.release(1)
    with pytest.raises(RuntimeError) as free:
        ring.release(1)
    assert str(free.value) == "KV slot 1 is not held by any request"
    assert ring.live == {0}


def test_a_flush_keeps_what_is_masked_and_zeroes_what_is_damaged() -> None:
    ring = ring_of()
    for part in (*ring.keys, *ring.values):
        part.fill_(float("nan"))
    ring.flush()
    assert all(part.isnan().all() for part in (*ring.keys, *ring.values))
    ring.flush(damaged=True)
    assert not any(part.any() for part in (*ring.keys, *ring.values))


def test_damage_behind_a_shorter_length_is_zeroed_too() -> None:
    """It would be there again when slots grow."""
    ring = ring_of()
    for part in (*ring.keys, *ring.values):
        part.fill_(float("nan"))
    ring.resize(4)
    ring.flush(damaged=True)
    ring.resize(8)
    assert not any(part.isnan().any() for part in (*ring.keys, *ring.values))


def test_one_slot_is_filled_and_no_other() -> None:
    ring = ring_of()
    ring.fill(1, 7.0)
    for part in (*ring.keys, *ring.values):
        assert part.sum((1, 2, 3)).tolist() == [0, 7 * 2 * 8 * 4, 0]


def test_slots_take_another_length_in_the_same_storage() -> None:
    ring = ring_of()
    storage = ring.keys[0].untyped_storage().data_ptr()
    for length in (5, 8, 1):
        ring.resize(length)
        assert (ring.slot_length, ring.longest) == (length, 8)
        for number, part in enumerate((*ring.keys, *ring.values)):
            assert part.shape == (3, 2, length, 4)
            assert part.untyped_storage().data_ptr() == storage
            part.fill_(number)
        sums = [part.float().mean().item() for part in (*ring.keys, *ring.values)]
        assert sums == [0, 1, 2, 3]
        ring.fill(2, 9.0)
        assert all((part[2] == 9).all() and (part[1] < 9).all() for part in ring.values)
        ring.move(1, torch.tensor([0]), torch.tensor([length - 1]))


def test_a_length_that_cannot_be_is_refused() -> None:
    ring = ring_of()
    with pytest.raises(ValueError) as long:
        ring.resize(9)
    assert str(long.value) == "a slot has at most 8 entries, wanted 9"
    ring.resize(4)
    slot = ring.acquire()
    with pytest.raises(RuntimeError) as alive:
        ring.resize(8)
    assert str(alive.value) == "the KV ring cannot change its shape while requests are alive"
    assert ring.slot_length == 4
    ring.release(slot)
    ring.resize(8)
