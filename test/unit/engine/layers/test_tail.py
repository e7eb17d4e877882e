"""The tail's attention is, for every token by itself, attention over what it says it sees."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.engine import CPU
from support.tails import Case, cases
from vla_ros.engine.layers.attention import TorchTail, seen
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.pack import PackLayout, Planner, TailToken, seen_by


@settings(max_examples=60, deadline=None)
@given(cases())
def test_a_tail_token_by_token(case: Case) -> None:
    kv_cache, plan, q = case.made(torch.float32)
    got = TorchTail(kv_cache, plan)(0, q, 0.3)
    torch.testing.assert_close(got, case.token_by_token(kv_cache, q, 0.3), atol=1e-5, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(cases())
def test_in_bfloat16_it_is_as_near_as_bfloat16_is(case: Case) -> None:
    kv_cache, plan, q = case.made(torch.bfloat16)
    got = TorchTail(kv_cache, plan)(0, q, 0.3)
    wanted = case.token_by_token(kv_cache, q.float(), 0.3)
    torch.testing.assert_close(got.float(), wanted, atol=0.05, rtol=0.05)


@given(st.sets(st.integers(0, 400), min_size=1), st.integers(0, 400))
def test_any_set_of_entries_can_be_said(entries: set[int], trunk: int) -> None:
    own = entries | set(range(trunk))
    token = TailToken(0, max(own), 0, tuple(sorted(entries)), trunk)
    kv_cache = KVCache(1, 1, 402, 1, 2, torch.float32, CPU)
    plan = Planner(kv_cache).plan(PackLayout((0,), tail=(token,)))
    found = seen(plan.sees, 402)[0].nonzero()[:, 0].tolist()
    assert found == sorted(own)
    length, reach, base, bits = seen_by(token)
    assert length >= trunk and reach == max(own) + 1
    assert not bits or (base >= length and bits & 1)


def test_chains_and_small_trees_share_a_shape() -> None:
    """So one graph serves them all, wherever they lie."""
    kv_cache = KVCache(1, 1, 200, 1, 2, torch.float32, CPU)
    tails = [
        (TailToken(0, 3), TailToken(0, 4)),
        (TailToken(0, 120), TailToken(0, 121)),
        (TailToken(0, 16, 9, (16,), 9), TailToken(0, 79, 10, (16, 79), 9)),
    ]
    shapes = {Planner(kv_cache).plan(PackLayout((0,), tail=tail)).shape for tail in tails}
    assert len(shapes) == 1
    wide = (TailToken(0, 16, 9, (16,), 9), TailToken(0, 80, 10, (16, 80), 9))
    assert Planner(kv_cache).plan(PackLayout((0,), tail=wide)).shape.words == 2
