"""What the gate lets through, to the millisecond, and what is said of what it does not."""

import numpy as np
import pytest

from unit.runtime.control.bench import IMAGE, Bench
from vla_ros.core.action_space import ActionKind, end_effectors
from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import CommandKind, Observation, PolicyState, StaleAction
from vla_ros.runtime.safety import Limits

POLICY, HELD, STOP = CommandKind.POLICY, CommandKind.HELD, CommandKind.STOP


def seen(bench, ms):
    """An observation of so many milliseconds from now."""
    clock = bench.clock
    received = min(0, ms) * MS
    return Observation(clock.now + ms * MS, clock.now + received, clock.steady + received, IMAGE)


def ready(**how):
    return Bench(**how).ready()


def blocked(bench):
    return [text for kind, text in bench.out.warnings if kind == "blocked"]


@pytest.mark.parametrize("sim_time, last_ms", [(False, 5), (True, 50)])
def test_observation_of_the_future_is_admitted_as_far_as_clocks_may_differ(sim_time, last_ms):
    bench = ready(sim_time=sim_time)
    bench.answer(seen(bench, last_ms))
    assert [c.kind for c in bench.tick(0.0)] == [POLICY] and blocked(bench) == []
    bench = ready(sim_time=sim_time)
    bench.answer(seen(bench, last_ms + 1))
    assert bench.tick(0.0) == []
    line = f"its observation lies {last_ms + 1} ms in the future: the clock went back"
    assert bench.loop.counters.last_block == line
    assert blocked(bench) == [f"action blocked: {line}"]


def test_observation_is_admitted_until_it_is_max_age_old():
    bench = ready()
    bench.answer(seen(bench, -500))
    assert [c.kind for c in bench.tick(0.0)] == [POLICY] and blocked(bench) == []
    bench = ready()
    for _ in range(2):
        bench.answer(seen(bench, -501))
        assert bench.tick(0.0) == []
    assert (
        blocked(bench) == ["action blocked: its observation is 501 ms old, max_age is 500 ms"] * 2
    )
    assert bench.loop.counters.actions_blocked == 2
    assert bench.loop.counters.actions_published == 0


def test_an_action_of_a_frame_that_was_answered_is_blocked_and_that_is_said():
    bench = ready().running()
    frame = bench.frame()
    bench.answer(frame)
    bench.tick()
    bench.answer(frame)
    assert [c.kind for c in bench.tick()] == [HELD]
    line = "an action of this or a later frame was published already"
    assert bench.loop.counters.last_block == line
    assert blocked(bench) == [f"action blocked: {line}"]


def test_nothing_is_published_twice_across_epochs_but_order_begins_anew():
    """What came after the flush is not judged by the order of what went out before it."""
    bench = ready().running()
    stamp = bench.out.commands[-1].stamp_ns
    bench.control.set_instruction("push")
    bench.answer(Observation(stamp, bench.clock.now, bench.clock.steady, IMAGE))
    assert [c.kind for c in bench.tick()] == [POLICY]


def test_without_a_place_to_begin_from_it_is_said_what_is_lacking():
    space = end_effectors(ActionKind.END_EFFECTOR_POSE)
    bounds = {"low": (-1.0,) * 6, "high": (1.0,) * 6}
    bench = ready(limits=Limits(space=space, stale_action=StaleAction.HOLD, **bounds))
    bench.cycle(np.zeros(7))
    assert blocked(bench) == [
        "action blocked: a place to go to needs to know where the robot is:"
        " nothing fresh on measured_pose"
    ]
    assert bench.loop.counters.actions_blocked == 1


def test_what_was_clamped_is_counted_and_said():
    bench = ready().running()
    for _ in range(2):
        bench.cycle(np.array([1.0] + [0.0] * 6))
    counters = bench.loop.counters
    assert (counters.actions_clamped, counters.actions_published) == (2, 3)
    assert bench.out.warnings == [("clamped", "action clamped to its bounds")] * 2


def test_no_motion_while_the_observation_lasts_to_the_millisecond_and_then_hold():
    bench = ready().running()
    age_ms = (bench.clock.now - bench.out.commands[-1].stamp_ns) // MS
    held = bench.tick(0.0) + bench.tick((500 - age_ms) / 1000)
    assert [c.kind for c in held] == [HELD, HELD] and bench.state is PolicyState.RUNNING
    (stop,) = bench.tick(0.001)
    assert stop.kind is STOP and bench.state is PolicyState.HOLD
    assert bench.loop.safety.reason == "observation age 501 ms exceeds max_age 500 ms"
    bench.tick()
    counters = bench.loop.counters
    assert (counters.missed_deadlines, counters.held_published) == (2, 2)
    assert counters.stops_published == 2


