"""Tails of packs as hypothesis draws them: chains and trees in some slots of a KV cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from vla_ros.engine.decoding.draft_tree import ROOT, branches
from vla_ros.engine.layers.kernels.fused import Heads
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.pack import PackLayout, Plan, Planner, TailToken, branching, chain


@dataclass(frozen=True, slots=True)
class Case:
    """A layout over a KV cache of so many slots and entries."""

    layout: PackLayout
    slots: int
    entries: int
    heads: Heads
    dim: int
    seed: int

    def made(self, dtype: torch.dtype) -> tuple[KVCache, Plan, torch.Tensor]:
        """The KV cache with something in every entry, the plan, and queries [tail, H, D]: a part of
        something wider, as behind a fused projection."""
        random = torch.Generator().manual_seed(self.seed)
        kv_cache = KVCache(
            2, self.slots, self.entries, self.heads.kv, self.dim, dtype, torch.device("cpu")
        )
        for both in kv_cache.both:
            both.copy_(torch.randn(both.shape, generator=random))
        total = self.heads.query + 2 * self.heads.kv
        qkv = torch.randn(len(self.layout.tail), total, self.dim, generator=random).to(dtype)
        return kv_cache, Planner(kv_cache).plan(self.layout), qkv[:, : self.heads.query]

    def token_by_token(self, kv_cache: KVCache, q: torch.Tensor, scale: float) -> torch.Tensor:
        """By the layout alone, in the plainest way."""
        group, out = self.heads.query // self.heads.kv, []
        for token, mine in zip(self.layout.tail, q, strict=True):
            entries = sorted(own_entries(token))
            k, v = (
                part[token.slot][:, entries].to(q).repeat_interleave(group, 0)
                for part in (kv_cache.keys[0], kv_cache.values[0])
            )
            scores = torch.einsum("hd,hed->he", mine, k) * scale
            out.append(torch.einsum("he,hed->hd", scores.softmax(-1), v))
        return torch.stack(out)


def own_entries(token: TailToken) -> set[int]:
    """The entries of its slot that a token sees."""
    if token.sees is None:
        return set(range(token.index + 1))
    return set(range(token.trunk)) | set(token.sees)


@st.composite
def cases(draw: st.DrawFn, dims: tuple[int, ...] = (8, 16), most: int = 90) -> Case:
    """A tail in one slot or several, each with a chain, or a token and a tree behind it."""
    slots = draw(st.integers(1, 4))
    entries = draw(st.integers(24, most))
    tail: list[TailToken] = []
    for slot in draw(st.lists(st.integers(0, slots - 1), min_size=1, unique=True)):
        start = draw(st.integers(0, entries - 14))
        root = chain(slot, start, draw(st.integers(1, 6)))
        nodes = draw(st.integers(0, 8)) if len(root) == 1 else 0
        parents = tuple(draw(st.integers(ROOT, node - 1)) for node in range(nodes))
        trunk = draw(st.integers(0, start + 1))  # a prompt's padding may lie between
        tail += [*root, *branching(slot, start + 1, trunk, branches(parents))]
    kv = draw(st.sampled_from((1, 2)))
    heads = Heads(kv * draw(st.sampled_from((1, 2, 7))), kv)
    return Case(
        PackLayout((0,), tail=tuple(tail)), slots, entries, heads, draw(st.sampled_from(dims)),
        draw(st.integers(0, 99)),
    )  # fmt: skip
