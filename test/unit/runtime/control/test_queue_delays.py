"""Delays of chunks, as the loop learns them from what it sees and tells the policy."""

import numpy as np
import pytest

from unit.runtime.control.bench import Bench
from vla_ros.core.action_space import END_EFFECTOR_DELTA
from vla_ros.core.types import Inference, Observation, PolicyInfo, Timeline
from vla_ros.runtime.control.queue import (
    ActionQueue,
    Chunking,
    Execution,
    PolicyAnswer,
    RequestBuilder,
)
from vla_ros.runtime.safety import Limits

PERIOD = 50_000_000


def loop(execution=Execution.RTC, pipeline_depth=1, **how):
    return Bench(
        chunk=12,
        pipeline_depth=pipeline_depth,
        continues=("rtc",),
        limits=Limits(max_age_s=5.0),
        chunking=Chunking(execution, **({"replan_interval": 4} | how)),
    ).ready()


def chunk_after(bench, periods):
    """A chunk that takes so long; returns what its question said of the chunk before it."""
    bench.clock.advance(0.01)
    asked = len(bench.out.submitted)
    while len(bench.out.submitted) == asked:
        bench.frame()
        if len(bench.out.submitted) == asked:
            bench.tick()
    observation, _ = bench.out.submitted[-1]
    for _ in range(periods):
        bench.tick()
    bench.answer(observation, np.full((12, 7), 0.001))
    bench.tick()
    return observation.executing


def test_the_loop_learns_the_delay_in_motion_and_forgets_the_old_ones():
    bench = loop(delay_window=2)
    assert chunk_after(bench, 6) is None, "at rest"
    said = [chunk_after(bench, periods) for periods in (3, 1, 1, 1)]
    delays = [executing.delay_steps for executing in said]
    assert delays == [0, 4, 4, 2], "until the tick that took it, the largest of the last two"
    assert all(isinstance(delay, int) for delay in delays)
    assert bench.out.warnings == []


def test_a_pipeline_of_chunks_is_expected_to_be_late_by_what_it_takes_and_not_by_its_depth():
    bench = loop(pipeline_depth=3)
    chunk_after(bench, 0)
    assert chunk_after(bench, 0).delay_steps == 0


def test_a_chunk_is_continued_from_the_action_that_falls_together_with_the_new_frame():
    bench = loop()
    chunk_after(bench, 0)
    first = bench.out.submitted[-1][0]
    executing = chunk_after(bench, 1)
    question = bench.out.submitted[-1][0]
    executed = [c for c in bench.out.commands if c.published_ns < question.stamp_ns]
    assert (executing.stamp_ns, executing.index) == (first.stamp_ns, len(executed))


def queue(**how):
    chunking = Chunking(**({"replan_interval": 3} | how))
    return ActionQueue(chunking, END_EFFECTOR_DELTA, chunk_length=8), Limits(max_age_s=1.0)


def answer(stamp_ns, length=8):
    rows = np.tile(np.arange(length, dtype=float)[:, None], 7)
    return PolicyAnswer(Inference(stamp_ns, rows, Timeline(0)), stamp_ns, stamp_ns)


def play(queue, limits, start_ns, count):
    """Take and execute ``count`` actions; returns their places in their chunk."""
    places = []
    for number in range(count):
        now = start_ns + number * PERIOD
        taken = queue.take(now, limits)
        places.append(None if taken is None else taken.index)
        if taken is not None:
            queue.begin()
            queue.executed(now, unchanged=True)
    return places


@pytest.mark.parametrize("execution", [Execution.ASYNC, Execution.ENSEMBLE])
def test_another_chunk_is_asked_for_once_as_many_as_are_wanted_were_executed(execution):
    line, limits = queue(execution=execution)
    line.asked(0, PERIOD)
    line.answered()
    line.put(answer(0))
    wanted = []
    for number in range(1, 6):
        play(line, limits, number * PERIOD, 1)
        wanted.append(line.asks(number * PERIOD, limits))
    assert wanted == [False, False, True, True, True]


