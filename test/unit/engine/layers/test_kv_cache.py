"""KV slots: never shared by two live requests, never read when stale."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.engine import TEXTS, Event, engine_of, play, stream, tiny
from vla_ros.engine import InvalidAction
from vla_ros.engine.decoding.actionflow import ActionFlow
from vla_ros.engine.layers.kv_cache import KVCache


def ring_of(slots: int) -> KVCache:
    return KVCache(1, slots, 4, 1, 2, torch.float32, torch.device("cpu"))


@given(slots=st.integers(1, 6), actions=st.lists(st.integers(0, 3), max_size=60))
def test_no_slot_ever_has_two_owners(slots: int, actions: list[int]) -> None:
    kv_cache, held = ring_of(slots), []
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


def test_releasing_twice_is_an_error() -> None:
    kv_cache = ring_of(2)
    slot = kv_cache.acquire()
    kv_cache.release(slot)
    with pytest.raises(RuntimeError, match="not held"):
        kv_cache.release(slot)


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
    kv_cache = KVCache(3, 2, 8, 2, 2, torch.float32, torch.device("cpu"))
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