def test_held_commands_rest_on_the_last_action_and_stops_on_nothing():
    bench = ready().running()
    action = bench.out.commands[-1]
    (held,) = bench.tick()
    assert (held.stamp_ns, held.received_ns) == (action.stamp_ns, action.received_ns)
    assert held.valid_until_ns == action.stamp_ns + 500 * MS
    frame = bench.frame()
    (stop,) = bench.tick(0.6)
    assert stop.kind is STOP
    assert (stop.stamp_ns, stop.received_ns, stop.valid_until_ns) == (0, 0, 0)
    assert stop.latest_ns == frame.stamp_ns
    assert (stop.chunk_index, stop.chunk_length, stop.total_ms) == (0, 1, 0.0)


def test_sequence_numbers_rise_by_one_whatever_the_kind():
    bench = ready().running()
    for _ in range(20):
        bench.tick()
    kinds = {c.kind for c in bench.out.commands}
    assert kinds == {POLICY, HELD, STOP}
    assert [c.sequence for c in bench.out.commands] == list(range(len(bench.out.commands)))


def test_an_answer_given_again_in_lock_step_has_a_number_of_its_own():
    bench = Bench(lockstep=True).running_either()
    frame = bench.loop.latest
    bench.frame(frame.stamp_ns)
    first, again = bench.out.commands
    assert (first.sequence, again.sequence) == (0, 1)
    assert (again.action == first.action).all() and again.stamp_ns == first.stamp_ns


@pytest.mark.parametrize("sim_time", [False, True])
def test_the_time_since_capture_is_by_stamps_and_in_simulated_time_by_the_steady_clock(sim_time):
    bench = ready(sim_time=sim_time)
    stamp = bench.clock.now
    bench.clock.advance(0.01)
    frame = bench.frame(stamp)
    bench.clock.steady += 30 * MS  # a simulation stands still meanwhile
    if not sim_time:
        bench.clock.now += 30 * MS
    bench.answer(frame)
    (command,) = bench.tick(0.02)
    assert command.total_ms == pytest.approx(60.0)
    assert command.stages_ms["transport"] == pytest.approx(10.0)
    assert command.stages_ms["queue"] == pytest.approx(30.0)
    assert command.stages_ms["gate"] == pytest.approx(20.0)
    assert command.stages_ms["vision"] == 0.0
    assert sum(command.stages_ms.values()) == pytest.approx(command.total_ms)
    assert (command.chunk_index, command.chunk_length) == (0, 1)
    assert (command.stamp_ns, command.received_ns) == (stamp, frame.received_ns)
    task = bench.loop.instruction
    assert (command.published_ns, command.epoch) == (bench.clock.now, task.epoch)
    assert command.instruction_digest == task.digest


def test_a_place_is_held_where_it_was_commanded_and_a_displacement_is_none():
    bench = ready().running()
    assert not bench.tick()[0].action[:6].any()
    space = end_effectors(ActionKind.END_EFFECTOR_POSE)
    bounds = {"low": (-1.0,) * 6, "high": (1.0,) * 6}
    bench = ready(limits=Limits(space=space, stale_action=StaleAction.HOLD, **bounds))
    here = np.array([0.4, 0.1, 0.3, 0.0, 0.0, 0.0, 0.0])
    bench.control.measure(here, bench.clock.now, bench.moment())
    bench.cycle(here + 0.1)
    (held,) = bench.tick()
    assert held.kind is HELD and held.action[:3] == pytest.approx([0.5, 0.2, 0.4])


def test_after_a_period_of_none_a_displacement_is_a_change_from_rest():
    bench = ready(limits=Limits(jump=0.2))  # a fifth of 0.1 m
    for step in (0.02, 0.04, 0.05):
        (command,) = bench.cycle(np.array([step] + [0.0] * 6))
    assert command.action[0] == pytest.approx(0.05)
    bench.control.set_instruction("push")  # it goes on at the speed that it has
    (command,) = bench.cycle(np.array([0.05] + [0.0] * 6))
    assert command.action[0] == pytest.approx(0.05)
    bench.tick()
    (command,) = bench.cycle(np.array([0.05] + [0.0] * 6))
    assert command.action[0] == pytest.approx(0.02)


@pytest.mark.parametrize("stale, stops", [(StaleAction.ZERO, True), (StaleAction.SILENCE, False)])
def test_silence_begins_once_the_consumer_knows(stale, stops):
    bench = ready(limits=Limits(stale_action=stale, silence_after_s=0.2)).running()
    bench.tick(0.6)
    assert bench.state is PolicyState.HOLD
    said = [len(bench.tick(0.1)) for _ in range(3)]
    assert said == ([1, 1, 0] if stops else [0, 0, 0]), "0.2 s after the HOLD is the last one"
    assert bench.clock.steady - bench.loop.safety.since_ns == round(0.3 * SECOND)
