"""Draft trees as arithmetic: against brute force and against simulation."""

from __future__ import annotations

from functools import reduce
from itertools import combinations, product
from operator import mul

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_ros.engine.decoding.draft_tree import (
    ROOT,
    Budget,
    Cost,
    DraftTree,
    branches,
    children,
    due,
    likeliest,
    passes_from,
    paying,
    plan_trees,
)


def falling(values: list[float]) -> list[float]:
    """A level: chances that fall and whose sum is at most 1."""
    total = max(1.0, sum(values))
    return sorted((value / total for value in values), reverse=True)


LEVEL = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4).map(falling)
MARGINALS = st.lists(LEVEL, min_size=1, max_size=5)


@given(marginals=MARGINALS, nodes=st.integers(0, 12))
def test_no_tree_of_as_many_nodes_is_likelier(marginals, nodes):
    """Its chances are the largest of all paths: every other tree is at most as likely in sum."""
    tree = likeliest(marginals, nodes)
    every = sorted(
        (
            reduce(mul, (marginals[i][r] for i, r in enumerate(path)))
            for depth in range(1, len(marginals) + 1)
            for path in product(*(range(len(level)) for level in marginals[:depth]))
        ),
        reverse=True,
    )
    assert len(tree) == min(nodes, len(every))
    assert sorted(tree.chances(marginals), reverse=True) == pytest.approx(every[: len(tree)])
    edges = list(zip(tree.parents, tree.ranks, strict=True))
    assert len(set(edges)) == len(edges)


def test_levels_branches_children_and_cuts():
    tree = DraftTree((ROOT, ROOT, 0, 2, 1), (0, 1, 0, 3, 2))
    assert tree.levels == (1, 1, 2, 3, 2)
    assert branches(tree.parents) == [(0,), (1,), (0, 2), (0, 2, 3), (1, 4)]
    assert children(tree.parents) == {ROOT: [0, 1], 0: [2], 1: [4], 2: [3]}
    assert tree.cut(2) == DraftTree((ROOT, ROOT, 0, 1), (0, 1, 0, 2))
    # A node goes with its parent, wanted or not.
    assert tree.only([False, True, True, True, True]) == DraftTree((ROOT, 0), (1, 2))


@pytest.mark.parametrize(
    ("parents", "ranks"), [((0,), (0,)), ((ROOT, 2, 0), (0, 0, 0)), ((), (1,))]
)
def test_what_is_no_tree_is_refused(parents, ranks):
    with pytest.raises(ValueError, match=r"before its parent|parents for"):
        DraftTree(parents, ranks)


@settings(max_examples=30, deadline=None)
@given(marginals=MARGINALS, prompt=st.integers(0, 9), alone=st.integers(0, 9), seed=st.integers(0))
def test_expected_passes_are_those_of_a_simulation(marginals, prompt, alone, seed):
    """Tokens drawn from the marginals, walked down the planned trees."""
    plan = plan_trees(marginals, Budget(prompt, alone))
    rng, count, samples = np.random.default_rng(seed), len(marginals) + 1, 2000
    drawn = np.stack(
        [
            rng.choice(len(level) + 1, samples, p=[*level, max(0.0, 1.0 - sum(level))])
            for level in [[p / max(1.0, sum(lv)) for p in lv] for lv in marginals]
        ],
        axis=1,
    )
    places = [
        {edge: n for n, edge in enumerate(zip(t.parents, t.ranks, strict=True))} for t in plan.trees
    ]
    passes = []
    for ranks in drawn.tolist():
        known = taken = 0
        while known < count:
            node, stood = ROOT, 0
            while known + stood < count - 1 and (node, ranks[known + stood]) in places[known]:
                node = places[known][node, ranks[known + stood]]
                stood += 1
            known, taken = known + stood + 1, taken + 1
        passes.append(taken)
    # What no sample showed may still happen, once in samples / 10, and cost up to `count` passes.
    slack = 4.0 * np.std(passes) / samples**0.5 + 10.0 * count / samples
    assert plan.passes == pytest.approx(np.mean(passes), abs=slack)


def test_a_chain_is_the_tree_of_one_branch():
    """1 + the sum of the misses: what chains redrafted after every miss take."""
    hits = [0.32, 0.40, 0.21, 0.82, 0.62, 0.61]
    plan = plan_trees([[hit] for hit in hits], Budget(6, 6))
    assert plan.passes == pytest.approx(1 + sum(1 - hit for hit in hits))
    assert [len(tree) for tree in plan.trees] == [6, 5, 4, 3, 2, 1]
    assert plan_trees([[hit] for hit in hits], Budget(0, 0)).passes == 7


@settings(max_examples=60, deadline=None)
@given(
    marginals=st.lists(LEVEL, min_size=1, max_size=3),
    draft=st.floats(0.0, 0.3),
    node=st.floats(0.001, 0.3),
)
def test_no_part_of_a_tree_saves_more_than_the_one_that_is_kept(marginals, draft, node):
    expected = plan_trees(marginals, Budget(3, 3)).expected
    tree, cost = likeliest(marginals, 7), Cost(draft, node)

    def saved(part: DraftTree) -> float:
        sums = [1.0] + [0.0] * len(marginals)
        for level, chance in zip(part.levels, part.chances(marginals), strict=True):
            sums[level] += chance
        without = 1.0 + expected[1]
        spent = draft + node * len(part) if len(part) else 0.0
        return without - passes_from(0, sums[: max(part.levels, default=0) + 1], expected) - spent

    kept = paying(tree, marginals, expected, cost)
    parts = [
        tree.only([n in chosen for n in range(len(tree))])
        for size in range(len(tree) + 1)
        for chosen in combinations(range(len(tree)), size)
    ]
    assert saved(kept) == pytest.approx(max(map(saved, parts)), abs=1e-9)


def test_dear_nodes_are_left_out_and_sizes_come_in_steps():
    marginals = [[0.5, 0.2, 0.1]] * 6
    dear = plan_trees(marginals, Budget(), Cost(0.08, 0.3), Cost(0.08, 0.9))
    assert [len(tree) for tree in dear.trees] == [1, 0, 0, 0, 0, 0]
    cheap = plan_trees(marginals, Budget(24, 64, 8), Cost(0.0, 0.01), Cost(0.0, 0.01))
    sizes = [len(tree) for tree in cheap.trees]
    assert all(size % 8 == 0 for size in sizes[:4])  # later ones have fewer alternatives
    assert 8 <= sizes[0] <= 24
    assert cheap.passes < dear.passes


def test_shapes_are_looked_at_soon_and_then_rarely():
    assert [n for n in range(100) if due(n)] == [0, 1, 2, 4, 8, 16, 32, 64, 96]
