"""What an answer is expected to be, and the alternatives: shifted chunks, counted moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_ros.engine.decoding.draft_tree import Budget, plan_trees
from vla_ros.engine.decoding.temporal_prediction import (
    TemporalMarginals,
    TemporalPredictor,
    kind_of,
)

#: three steps of two tokens, and what was said three steps later with one step in common
FIRST = [10, 20, 11, 21, 12, 22]


def chunks() -> TemporalPredictor:
    found = TemporalPredictor(2, 3)
    found.begin(1)
    found.observe(FIRST)
    return found


def test_of_a_single_action_it_is_the_last_one() -> None:
    found = TemporalPredictor(3)
    assert found.predict([], 0, 3) == ((), ())
    found.observe([1, 2, 3])
    assert found.predict([], 1, 3) == ((2, 3), ())
    found.observe([4, 5, 6])
    assert found.predict([9], 1, 3) == ((5, 6), (2, 3))
    found.forget()
    assert found.predict([], 0, 3) == ((), ())


def test_the_last_chunk_is_shifted_by_what_was_executed_since() -> None:
    found = chunks()
    found.begin(2, (1, 1))
    last, before = found.predict([], 0, 6)
    assert last == [11, 21, 12, 22, 12, 22]  # behind its end the step before
    assert before == [10, 20, 11, 21, 11, 21]
    # Behind the end of the old chunk the step before may be known by now, and differ.
    assert found.predict([11, 21, 5, 6], 4, 6) == ([5, 6], [11, 21])
    assert found.predict([11, 21, 5], 3, 6) == ([22, 5, 22], [21, 11, 21])


def test_what_the_step_before_was_off_by_goes_on() -> None:
    found = TemporalPredictor(2, 3, range(24))
    found.observe(FIRST)
    found.begin(1, (0, 1))
    assert found.predict([12], 1, 6)[0] == [21, 13, 22, 13, 22]  # one off, of the first dimension
    assert found.predict([11, 23], 2, 6)[0] == [12, 22, 12, 22]  # 24 would be no bin
    found = TemporalPredictor(2, 3, range(99))
    found.observe(FIRST)
    found.begin(1, (0, 1))
    assert found.predict([11, 60], 2, 4)[0] == [12, 22]  # a gripper that opens: nothing goes on


def test_it_goes_on_from_the_chunk_that_is_executed_not_from_the_newest() -> None:
    found = chunks()
    found.begin(2, (1, 1))
    found.observe([50, 60, 51, 61, 52, 62])
    found.begin(3, (1, 2))
    assert found.predict([], 0, 2)[0] == [12, 22]
    found.begin(3, (2, 2))
    assert found.predict([], 0, 2)[0] == [52, 62]


def test_where_nobody_says_the_shift_is_what_was_right_of_late() -> None:
    found = chunks()
    found.begin(2)
    assert found.predict([], 0, 4)[0] == [12, 22, 12, 22]  # nothing compared yet: all was executed
    found.observe([12, 22, 13, 23, 14, 24])  # it went on two steps later
    assert found.shift == 2
    found.begin(3)
    assert found.predict([], 0, 4)[0] == [14, 24, 14, 24]
    found.forget()
    assert found.shift == 2
    found.forget(learned=True)
    assert found.shift == 3


def test_the_first_chunk_is_drafted_from_its_own_steps() -> None:
    found = TemporalPredictor(2, 3)
    found.begin(1)
    assert found.predict([], 0, 6) == ((), ())
    assert found.predict([7], 1, 6) == ((), ())
    assert found.predict([7, 8], 2, 6) == ([7, 8, 7, 8], [7, 8, 7, 8])
    assert found.predict([7, 8, 9], 3, 6)[0] == [8, 9, 8]


@given(st.data())
@settings(deadline=None)
def test_an_answer_that_goes_on_as_expected_is_expected_whole(data: st.DataObject) -> None:
    """Whatever the shift and however much is known, what comes is what was said before."""
    dim, steps = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 5))
    token = st.integers(0, 99)
    old = data.draw(st.lists(token, min_size=dim * steps, max_size=dim * steps))
    row = data.draw(st.integers(0, steps))
    own = old[row * dim :]
    while len(own) < dim * steps:
        own = own + (own or old)[-dim:]
    found = TemporalPredictor(dim, steps)
    found.observe(old)
    found.begin(1, (0, row))
    known = data.draw(st.integers(0, dim * steps - 1))
    last, before = found.predict(own[:known], known, dim * steps)
    assert list(last) == own[known:]
    assert len(before) == len(last)


WINDOW = range(100, 150)


def learned(stream: list[list[int]], **options: object) -> TemporalMarginals:
    found = TemporalMarginals(len(stream[0]), WINDOW, **options)  # type: ignore[arg-type]
    for before, last, own in zip([[], *stream], stream, stream[1:], strict=False):
        found.update(last, before, own, found.candidates(last, before).tokens)
    return found


def test_before_anything_is_seen_the_nearest_bins_come_first():
    there = TemporalMarginals(2, WINDOW).candidates([120, 100], []).tokens
    assert there[0][0] == 120
    assert set(there[0][:5]) == {118, 119, 120, 121, 122}
    assert there[1][:3] == (100, 101, 102)  # at the edge there is one side only


def test_a_steady_motion_is_expected_to_go_on_and_rest_to_last():
    moving = [[100 + 3 * n] for n in range(14)]
    found = learned([*moving, *[[139]] * 12])
    assert found.candidates([120], [117]).tokens[0][0] == 123
    assert found.candidates([120], [120]).tokens[0][0] == 120
    assert (
        found.candidates([120], [123]).tokens[0][0] == 120
    )  # the other way it was never seen to go


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
    assert set(found.candidates([7, 120], [7, 120]).tokens[0]) == {7}
    assert len(found.candidates([7, 120], [7, 120]).tokens[1]) == 16


def test_forgetting_is_beginning_anew():
    found = learned([[100 + 3 * n] for n in range(14)])
    found.forget()
    fresh = TemporalMarginals(1, WINDOW)
    assert found.chances == fresh.chances
    assert found.candidates([120], [117]).tokens == fresh.candidates([120], [117]).tokens


@given(st.lists(st.lists(st.integers(90, 149), min_size=2, max_size=2), min_size=1, max_size=20))
def test_alternatives_are_bins_and_none_comes_twice(stream):
    found = learned(stream)
    for token, options in zip(stream[-1], found.candidates(stream[-1], []).tokens, strict=True):
        if token in WINDOW:
            assert len(set(options)) == len(options) == 16
            assert set(options) <= set(WINDOW)


@given(st.integers(100, 149), st.integers(1, 3))
def test_where_near_is_enough_alternatives_cover_what_others_do_not(token, tolerance):
    found = TemporalMarginals(2, WINDOW, lambda position: 0 if position else tolerance)
    wide, exact = found.candidates([token, token], []).tokens
    around = range(-tolerance, tolerance + 1)
    covered = {best + off for best in wide[:4] for off in around} & set(WINDOW)
    assert len(covered) > len(set(exact[:4]))


@pytest.mark.parametrize(("moved", "kind"), [(0, 0), (-4, 1), (-5, 2), (4, 3), (90, 4)])
def test_kinds_of_motion(moved, kind):
    assert kind_of(moved) == kind


@pytest.mark.parametrize("reach", [0, 2, 7, 8, 9, 10, 15, 40, 127])
def test_no_alternative_is_named_twice_however_much_each_covers(reach: int) -> None:
    """With 9 bins on either side 14 alternatives cover all 256, and there are 16 ranks."""
    window = range(704, 960)
    made = TemporalMarginals(3, window, lambda place: reach)
    for last in (704, 832, 959):
        (tokens, *_), (chances, *_) = (
            getattr(made.candidates([last] * 3, [last] * 3), name) for name in ("tokens", "chances")
        )
        assert len(set(tokens)) == len(tokens) == 16
        assert all(token in window for token in tokens)
        if reach < 8:
            assert min(chances) > 0
        else:
            assert sum(chances) == pytest.approx(1.0)
    most = -(-256 // (2 * reach + 1))
    for ranked in made.chances:
        assert all(chance > 0 for chance in ranked[:most])
        assert not any(ranked[2 * most + 1 :]), "a tree has no node for what nothing is left of"


def test_a_tree_of_wide_alternatives_holds_none_twice() -> None:
    made = TemporalMarginals(2, range(704, 960), lambda place: 15)
    shape = plan_trees(made.chances[:1], Budget(24, 64)).trees[0]
    tokens = made.candidates([832, 832], [832, 832]).tokens[0]
    held = [tokens[rank] for rank in shape.ranks]
    assert len(held) == len(set(held)) >= 8
