"""A simulation that waits: when its frames are answered, and that each is."""

import numpy as np
import pytest

from unit.runtime.control.bench import Bench
from vla_ros.core.types import CommandKind, PolicyState
from vla_ros.runtime.control.goals import Goal
from vla_ros.runtime.control.queue import Chunking, Execution
from vla_ros.runtime.safety import Limits

POLICY, HELD, STOP = CommandKind.POLICY, CommandKind.HELD, CommandKind.STOP


def waiting(**how):
    return Bench(lockstep=True, **how).ready()


def step(bench):
    bench.clock.advance(0.05)
    return bench.frame()


def kinds(bench):
    return [c.kind for c in bench.out.commands]


def answered(bench, frame):
    return bool(bench.out.commands) and bench.out.commands[-1].latest_ns == frame.stamp_ns


@pytest.mark.parametrize("late", [1, 2, 3])
def test_the_world_waits_for_an_answer_from_the_period_on_that_it_is_due_in(late):
    bench = waiting(chunk=8, limits=Limits(max_age_s=2.0), chunking=Chunking(delay_frames=late))
    asked = step(bench)
    frames = [asked] + [step(bench) for _ in range(late - 1)]
    assert kinds(bench) == [STOP] * late, "it is not due yet"
    assert answered(bench, frames[-1])
    due = step(bench)
    assert not answered(bench, due), "now it is"
    bench.answer(asked, np.full((8, 7), 0.01))
    assert kinds(bench) == [STOP] * late + [POLICY] and answered(bench, due)


def test_an_answer_that_is_there_early_is_kept_until_it_is_due():
    bench = waiting(chunk=8, limits=Limits(max_age_s=2.0), chunking=Chunking(delay_frames=2))
    bench.answer(step(bench), np.full((8, 7), 0.01))
    assert kinds(bench) == [STOP]
    step(bench)
    step(bench)
    assert kinds(bench) == [STOP, STOP, POLICY]


def test_before_any_instruction_a_frame_gets_no_answer_and_after_a_stop_it_gets_one():
    bench = Bench(lockstep=True)
    bench.control.activate()
    step(bench)
    assert kinds(bench) == []
    bench.control.set_instruction("reach")
    bench.answer(bench.loop.latest)
    assert kinds(bench) == [POLICY]
    bench.control.set_instruction("")
    step(bench)
    step(bench)
    assert kinds(bench) == [POLICY, STOP, STOP]


@pytest.mark.parametrize("how", ["stop", "goal", "empty", "a task before", "nothing"])
def test_only_who_was_told_something_answers_that_there_is_nothing_to_do(how):
    bench = Bench(lockstep=True)
    bench.control.activate()
    if how == "stop":
        bench.control.stop()
    elif how == "empty":
        bench.control.set_instruction("")
    elif how == "a task before":
        bench.control.set_instruction("reach")
        bench.control.deactivate()
        bench.control.activate()
    elif how == "goal":
        bench.control.begin_goal(Goal("pick"))
        bench.control.make_way()
    step(bench)
    assert kinds(bench) == ([] if how == "nothing" else [STOP])


def test_in_fault_every_frame_is_answered_by_a_stop():
    bench = waiting()
    bench.answer(step(bench))
    bench.control.fault("broken")
    for _ in range(2):
        frame = step(bench)
        assert answered(bench, frame)
    bench.frame(frame.stamp_ns)
    assert kinds(bench) == [POLICY, STOP, STOP, STOP]


def test_what_cannot_be_used_is_answered_at_once():
    bench = waiting()
    frame = step(bench)
    bench.control.invalid(bench.loop.instruction.epoch - 1, "of an old epoch")
    bench.control.result(bench.loop.instruction.epoch - 1, None)
    assert kinds(bench) == [], "that says nothing of this frame"
    bench.control.invalid(bench.loop.instruction.epoch, "NaN")
    assert kinds(bench) == [STOP] and answered(bench, frame)


def test_an_answer_of_an_old_epoch_is_none_even_if_it_says_nothing():
    bench = waiting(chunk=4)
    frame, epoch = step(bench), bench.loop.instruction.epoch
    bench.control.set_instruction("push")
    bench.control.result(epoch, None)
    bench.answer(frame, np.full((4, 7), 0.01), epoch)
    assert kinds(bench) == []
    bench.answer(frame, np.full((4, 7), 0.01))
    assert kinds(bench) == [POLICY]


def test_inactive_nothing_is_answered_and_nothing_watched():
    bench = waiting()
    frame = step(bench)
    bench.answer(frame)
    bench.control.deactivate()
    said = len(bench.out.commands)
    bench.frame(frame.stamp_ns)
    step(bench)
    bench.clock.now -= 10**10
    bench.control.tick()
    assert len(bench.out.commands) == said and bench.state is PolicyState.INACTIVE


def test_frames_are_counted_those_that_come_again_too():
    bench = waiting()
    frame = step(bench)
    bench.frame(frame.stamp_ns)
    step(bench)
    assert bench.loop.counters.frames_received == 3
    assert bench.loop.counters.frames_dropped == 0


def test_the_rest_of_a_chunk_answers_without_asking():
    bench = waiting(chunk=4, limits=Limits(max_age_s=2.0), chunking=Chunking(Execution.SYNC))
    bench.answer(step(bench), np.full((4, 7), 0.01))
    for _ in range(3):
        assert answered(bench, step(bench))
    assert kinds(bench) == [POLICY] * 4 and len(bench.out.submitted) == 1
    step(bench)
    assert len(bench.out.submitted) == 2 and kinds(bench) == [POLICY] * 4


def test_the_policy_is_told_of_no_delay_where_the_world_waits():
    bench = waiting(max_delay=8)
    step(bench)
    assert [observation.delay_steps for observation, _ in bench.out.submitted] == [0]


def test_a_frame_of_the_future_is_now():
    """It may overtake /clock: an answer to it is not early."""
    bench = waiting()
    ahead = bench.frame(bench.clock.now + 50_000_000)
    bench.answer(ahead)
    (command,) = bench.out.commands
    assert (command.kind, command.published_ns) == (POLICY, ahead.stamp_ns)
