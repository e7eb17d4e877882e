"""The KV cache: its slots are never shared by two live requests, and never read when stale."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.engine import CPU, TEXTS, Event, engine_of, play, stream, tiny
from vla_ros.engine import InvalidAction
from vla_ros.engine.decoding.actionflow import ActionFlow
from vla_ros.engine.layers.kv_cache import KVCache


def cache_of(slots: int = 3, dtype: torch.dtype = torch.float32) -> KVCache:
    return KVCache(2, slots, 8, 2, 4, dtype, CPU)


def test_every_layer_has_keys_and_values_of_its_own() -> None:
    kv_cache = cache_of(dtype=torch.bfloat16)
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
    kv_cache = cache_of()
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


def test_what_a_ring_says_of_slots_that_are_not_to_be_had() -> None:
    kv_cache = cache_of(2)
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
    kv_cache = cache_of()
    for part in (*kv_cache.keys, *kv_cache.values):
        part.fill_(float("nan"))
    kv_cache.flush()
    assert all(part.isnan().all() for part in (*kv_cache.keys, *kv_cache.values))
    kv_cache.flush(damaged=True)
    assert not any(part.any() for part in (*kv_cache.keys, *kv_cache.values))


def test_damage_behind_a_shorter_length_is_zeroed_too() -> None:
    """It would be there again when slots grow."""
    kv_cache = cache_of()
    for part in (*kv_cache.keys, *kv_cache.values):
        part.fill_(float("nan"))
    kv_cache.resize(4)
    kv_cache.flush(damaged=True)
    kv_cache.resize(8)
    assert not any(part.isnan().any() for part in (*kv_cache.keys, *kv_cache.values))


def test_slots_take_another_length_in_the_same_storage() -> None:
    kv_cache = cache_of()
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
    kv_cache = cache_of()
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


@given(slots=st.integers(1, 6), actions=st.lists(st.integers(0, 3), max_size=60))
def test_no_slot_ever_has_two_owners(slots: int, actions: list[int]) -> None:
    kv_cache, held = cache_of(slots), []
    for action in actions:
        if action == 3:
            kv_cache.flush()
            held.clear()
        elif action == 2 and held:
            kv_cache.release(held.pop(0))
        elif len(held) < slots:
            held.append(kv_cache.acquire())
        else:
            with pytest.raises(RuntimeError, match=r"all .* KV slots are taken"):
                kv_cache.acquire()
        assert len(set(held)) == len(held)
        assert kv_cache.live == frozenset(held)


def poison_the_dead(engine, events):  # type: ignore[no-untyped-def]
    """Play a stream; before every call overwrite every slot that no request holds."""
    out = {}
    for event in events:
        kv_cache = engine.decoder.decoding.runner.kv_cache
        for slot in set(range(kv_cache.slots)) - kv_cache.live:
            kv_cache.fill(slot, 1e6)
        out.update(play(engine, [event]))
    return out


def test_a_path_is_moved_in_all_layers_at_once() -> None:
    """Sources and targets may overlap; the other slot and the other entries stay."""
    kv_cache = KVCache(3, 2, 8, 2, 2, torch.float32, CPU)
    before = []
    for tensor in (*kv_cache.keys, *kv_cache.values):
        tensor.normal_()
        before.append(tensor.clone())
    kv_cache.move(1, torch.tensor([3, 4, 7]), torch.tensor([2, 3, 4]))
    for now, then in zip((*kv_cache.keys, *kv_cache.values), before, strict=True):
        assert torch.equal(now[0], then[0])
        assert torch.equal(now[1], then[1][:, [0, 1, 3, 4, 7, 5, 6, 7]])


@pytest.mark.parametrize("drafter", ["temporal", "temporal_tree"])
@pytest.mark.parametrize("decoding", ["autoregressive", "actionflow", "speculative"])
def test_nothing_reads_what_earlier_requests_left(decoding: str, drafter: str) -> None:
    checkpoint = tiny(seed=3)
    events = stream(30, {0: TEXTS[0], 12: TEXTS[1], 14: TEXTS[1]})
    options = {"adaptive_draft": False, "drafter": drafter}
    clean = play(engine_of(checkpoint, decoding, **options), events)
    poisoned = poison_the_dead(engine_of(checkpoint, decoding, **options), events)
    assert {s: a.tokens for s, a in clean.items()} == {s: a.tokens for s, a in poisoned.items()}


def test_actionflow_reuses_its_slots_by_index() -> None:
    engine = engine_of(tiny(), "actionflow")
    assert isinstance(engine.decoder.decoding, ActionFlow)
    kv_cache = engine.decoder.decoding.runner.kv_cache
    storage = [t.data_ptr() for t in (*kv_cache.keys, *kv_cache.values)]
    play(engine, stream(30, {0: TEXTS[0]}))
    assert [t.data_ptr() for t in (*kv_cache.keys, *kv_cache.values)] == storage
    assert kv_cache.slots == 7
    # One plan per place in the rotation once full, one per length while filling.
    assert engine.decoder.decoding.runner.planner.built <= 7 + 6


@pytest.mark.parametrize(
    ("decoding", "drafter"),
    [
        ("autoregressive", "temporal"),
        ("actionflow", "temporal"),
        ("speculative", "temporal"),
        ("speculative", "temporal_tree"),
    ],
)
def test_a_damaged_frame_does_not_outlive_itself(decoding: str, drafter: str) -> None:
    """NaN in the KV would spread through masked entries (0 * NaN): the KV cache is cleared."""
    engine = engine_of(tiny(seed=4), decoding, drafter=drafter, adaptive_draft=False)
    events = stream(24, {0: TEXTS[0]})
    play(engine, events[:8])
    good = engine.model.vision.projector.fc1.bias.clone()
    engine.model.vision.projector.fc1.bias.fill_(float("nan"))
    with pytest.raises(InvalidAction, match="not finite"):
        for event in events[8:16]:
            play(engine, [event])
    engine.model.vision.projector.fc1.bias.copy_(good)
    after = play(engine, [Event(e.stamp, e.image) for e in events[16:]])
    expected = play(engine_of(tiny(seed=4)), [Event(0, events[0].image, TEXTS[0]), *events[16:]])
    assert after
    assert all(a.tokens == expected[s].tokens for s, a in after.items())
