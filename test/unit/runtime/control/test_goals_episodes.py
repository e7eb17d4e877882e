"""The end of a simulated episode: the loop rests until the next one, in either mode."""

import itertools

import pytest

from unit.runtime.control.bench import Bench
from vla_ros.core.types import CommandKind, PolicyState
from vla_ros.runtime.control.goals import EpisodeTracker

POLICY, STOP = CommandKind.POLICY, CommandKind.STOP
OVER = "the episode is over: success"


def play(bench, frames=3):
    """Frames with their actions; returns the kinds of what was published."""
    begin = len(bench.out.commands)
    for _ in range(frames):
        bench.clock.advance(0.05)
        bench.answer(bench.frame())
        bench.control.tick()
    return [command.kind for command in bench.out.commands[begin:]]


@pytest.fixture(params=[False, True], ids=["realtime", "lockstep"])
def bench(request):
    """In the middle of episode 1."""
    bench = Bench(lockstep=request.param)
    bench.control.activate()
    bench.control.reset()
    bench.control.set_instruction("reach")
    bench.control.episode_runs(1, 0)
    assert play(bench) == [POLICY] * 3
    return bench


def test_the_end_is_a_rest_with_its_reason_and_a_new_epoch(bench):
    epoch = bench.loop.instruction.epoch
    bench.control.episode_over(1, "success")
    assert (bench.state, bench.loop.safety.reason) == (PolicyState.WAITING, OVER)
    assert bench.loop.instruction.epoch == epoch + 1
    states = len(bench.out.states)
    for _ in range(100):
        bench.tick()  # 5 s of no images
    assert (bench.state, bench.loop.safety.reason) == (PolicyState.WAITING, OVER)
    assert len(bench.out.states) == states, "nothing is logged either"


def test_nothing_of_the_old_is_published_and_one_command_stops(bench):
    late, epoch = bench.out.submitted[-1][0], bench.loop.instruction.epoch
    begin = len(bench.out.commands)
    bench.control.episode_over(1, "success")
    bench.answer(late, epoch=epoch)
    for _ in range(60):
        bench.tick()
    wanted = [] if bench.lockstep else [STOP]
    assert [command.kind for command in bench.out.commands[begin:]] == wanted
    assert all(c.epoch == epoch + 1 for c in bench.out.commands[begin:])


def test_frames_that_still_come_are_shown_to_nobody(bench):
    bench.control.episode_over(1, "success")
    submitted, begin = len(bench.out.submitted), len(bench.out.commands)
    for _ in range(10):
        bench.clock.advance(0.05)
        bench.frame()
        bench.control.worker_ready()
        bench.control.tick()
    bench.control.set_instruction("push")  # nor does another instruction begin anything
    assert len(bench.out.submitted) == submitted and len(bench.out.commands) == begin
    assert bench.loop.safety.reason == OVER


def test_a_camera_that_goes_on_between_episodes_is_no_pipeline_that_is_stuck(bench):
    bench.control.episode_over(1, "success")
    for _ in range(100):  # 5 s
        bench.clock.advance(0.05)
        bench.frame()
        bench.control.tick()
    assert (bench.state, bench.loop.safety.reason) == (PolicyState.WAITING, OVER)


def test_the_next_episode_begins_with_the_reset(bench):
    bench.control.episode_over(1, "success")
    bench.frame()
    bench.control.reset()
    assert bench.loop.safety.reason == "waits for a fresh frame and a valid action"
    bench.control.episode_runs(2, 0)
    assert play(bench) == [POLICY] * 3
    bench.control.episode_over(2, "not solved within 25 steps")
    assert bench.loop.safety.reason == "the episode is over: not solved within 25 steps"


def test_without_a_reset_it_begins_when_the_simulation_says_that_it_runs(bench):
    bench.control.episode_over(1, "success")
    bench.clock.advance(0.05)
    first = bench.frame()  # the first of the new episode; the news is a moment behind
    epoch = bench.loop.instruction.epoch
    bench.control.episode_runs(2, 0)
    assert bench.loop.instruction.epoch == epoch + 1
    bench.frame(first.stamp_ns)  # lock-step: shown again, and not taken for known
    assert bench.out.submitted[-1][0].stamp_ns == first.stamp_ns
    assert play(bench) == [POLICY] * 3


