"""A tail's attention is, for every token by itself, attention over the entries that it sees."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.engine import CPU
from support.tails import Case, cases, own_entries
from vla_ros.engine.layers.attention import PackedAttention, TorchTail, seen
from vla_ros.engine.layers.kernels.fused import Heads
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.pack import PackLayout, Planner, TailToken, branching, chain, seen_by


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


META = torch.device("meta")  # tensors without content, which do not mix with those of a CPU


@pytest.mark.parametrize(
    "token",
    [
        TailToken(0, 9),
        TailToken(0, 0),
        TailToken(0, 30, 5, (30,), 4),  # one bit; nothing is seen 64 entries behind it
        TailToken(0, 93, 5, (30, 93), 4),  # the last bit of a word
        TailToken(0, 94, 5, (30, 94), 4),  # the first of the next
        TailToken(0, 190, 5, (30, 40, 94, 157, 158, 190), 4),  # of three words, some alike
        TailToken(0, 250, 5, (30, 250), 30),
        TailToken(0, 6, 5, (4, 5, 6), 4),  # all of it a length
        TailToken(0, 8, 5, (2, 3, 6, 8), 4),  # named twice: by the trunk too
    ],
    ids=str,
)
def test_a_token_sees_what_it_names_and_nothing_around_it(token: TailToken) -> None:
    kv_cache = KVCache(1, 1, 260, 1, 2, torch.float32, CPU)
    plan = Planner(kv_cache).plan(PackLayout((0,), tail=(token,)))
    found = seen(plan.sees, 260)
    assert found.shape == (1, 260)
    assert found[0].nonzero()[:, 0].tolist() == sorted(own_entries(token))


def test_tokens_of_one_plan_need_not_need_the_same_words() -> None:
    tail = (*branching(0, 20, 9, ((0,), (1,))), TailToken(0, 180, 10, (20, 180), 9))
    kv_cache = KVCache(1, 1, 200, 1, 2, torch.float32, CPU)
    plan = Planner(kv_cache).plan(PackLayout((0,), tail=tail))
    for row, token in zip(seen(plan.sees, 200), tail, strict=True):
        assert row.nonzero()[:, 0].tolist() == sorted(own_entries(token))


def test_layers_attend_to_their_own_entries() -> None:
    case = Case(PackLayout((0,), tail=chain(1, 5, 2)), 2, 24, Heads(2, 1), 8, 3)
    kv_cache, plan, q = case.made(torch.float32)
    attend = TorchTail(kv_cache, plan)
    first, second = attend(0, q, 0.3), attend(1, q, 0.3)
    assert not torch.allclose(first, second)
    kv_cache.both[0].copy_(kv_cache.both[1])
    torch.testing.assert_close(attend(0, q, 0.3), second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_everything_lies_where_the_ring_lies(dtype: torch.dtype) -> None:
    """A plan, its masks, what is attended: nothing is made on the CPU by the way."""
    tree = branching(1, 9, 9, ((0,), (1,), (1, 2)))
    layout = PackLayout((0,), 4, 0, (*tree, *chain(2, 3, 1)))
    kv_cache = KVCache(2, 3, 24, 2, 8, dtype, META)
    assert kv_cache.device == META
    plan = Planner(kv_cache).plan(layout)
    for part in (plan.flat, plan.positions, plan.sees):
        assert part.device == META
    assert seen(plan.sees, 24).device == META
    q, kv = torch.empty(8, 4, 8, dtype=dtype, device=META), (8, 2, 8)
    k, v = (torch.empty(kv, dtype=dtype, device=META) for _ in range(2))
    out = PackedAttention(kv_cache, plan)(1, q, k, v, 0.3)
    assert (out.shape, out.device, out.dtype) == (q.shape, META, dtype)
    attend = TorchTail(kv_cache, plan)
    for part in (attend._mask, attend._cells, attend._tokens):
        assert part is not None and part.device == META
    assert attend._mask.dtype == dtype
