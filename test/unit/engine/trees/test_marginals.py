"""What is learned of a stream for draft trees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.engine.trees.marginals import TemporalMarginals, kind_of

WINDOW = range(100, 150)


def learned(stream: list[list[int]], **options: object) -> TemporalMarginals:
    found = TemporalMarginals(len(stream[0]), WINDOW, **options)  # type: ignore[arg-type]
    for before, last, own in zip([[], *stream], stream, stream[1:], strict=False):
        found.update(last, before, own, found.alternatives(last, before))
    return found


def test_before_anything_is_seen_the_nearest_bins_come_first():
    there = TemporalMarginals(2, WINDOW).alternatives([120, 100], [])
    assert there[0][0] == 120
    assert set(there[0][:5]) == {118, 119, 120, 121, 122}
    assert there[1][:3] == [100, 101, 102]  # at the edge there is one side only


def test_a_steady_motion_is_expected_to_go_on_and_rest_to_last():
    moving = [[100 + 3 * n] for n in range(14)]
    found = learned([*moving, *[[139]] * 12])
    assert found.alternatives([120], [117])[0][0] == 123
    assert found.alternatives([120], [120])[0][0] == 120
    assert found.alternatives([120], [123])[0][0] == 120  # the other way it was never seen to go


def test_the_rank_that_is_right_shapes_the_trees():
    """A place that never changes is sure; one that jumps at random is not."""
    rng = np.random.default_rng(0)
    found = learned([[120, int(rng.integers(100, 150))] for _ in range(200)])
    sure, wild = found.chances
    assert sure[0] > 0.9
    assert wild[0] < 0.2
    for level in found.chances:
        assert level == sorted(level, reverse=True)
        assert 0.0 < sum(level) <= 1.0 + 1e-9


def test_what_is_no_bin_is_only_repeated():
    found = learned([[7, 120], [7, 121], [120, 7], [7, 7]])
    assert set(found.alternatives([7, 120], [7, 120])[0]) == {7}
    assert len(found.alternatives([7, 120], [7, 120])[1]) == 16


def test_forgetting_is_beginning_anew():
    found = learned([[100 + 3 * n] for n in range(14)])
    found.forget()
    fresh = TemporalMarginals(1, WINDOW)
    assert found.chances == fresh.chances
    assert found.alternatives([120], [117]) == fresh.alternatives([120], [117])


@given(st.lists(st.lists(st.integers(90, 149), min_size=2, max_size=2), min_size=1, max_size=20))
def test_alternatives_are_bins_and_none_comes_twice(stream):
    found = learned(stream)
    for token, options in zip(stream[-1], found.alternatives(stream[-1], []), strict=True):
        if token in WINDOW:
            assert len(set(options)) == len(options) == 16
            assert set(options) <= set(WINDOW)


@given(st.integers(100, 149), st.integers(1, 3))
def test_where_near_is_enough_alternatives_cover_what_others_do_not(token, reach):
    found = TemporalMarginals(2, WINDOW, lambda position: 0 if position else reach)
    wide, exact = found.alternatives([token, token], [])
    covered = {bin for a in wide[:4] for bin in range(a - reach, a + reach + 1)} & set(WINDOW)
    assert len(covered) > len(set(exact[:4]))


@pytest.mark.parametrize(("moved", "kind"), [(0, 0), (-4, 1), (-5, 2), (4, 3), (90, 4)])
def test_kinds_of_motion(moved, kind):
    assert kind_of(moved) == kind
