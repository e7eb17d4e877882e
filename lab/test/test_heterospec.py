"""The cuts that make bins of an entropy, and rounds replayed on tokens that are known."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.calibrations import WINDOW
from vla_ros.engine.decoding.draft_tree import ROOT, DraftTree
from vla_ros_lab.heterospec import EMPTY, best_split, deepest, fit_thresholds, rounds, shown

# CART


def error(targets) -> float:
    return float(((targets - targets.mean()) ** 2).sum()) if len(targets) else 0.0


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(-20, 20)), max_size=40), st.integers(1, 5)
)
def test_a_cut_is_the_best_of_all_cuts(samples, least):
    samples.sort(key=lambda sample: sample[0])
    x = np.array([a for a, _ in samples], float)
    y = np.array([b for _, b in samples], float)
    places = [n for n in range(least, len(x) - least + 1) if 0 < n < len(x) and x[n - 1] < x[n]]
    errors = {n: error(y[:n]) + error(y[n:]) for n in places}
    found = best_split(x, y, least)
    if found is None:
        assert not errors or min(errors.values()) >= error(y) - 1e-6
    else:
        assert found in errors
        assert errors[found] == pytest.approx(min(errors.values()), abs=1e-6)
        assert errors[found] < error(y)


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(-9, 9)), max_size=60),
    st.integers(0, 3),
    st.integers(1, 6),
)
def test_thresholds_rise_and_leave_no_bin_thin(samples, levels, least):
    values, targets = [a for a, _ in samples], [b for _, b in samples]
    found = fit_thresholds(values, targets, levels, least)
    assert list(found) == sorted(set(found))
    assert len(found) <= 2**levels - 1
    places = [bisect_left(found, value) for value in values]
    assert all(places.count(number) >= least for number in range(len(found) + 1)) or not found


def test_steps_are_found_where_they_are():
    values = [v / 10 for v in range(80)]
    found = fit_thresholds(values, [int(v) for v in values])
    assert found == pytest.approx([1, 2, 3, 4, 5, 6, 7], abs=0.1)
    assert [bisect_left(found, v) for v in (-1, 0.5, 3.5, 99)] == [0, 0, 3, 7]
    assert fit_thresholds([1, 2, 3], [5, 5, 5]) == ()
    with pytest.raises(ValueError, match="2 values for 1"):
        fit_thresholds([1, 2], [1])


# Rounds


def test_rounds_are_those_of_speculation():
    """By hand: of two frames the first has no draft, the second is right but for its middle."""
    frames = shown([[[120, 130, 140], [120, 131, 140]]], WINDOW)
    tree = DraftTree((ROOT, 0, ROOT), (0, 0, 1))
    chain = {0: tree, 1: DraftTree((ROOT,), (0,)), 2: EMPTY}
    played = list(rounds(frames, lambda offer, known: chain[known]))
    assert [(r.known, r.stood, len(r.tree)) for r in played] == [
        (0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 1, 3), (2, 0, 0),
    ]  # fmt: skip
    drafted = played[3]
    assert drafted.rank == 1  # nothing is likelier than the first child
    missed = next(iter(rounds(frames[1:], lambda offer, known: DraftTree((ROOT,), (5,)))))
    assert (missed.node, missed.rank) == (ROOT, 2)


def test_the_deepest_node_is_that_of_the_walk():
    tree = DraftTree((ROOT, ROOT, 1, 2), (0, 1, 0, 3))
    assert deepest(tree, [1, 0, 3, 0]) == 3
    assert deepest(tree, [1, 1]) == 1
    assert deepest(tree, [2]) == deepest(tree, [-1, 0]) == deepest(EMPTY, [0]) == ROOT