def test_a_late_word_about_an_episode_changes_nothing(bench):
    bench.control.reset()
    bench.control.episode_over(1, "success")  # it came after the reset for the next one
    assert play(bench) == [POLICY] * 3
    bench.control.episode_runs(2, 0)
    bench.control.episode_over(1, "success")
    assert play(bench) == [POLICY] * 3
    bench.control.episode_over(2, "success")
    bench.control.episode_runs(2, 17)  # said a moment before the end
    assert (bench.state, bench.loop.safety.reason) == (PolicyState.WAITING, OVER)


def test_a_fault_stays_one_and_hold_does_not(bench):
    bench.control.worker_lost("killed")
    assert bench.state is PolicyState.HOLD
    bench.control.episode_over(1, "success")
    assert bench.state is PolicyState.WAITING
    bench.control.reset()
    bench.control.episode_runs(2, 0)
    bench.control.fault("broken")
    bench.control.episode_over(2, "success")
    assert (bench.state, bench.loop.safety.reason) == (PolicyState.FAULT, "broken")


def test_activation_begins_anew_and_inactive_nothing_is_said(bench):
    bench.control.deactivate()
    begin = len(bench.out.commands)
    bench.control.episode_over(1, "success")
    assert bench.state is PolicyState.INACTIVE and len(bench.out.commands) == begin
    bench.control.activate()
    bench.control.resume()
    assert bench.loop.safety.reason == "waits for a fresh frame and a valid action"
    assert play(bench) == [POLICY] * 3


@pytest.mark.parametrize("quick", ["answer", "news"])
def test_in_lock_step_what_is_counted_does_not_depend_on_which_was_quicker(quick):
    """The answer to the last frame, or the news that it was the last one."""
    bench = Bench(lockstep=True).ready()
    bench.control.episode_runs(1, 0)
    play(bench)
    bench.clock.advance(0.05)
    last = bench.frame()
    steps = [lambda: bench.answer(last, [9.0] * 7), lambda: bench.control.episode_over(1, "x")]
    for step in steps if quick == "answer" else reversed(steps):
        step()
    counts = bench.loop.counters
    assert (counts.actions_published, counts.actions_clamped, counts.stops_published) == (4, 1, 0)
    assert bench.loop.safety.reason == "the episode is over: x"
    assert bench.out.commands[-1].latest_ns == last.stamp_ns


@pytest.mark.parametrize("loss", ["worker", "invalid", "fault"])
def test_in_lock_step_a_last_frame_that_gets_no_action_does_not_hold_up_the_rest(loss):
    bench = Bench(lockstep=True).ready()
    bench.control.episode_runs(1, 0)
    play(bench)
    bench.clock.advance(0.05)
    last = bench.frame()
    bench.control.episode_over(1, "success")
    assert bench.state is PolicyState.RUNNING, "the worker has the last frame"
    if loss == "worker":
        bench.control.worker_lost("killed")
        bench.control.worker_ready()
        assert bench.out.submitted[-1][0] is last
        bench.answer(last)
    elif loss == "invalid":
        bench.control.invalid(bench.loop.instruction.epoch, "NaN")
    else:
        bench.control.fault("broken")
    assert bench.state is (PolicyState.FAULT if loss == "fault" else PolicyState.WAITING)


@pytest.mark.parametrize("order", list(itertools.permutations(["runs 1", "over 1", "begin"])))
def test_an_end_counts_only_for_what_was_heard_to_run_since_the_begin(order):
    course, heard = EpisodeTracker(), []
    for word in order:
        heard.append(word)
        if word == "begin":
            course.begin()
        elif word == "runs 1":
            course.runs(1)
        else:
            counts = "runs 1" in heard and "begin" not in heard[heard.index("runs 1") :]
            assert course.ends(1, "success") is counts
            assert bool(course.over) is counts
