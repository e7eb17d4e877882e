"""The KV cache by itself: whose turn it is, what it keeps, how long its slots are."""

from __future__ import annotations

import pytest
import torch

from support.engine import CPU
from vla_ros.engine.layers.kv_cache import KVCache


def ring_of(slots: int = 3, dtype: torch.dtype = torch.float32) -> KVCache:
    return KVCache(2, slots, 8, 2, 4, dtype, CPU)


def test_every_layer_has_keys_and_values_of_its_own() -> None:
    kv_cache = ring_of(dtype=torch.bfloat16)
    assert (kv_cache.device, kv_cache.dtype) == (CPU, torch.bfloat16)
    assert (kv_cache.slots, kv_cache.slot_length, kv_cache.longest) == (3, 8, 8)
    assert len(kv_cache.keys) == len(kv_cache.values) == len(kv_cache.both) == 2
    number = 0
    for layer in range(2):
        for part in (kv_cache.keys[layer], kv_cache.values[layer]):
            assert part.shape == (3, 2, 8, 4)
            assert part.dtype == torch.bfloat16
            assert not part.any()
            number += 1
            part.fill_(number)
    assert [float(part.float().mean()) for part in (*kv_cache.keys, *kv_cache.values)] == [
        1,
        3,
        2,
        4,
    ]
    for layer, both in enumerate(kv_cache.both):
        assert torch.equal(both[0], kv_cache.keys[layer])
        assert torch.equal(both[1], kv_cache.values[layer])


def test_slots_are_given_in_turn() -> None:
    """The one that was free longest comes last into use again; a flush begins anew."""
    kv_cache = ring_of()
    assert [kv_cache.acquire() for _ in range(2)] == [0, 1]
    kv_cache.release(0)
    assert kv_cache.acquire() == 2
    assert kv_cache.acquire() == 0
    kv_cache.release(2)
    kv_cache.release(1)
    assert kv_cache.acquire() == 1
    assert kv_cache.live == {0, 1}
    kv_cache.flush()
    assert kv_cache.live == frozenset()
    assert [kv_cache.acquire() for _ in range(3)] == [0, 1, 2]
    kv_cache.release(1)
    assert kv_cache.acquire() == 1  # the only free one, though another's turn came


def test_a_slot_that_is_taken_is_passed_over_for_the_next_behind_it() -> None:
    kv_cache = ring_of(4)
    for _ in range(4):
        kv_cache.acquire()
    kv_cache.release(1)
    kv_cache.release(3)
    assert [kv_cache.acquire(), kv_cache.acquire()] == [1, 3]


def test_what_a_ring_says_of_slots_that_are_not_to_be_had() -> None:
    kv_cache = ring_of(2)
    kv_cache.acquire(), kv_cache.acquire()
    with pytest.raises(RuntimeError) as full:
        kv_cache.acquire()
    assert str(full.value) == "all 2 KV slots are taken: a request was never released"
    kv_cache.release(1)
    with pytest.raises(RuntimeError) as free:
        kv_cache.release(1)
    assert str(free.value) == "KV slot 1 is not held by any request"
    assert kv_cache.live == {0}


def test_a_flush_keeps_what_is_masked_and_zeroes_what_is_damaged() -> None:
    kv_cache = ring_of()
    for part in (*kv_cache.keys, *kv_cache.values):
        part.fill_(float("nan"))
    kv_cache.flush()
    assert all(part.isnan().all() for part in (*kv_cache.keys, *kv_cache.values))
    kv_cache.flush(damaged=True)
    assert not any(part.any() for part in (*kv_cache.keys, *kv_cache.values))


def test_damage_behind_a_shorter_length_is_zeroed_too() -> None:
    """It would be there again when slots grow."""
    kv_cache = ring_of()
    for part in (*kv_cache.keys, *kv_cache.values):
        part.fill_(float("nan"))
    kv_cache.resize(4)
    kv_cache.flush(damaged=True)
    kv_cache.resize(8)
    assert not any(part.isnan().any() for part in (*kv_cache.keys, *kv_cache.values))


def test_one_slot_is_filled_and_no_other() -> None:
    kv_cache = ring_of()
    kv_cache.fill(1, 7.0)
    for part in (*kv_cache.keys, *kv_cache.values):
        assert part.sum((1, 2, 3)).tolist() == [0, 7 * 2 * 8 * 4, 0]


def test_slots_take_another_length_in_the_same_storage() -> None:
    kv_cache = ring_of()
    storage = kv_cache.keys[0].untyped_storage().data_ptr()
    for length in (5, 8, 1):
        kv_cache.resize(length)
        assert (kv_cache.slot_length, kv_cache.longest) == (length, 8)
        for number, part in enumerate((*kv_cache.keys, *kv_cache.values)):
            assert part.shape == (3, 2, length, 4)
            assert part.untyped_storage().data_ptr() == storage
            part.fill_(number)
        sums = [part.float().mean().item() for part in (*kv_cache.keys, *kv_cache.values)]
        assert sums == [0, 1, 2, 3]
        kv_cache.fill(2, 9.0)
        assert all((part[2] == 9).all() and (part[1] < 9).all() for part in kv_cache.values)
        kv_cache.move(1, torch.tensor([0]), torch.tensor([length - 1]))


def test_a_length_that_cannot_be_is_refused() -> None:
    kv_cache = ring_of()
    with pytest.raises(ValueError) as long:
        kv_cache.resize(9)
    assert str(long.value) == "a slot has at most 8 entries, wanted 9"
    kv_cache.resize(4)
    slot = kv_cache.acquire()
    with pytest.raises(RuntimeError) as alive:
        kv_cache.resize(8)
    assert str(alive.value) == "the KV cache cannot change its shape while requests are alive"
    assert kv_cache.slot_length == 4
    kv_cache.release(slot)
    kv_cache.resize(8)