def test_an_answer_is_awaited_until_a_frame_would_be_too_new_for_it():
    line, limits = queue()
    line.asked(0, PERIOD)
    assert not line.asks(limits.max_age_ns, limits)
    assert line.asks(limits.max_age_ns + 1, limits)
    line.put(answer(0))
    assert not line.asks(limits.max_age_ns + 1, limits), "one waits to be taken"


def test_standing_still_it_looks_a_period_after_the_last_action():
    line, limits = queue(execution=Execution.SYNC)
    line.asked(0, PERIOD)
    line.answered()
    line.put(answer(0))
    assert play(line, limits, PERIOD, 4) == [0, 1, 2, None]
    last = 3 * PERIOD
    assert not line.asks(last + PERIOD - 1, limits) and line.asks(last + PERIOD, limits)


def test_standing_still_a_chunk_of_before_the_last_action_is_void_and_that_is_said():
    line, limits = queue(execution=Execution.SYNC)
    line.put(answer(0))
    play(line, limits, PERIOD, 3)
    assert line.voided == ""
    line.put(answer(3 * PERIOD))
    assert line.take(5 * PERIOD, limits) is None
    assert line.voided == "the robot moved after this chunk's observation: it has to look again"
    line.put(answer(3 * PERIOD + 1))
    assert line.take(5 * PERIOD, limits).index == 0 and line.voided == ""


def test_of_what_waited_the_newest_is_taken_and_nothing_is_left_of_one_too_late():
    line, limits = queue()
    line.put(answer(0))
    line.put(answer(PERIOD))
    taken = line.take(2 * PERIOD, limits)
    assert taken.answer.inference.stamp_ns == PERIOD and len(taken.following) == 7
    line.begin()
    line.executed(2 * PERIOD, unchanged=True)
    play(line, limits, 3 * PERIOD, 3)
    line.put(answer(0, 4))
    line.take(9 * PERIOD, limits)
    assert line.voided == (
        "a chunk of 4 actions came after 4 had been executed: nothing is left of it"
    )


def test_a_chunk_that_is_to_come_late_waits_and_another_behind_it_does_too():
    line, limits = queue(delay_frames=2)
    assert line.voided == ""
    line.put(answer(0))
    line.put(answer(PERIOD))
    assert line.take(2 * PERIOD - 1, limits) is None
    assert line.take(2 * PERIOD, limits).answer.inference.stamp_ns == 0


def test_a_single_action_is_never_made_to_wait():
    line = ActionQueue(Chunking(delay_frames=3), END_EFFECTOR_DELTA, chunk_length=1)
    limits = Limits(max_age_s=1.0)
    line.asked(0, PERIOD)
    assert line.asks(1, limits) and line.awaits(0, PERIOD)
    line.put(answer(0, 1))
    assert line.take(0, limits).index == 0


def test_a_single_action_is_asked_for_with_the_delay_of_late():
    chunking = Chunking(delay_window=1)
    line = ActionQueue(chunking, END_EFFECTOR_DELTA, chunk_length=1, expected=5)
    limits = Limits(max_age_s=1.0)
    said = [line.delay_steps]
    for number, late in enumerate((3, 3, 1), 1):
        line.break_off(100 * number * PERIOD)  # it stood, and begins to move
        line.put(answer(100 * number * PERIOD, 1))
        line.take((100 * number + late) * PERIOD, limits)
        line.begin()
        line.executed((100 * number + late) * PERIOD, unchanged=True)
        said.append(line.delay_steps)
    assert said == [5, 3, 3, 1] and all(isinstance(steps, int) for steps in said)


def test_two_actions_are_a_chunk_already():
    line = ActionQueue(Chunking(), END_EFFECTOR_DELTA, chunk_length=2)
    line.asked(0, PERIOD)
    assert not line.asks(PERIOD, Limits(max_age_s=1.0)), "one question at a time"


