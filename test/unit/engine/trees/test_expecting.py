"""What an answer is expected to be: the last one, shifted, and the step before."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from vla_ros.engine.trees.expecting import Expecting

#: three steps of two tokens, and what was said three steps later with one step in common
FIRST = [10, 20, 11, 21, 12, 22]


def chunks() -> Expecting:
    found = Expecting(2, 3)
    found.begin(1)
    found.observe(FIRST)
    return found


def test_of_a_single_action_it_is_the_last_one() -> None:
    found = Expecting(3)
    assert found.look([], 0, 3) == ((), ())
    found.observe([1, 2, 3])
    assert found.look([], 1, 3) == ((2, 3), ())
    found.observe([4, 5, 6])
    assert found.look([9], 1, 3) == ((5, 6), (2, 3))
    found.forget()
    assert found.look([], 0, 3) == ((), ())


def test_the_last_chunk_is_shifted_by_what_was_executed_since() -> None:
    found = chunks()
    found.begin(2, (1, 1))
    last, before = found.look([], 0, 6)
    assert last == [11, 21, 12, 22, 12, 22]  # behind its end the step before
    assert before == [10, 20, 11, 21, 11, 21]
    # Behind the end of the old chunk the step before may be known by now, and differ.
    assert found.look([11, 21, 5, 6], 4, 6) == ([5, 6], [11, 21])
    assert found.look([11, 21, 5], 3, 6) == ([22, 5, 22], [21, 11, 21])


def test_what_the_step_before_was_off_by_goes_on() -> None:
    found = Expecting(2, 3, range(24))
    found.observe(FIRST)
    found.begin(1, (0, 1))
    assert found.look([12], 1, 6)[0] == [21, 13, 22, 13, 22]  # one off, of the first dimension
    assert found.look([11, 23], 2, 6)[0] == [12, 22, 12, 22]  # 24 would be no bin
    found = Expecting(2, 3, range(99))
    found.observe(FIRST)
    found.begin(1, (0, 1))
    assert found.look([11, 60], 2, 4)[0] == [12, 22]  # a gripper that opens: nothing goes on


def test_it_goes_on_from_the_chunk_that_is_executed_not_from_the_newest() -> None:
    found = chunks()
    found.begin(2, (1, 1))
    found.observe([50, 60, 51, 61, 52, 62])
    found.begin(3, (1, 2))
    assert found.look([], 0, 2)[0] == [12, 22]
    found.begin(3, (2, 2))
    assert found.look([], 0, 2)[0] == [52, 62]


def test_where_nobody_says_the_shift_is_what_was_right_of_late() -> None:
    found = chunks()
    found.begin(2)
    assert found.look([], 0, 4)[0] == [12, 22, 12, 22]  # nothing compared yet: all was executed
    found.observe([12, 22, 13, 23, 14, 24])  # it went on two steps later
    assert found.shift == 2
    found.begin(3)
    assert found.look([], 0, 4)[0] == [14, 24, 14, 24]
    found.forget()
    assert found.shift == 2
    found.forget(learned=True)
    assert found.shift == 3


def test_the_first_chunk_is_drafted_from_its_own_steps() -> None:
    found = Expecting(2, 3)
    found.begin(1)
    assert found.look([], 0, 6) == ((), ())
    assert found.look([7], 1, 6) == ((), ())
    assert found.look([7, 8], 2, 6) == ([7, 8, 7, 8], [7, 8, 7, 8])
    assert found.look([7, 8, 9], 3, 6)[0] == [8, 9, 8]


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
    found = Expecting(dim, steps)
    found.observe(old)
    found.begin(1, (0, row))
    known = data.draw(st.integers(0, dim * steps - 1))
    last, before = found.look(own[:known], known, dim * steps)
    assert list(last) == own[known:]
    assert len(before) == len(last)
