"""What a policy that knows its age is told of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.runtime.control.bench import Bench
from unit.runtime.control.test_queue_delays import answer
from vla_ros.core.action_space import END_EFFECTOR_DELTA
from vla_ros.core.clock import SECOND
from vla_ros.runtime.control.queue import ActionQueue, Chunking, Lateness
from vla_ros.runtime.control.requests import RecordedRequest, RecordedRequests
from vla_ros.runtime.safety import Limits

T = 0.05
PERIOD = round(T * SECOND)


def told(bench: Bench) -> int:
    return bench.out.submitted[-1][0].delay_steps


def late(bench: Bench, periods: float) -> None:
    """A frame whose action is executed so many periods later."""
    observation = bench.frame()
    bench.clock.advance(periods * T)
    bench.answer(observation)
    bench.control.tick()


@pytest.mark.parametrize("periods", [0.0, 0.4, 1.6, 3.0])
def test_it_is_told_how_late_its_actions_are_executed(periods: float) -> None:
    bench = Bench(limits=Limits(max_age_s=2.0), max_delay=8).ready()
    whole, rest = int(periods), periods % 1.0
    frames = []
    for number in range(12 + whole):  # every period an answer, to a frame so many periods ago
        frames.append(bench.frame())
        bench.clock.advance(rest * T)
        if number >= whole:
            bench.answer(frames[number - whole])
        bench.control.tick()
        bench.clock.advance((1.0 - rest) * T)
    bench.frame()
    assert told(bench) == round(periods)


def executed(line: ActionQueue, period: float, age: float) -> None:
    """In that period an action goes out whose observation is so many periods old."""
    now_ns = round(period * PERIOD)
    line.put(answer(now_ns - round(age * PERIOD), 1))
    assert line.take(now_ns, Limits(max_age_s=2.0)) is not None
    line.begin()
    line.executed(now_ns, unchanged=True)


def single() -> ActionQueue:
    return ActionQueue(Chunking(), END_EFFECTOR_DELTA, chunk_length=1)


def test_periods_in_which_the_robot_stood_are_no_delay() -> None:
    """A machine that has an answer in two periods of three: 4 periods late, 2 or 3 of motion."""
    line = single()
    for period in (n for n in range(100, 130) if n % 3):
        executed(line, period, 4)
    assert line.delay_steps == 3


def test_who_waits_for_every_answer_is_told_of_no_delay() -> None:
    line = single()
    for number in range(12):
        executed(line, 100 + 4 * number, 3)
    assert line.delay_steps == 0


def test_the_first_actions_tell_how_late_those_in_motion_will_be() -> None:
    line = single()
    executed(line, 100, 5)
    assert line.delay_steps == 5
    for period in range(101, 110):
        executed(line, period, 5)
        assert line.delay_steps == 5
    line.break_off(110 * PERIOD)  # stood still
    executed(line, 150, 5)
    executed(line, 151, 5)
    assert line.delay_steps == 5


def test_before_anything_was_seen_it_is_what_the_pipeline_and_the_model_take() -> None:
    bench = Bench(
        limits=Limits(max_age_s=2.0), max_delay=8, pipeline_depth=7, inference_s=0.04
    ).ready()
    bench.frame()
    assert told(bench) == 7


def test_it_is_not_told_of_more_than_it_was_trained_for() -> None:
    bench = Bench(limits=Limits(max_age_s=2.0), max_delay=2, pipeline_depth=7).ready()
    bench.frame()
    assert told(bench) == 2


def test_it_is_told_what_a_parameter_says() -> None:
    how = Chunking(conditioning_delay_steps=3)
    bench = Bench(limits=Limits(max_age_s=2.0), max_delay=8, chunking=how).ready()
    for _ in range(3):
        late(bench, 0.0)
        bench.clock.advance(T)
    bench.frame()
    assert told(bench) == 3


@pytest.mark.parametrize("conditioning_delay", [0, 3])
def test_an_action_made_for_the_moment_it_is_executed_in_is_not_stale(
    conditioning_delay: int,
) -> None:
    bench = Bench(limits=Limits(max_age_s=2.0), max_delay=8).ready()
    observation = bench.frame()
    bench.clock.advance(3 * T)
    bench.answer(observation, conditioning_delay=conditioning_delay)
    bench.control.tick()
    command = bench.out.commands[-1]
    assert command.published_ns - command.stamp_ns == 3 * PERIOD, "as old as ever"
    assert command.staleness_ns == (3 - conditioning_delay) * PERIOD


def test_what_is_told_again_is_what_was_told() -> None:
    bench = Bench(limits=Limits(max_age_s=2.0), max_delay=2).ready()
    for asked, heard in ((1, 1), (5, 2)):  # another checkpoint may know of less
        bench.control.requests.recorded = RecordedRequests(
            [RecordedRequest(bench.clock.now, None, asked)]
        )
        bench.frame()
        assert told(bench) == heard
        bench.clock.advance(T)


def test_a_policy_that_knows_of_no_delay_is_told_of_none() -> None:
    bench = Bench(limits=Limits(max_age_s=2.0), pipeline_depth=7).ready()
    for _ in range(3):
        late(bench, 2.0)
    bench.frame()
    assert told(bench) == 0


@given(ages=st.lists(st.integers(-PERIOD, 20 * PERIOD), max_size=30), window=st.integers(1, 12))
def test_one_late_action_changes_nothing_and_a_new_delay_is_learned(
    ages: list[int], window: int
) -> None:
    lateness = Lateness(window, 5)
    assert lateness.steps == 5
    for age in ages:
        lateness.add(age, PERIOD)
    for _ in range(window):
        lateness.add(3 * PERIOD, PERIOD)
    assert lateness.steps == 3
    if window > 2:
        lateness.add(19 * PERIOD, PERIOD)
        assert lateness.steps == 3