def test_an_ensemble_goes_on_with_observation_that_is_just_young_enough():
    line, limits = queue(execution=Execution.ENSEMBLE)
    line.put(answer(0))
    assert line.take(limits.max_age_ns, limits).index == 0
    line.begin()
    line.executed(limits.max_age_ns, unchanged=True)
    assert line.take(limits.max_age_ns + 1, limits) is None
    assert line.exhausted


def test_the_question_names_the_row_of_its_moment_and_no_more_rows_than_are_left():
    line, limits = queue(execution=Execution.RTC, delay_window=3)
    line.put(answer(1))
    play(line, limits, PERIOD, 1)
    assert line.asked(PERIOD, PERIOD).index == 0, "the frame was taken as the first went out"
    assert line.asked(PERIOD + 1, PERIOD).index == 1
    play(line, limits, 2 * PERIOD, 2)
    line.put(answer(3 * PERIOD + 1))
    play(line, limits, 4 * PERIOD, 1)
    assert line.asked(PERIOD, PERIOD) is None, "before the chunk's own frame"
    slow = ActionQueue(line.chunking, END_EFFECTOR_DELTA, chunk_length=8, expected=3)
    slow.put(answer(1))
    play(slow, limits, PERIOD, 4)
    assert slow.asked(5 * PERIOD, PERIOD).delay_steps == 3, "until one was seen, what is expected"
    play(slow, limits, 5 * PERIOD, 3)
    asked = slow.asked(8 * PERIOD, PERIOD)
    assert (asked.index, asked.delay_steps) == (7, 1)
    play(slow, limits, 8 * PERIOD, 1)
    assert slow.asked(9 * PERIOD, PERIOD) is None, "nothing is left"


def test_a_broken_off_chunk_is_not_continued_and_a_newer_one_is():
    line, limits = queue(execution=Execution.RTC)
    line.put(answer(PERIOD))
    line.take(2 * PERIOD, limits)
    line.begin()
    line.executed(2 * PERIOD, unchanged=False)
    assert line.asked(3 * PERIOD, PERIOD) is None, "it was held to a limit"
    play(line, limits, 3 * PERIOD, 2)
    line.put(answer(2 * PERIOD))
    assert line.take(5 * PERIOD, limits) is not None
    assert line.asked(6 * PERIOD, PERIOD) is None, "it did not see that yet"
    play(line, limits, 6 * PERIOD, 3)
    line.put(answer(2 * PERIOD + 1))
    assert line.take(9 * PERIOD, limits) is not None
    assert line.asked(10 * PERIOD, PERIOD).stamp_ns == 2 * PERIOD + 1


def test_a_robot_that_does_not_run_has_nothing_to_continue():
    line, limits = queue(execution=Execution.RTC)
    line.put(answer(1))
    play(line, limits, PERIOD, 3)
    requests = RequestBuilder(line, PolicyInfo("p", chunk_length=8))
    frame = Observation(4 * PERIOD, 4 * PERIOD, 4 * PERIOD, np.zeros((2, 2, 3), np.uint8))
    assert requests.build(frame, limits, running=False).executing is None
    assert requests.build(frame, Limits(max_age_s=0.06), running=True) is None, "one is under way"
    line.answered()
    said = requests.build(frame, limits, running=True)
    assert (said.executing.index, said.executing.delay_steps, said.delay_steps) == (3, 0, 0)


@pytest.mark.parametrize("camera_hz", [15, 20, 30, 50, 200])
def test_frames_are_asked_about_at_the_action_rate_at_most(camera_hz):
    """And every frame of a camera that is slower, however it jitters."""
    line = ActionQueue(Chunking(), END_EFFECTOR_DELTA, chunk_length=1)
    limits, late, asked = Limits(max_age_s=1.0), (0, 12_000_000, -9_000_000), 0
    for number in range(10 * camera_hz):
        stamp = number * (10**9 // camera_hz) + (late[number % 3] if camera_hz <= 20 else 0)
        if line.asks(stamp, limits):
            line.asked(stamp, limits.action_period_ns)
            asked += 1
    assert asked == 10 * camera_hz if camera_hz <= 20 else 200 <= asked <= 202
