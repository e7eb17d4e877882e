"""Every way to attend is one attention: that of each token over what it sees, in plain sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.engine import CPU
from support.tails import own_entries
from vla_ros.engine.layers.attention import (
    Attention,
    CpuAttention,
    PackedAttention,
    _runs,
    prefill,
)
from vla_ros.engine.layers.kernels.fused import (
    Heads,
    rope_write_reference,
    signed,
    split_rotated,
)
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.pack import PackLayout, Plan, Planner, branching, chain

HEADS, DIM, SCALE = Heads(4, 2), 8, 0.3
WAYS: dict[str, Callable[[KVCache, Plan], PackedAttention]] = {
    "packed": PackedAttention,
    "on a CPU": CpuAttention,
    "with a kernel": partial(PackedAttention, rope_write=rope_write_reference),
    "with a kernel on a CPU": partial(CpuAttention, rope_write=rope_write_reference),
}
TREE = ((0,), (1,), (1, 2), (0, 3), (1, 2, 4))
LAYOUTS = {
    "a prefill": PackLayout((0,), 7, 1),
    "a prefill that sees all of itself": PackLayout((0,), 7, 1, causal=False),
    "a single token": PackLayout((0,), tail=chain(2, 9, 1)),
    "a chain": PackLayout((0,), tail=chain(1, 9, 4)),
    "a prefill and a chain behind it": PackLayout((0,), 7, 1, chain(1, 7, 3)),
    "a padded prefill and a chain behind it": PackLayout((0,), 7, 1, chain(1, 9, 3), pad=2),
    "a prefill, a chain and single tokens": PackLayout(
        (0,), 5, 0, (*chain(2, 6, 3), *chain(1, 19, 1), *chain(3, 4, 1), *chain(0, 5, 1))
    ),
    "single tokens of all": PackLayout(
        (0,), tail=tuple(t for slot in (3, 1, 0, 2) for t in chain(slot, 5 + slot, 1))
    ),
    "a tree": PackLayout((0,), tail=branching(1, 12, 9, TREE)),
    "a chain and a tree further behind": PackLayout(
        (0,), tail=(*chain(1, 9, 1), *branching(1, 12, 10, ((0,), (0, 1))))
    ),
    "two slots, in one of them a gap": PackLayout(
        (0,), tail=(*chain(0, 3, 1), *chain(1, 5, 1), *branching(1, 8, 6, ((0,),)))
    ),
    "two slots, in the second one entry further": PackLayout(
        (0,), tail=(*chain(0, 5, 1), *chain(1, 6, 1))
    ),
    "a node in the entry before": PackLayout(
        (0,), tail=(*chain(1, 9, 1), *branching(1, 8, 5, ((0,),)))
    ),
    "a prompt and a tree behind it": PackLayout((0,), 6, 2, branching(2, 6, 6, TREE)),
}


def made(layout: PackLayout) -> tuple[KVCache, Plan, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A KV cache of three layers, filled, and a fused projection to attend."""
    torch.manual_seed(1)
    kv_cache = KVCache(3, 4, 24, HEADS.kv, DIM, torch.float32, CPU)
    for both in kv_cache.both:
        both.normal_()
    plan = Planner(kv_cache).plan(layout)
    count = plan.shape.prefill + plan.shape.tail
    qkv = torch.randn(count, HEADS.query + 2 * HEADS.kv, DIM)
    angles = torch.randn(count, DIM // 2).repeat(1, 2)
    return kv_cache, plan, qkv, angles.cos(), signed(angles.sin())


def by_hand(
    layout: PackLayout, kv_cache: KVCache, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """Layer 1, token by token: first all K and V lie where they belong, then each attends."""
    front, out = layout.prefill + layout.pad, []
    where = [(layout.slot, n) for n in range(front)] + [(t.slot, t.index) for t in layout.tail]
    keys, values = kv_cache.keys[1].clone(), kv_cache.values[1].clone()
    for (slot, entry), key, value in zip(where, k, v, strict=True):
        keys[slot, :, entry], values[slot, :, entry] = key, value
    sees = [set(range(n + 1 if layout.causal else front)) for n in range(front)]
    sees += [own_entries(token) for token in layout.tail]
    for (slot, _), entries, query in zip(where, sees, q, strict=True):
        own = sorted(entries)
        for head in range(HEADS.query):
            group = head // (HEADS.query // HEADS.kv)
            chances = (keys[slot, group, own] @ query[head] * SCALE).softmax(0)
            out.append(chances @ values[slot, group, own])
    return torch.stack(out).view(len(q), HEADS.query, DIM)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_attention_token_by_token_and_what_it_leaves_in_the_ring(
    way: Callable[[KVCache, Plan], PackedAttention], layout: PackLayout
) -> None:
    kv_cache, plan, qkv, cos, sin = made(layout)
    before = [both.clone() for both in kv_cache.both]
    q, k, v = split_rotated(qkv, cos, sin, HEADS)
    wanted = by_hand(layout, kv_cache, q, k, v)
    attention = way(kv_cache, plan)
    torch.testing.assert_close(attention(1, q, k, v, SCALE), wanted)
    after = [both.clone() for both in kv_cache.both]
    assert torch.equal(after[0], before[0]) and torch.equal(after[2], before[2])
    kv_cache.both[1].copy_(before[1])
    got = attention.from_qkv(1, qkv.clone(), cos, sin, HEADS, SCALE)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(kv_cache.both[1], after[1])
    assert torch.equal(kv_cache.both[0], before[0]) and torch.equal(kv_cache.both[2], before[2])
    changed = (after[1] != before[1]).any(-1).any(0).any(1)  # [slots, entries]
    entries = {(layout.slot, n) for n in range(layout.prefill + layout.pad)}
    entries |= {(token.slot, token.index) for token in layout.tail}
    assert {(int(slot), int(entry)) for slot, entry in changed.nonzero()} == entries


@pytest.mark.parametrize("kind", [PackedAttention, CpuAttention])
def test_the_kernel_that_was_given_is_what_rotates_and_writes(
    kind: type[PackedAttention],
) -> None:
    kv_cache, plan, qkv, cos, sin = made(LAYOUTS["a chain"])
    asked = []

    def kernel(*given: Any) -> Any:
        asked.append(given)
        return rope_write_reference(*given)

    kind(kv_cache, plan, kernel).from_qkv(1, qkv, cos, sin, HEADS, SCALE)
    ((*_, entries, where, heads),) = asked
    assert (entries[0] is kv_cache.keys[1], entries[1] is kv_cache.values[1], heads) == (
        True,
        True,
        HEADS,
    )
    assert (where[0] is plan.slot, where[1] is plan.index) == (True, True)


class Recorded(Attention):
    """Somebody else's attention, which knows only the plain call."""

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        self.given = layer, q, k, v, scale
        return q + 1


def test_an_attention_that_knows_no_fused_projection_is_given_its_parts() -> None:
    _, _, qkv, cos, sin = made(LAYOUTS["a prefill"])
    attention = Recorded()
    out = attention.from_qkv(2, qkv, cos, sin, HEADS, SCALE)
    layer, *parts, scale = attention.given
    assert (layer, scale) == (2, SCALE)
    for got, wanted in zip(parts, split_rotated(qkv, cos, sin, HEADS), strict=True):
        torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(out, parts[0] + 1)


@pytest.mark.parametrize("kv", [1, 2, 4])
def test_a_prefill_is_scaled_masked_and_grouped(kv: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(6, 4, DIM), torch.randn(6, kv, DIM), torch.randn(6, kv, DIM)
    for scale in (0.1, 2.0):
        for causal in (True, False):
            scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(4 // kv, 1)) * scale
            if causal:
                scores.masked_fill_(torch.ones(6, 6).triu(1).bool(), float("-inf"))
            wanted = torch.einsum(
                "hqk,khd->qhd", scores.softmax(-1), v.repeat_interleave(4 // kv, 1)
            )
            torch.testing.assert_close(prefill(q, k, v, scale, causal), wanted)


@pytest.mark.parametrize("name", ["a chain", "a prefill, a chain and single tokens"])
def test_a_compiled_pass_has_no_slot_or_entry_of_its_plan_in_its_code(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So one compilation serves all: nothing is read from the plan while it is traced."""
    layout = LAYOUTS[name]
    kv_cache, plan, qkv, cos, sin = made(layout)
    q, k, v = split_rotated(qkv, cos, sin, HEADS)
    wanted = by_hand(layout, kv_cache, q, k, v)
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        for read in ("tolist", "item"):
            patch.setattr(torch.Tensor, read, lambda self: pytest.fail("the plan was read"))
        got = CpuAttention(kv_cache, plan)(1, q, k, v, SCALE)
    torch.testing.assert_close(got, wanted)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=8))
def test_runs_are_the_tokens_in_as_few_pieces_as_there_are(
    places: list[tuple[int, int]],
) -> None:
    """Written piece by piece, every token lies where it would lie if it were written alone."""
    runs = _runs([slot for slot, _ in places], [entry for _, entry in places])
    assert [
        (slot, entry + token - first)
        for first, behind, slot, entry in runs
        for token in range(first, behind)
    ] == places
    assert [first for first, *_ in runs[1:]] == [behind for _, behind, *_ in runs[:-1]]
    for (first, behind, slot, entry), (_, _, other, begin) in pairwise(runs):
        assert (other, begin) != (slot, entry + behind - first), "one piece was enough"
