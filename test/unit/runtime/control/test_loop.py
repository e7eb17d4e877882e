"""The control loop with a clock that stands still unless told to move."""

import numpy as np
import pytest

from unit.runtime.control.bench import Bench
from vla_ros.core.action_space import ActionKind, end_effectors
from vla_ros.core.clock import SECOND
from vla_ros.core.types import CommandKind, PolicyState, StaleAction
from vla_ros.runtime.control.queue import Chunking
from vla_ros.runtime.safety import Limits

POSES = end_effectors(ActionKind.END_EFFECTOR_POSE)


def test_nothing_is_published_before_the_first_action():
    bench = Bench()
    bench.control.activate()
    bench.frame()
    assert bench.tick() == []
    assert bench.out.submitted == [] and bench.state is PolicyState.WAITING
    bench.control.set_instruction("reach")
    assert len(bench.out.submitted) == 1, "the frame that was there is shown at once"


def test_hold_ends_after_three_fresh_actions():
    bench = Bench().running()
    for _ in range(20):
        bench.tick()
    assert bench.state is PolicyState.HOLD
    kinds = [c.kind for _ in range(3) for c in bench.cycle()]
    assert kinds[-1] is CommandKind.POLICY and kinds.count(CommandKind.POLICY) == 1


def test_an_action_of_an_old_epoch_is_never_published():
    bench = Bench().running()
    observation, epoch = bench.frame(), bench.loop.instruction.epoch
    bench.control.set_instruction("push")
    bench.answer(observation, epoch=epoch)
    assert all(c.kind is not CommandKind.POLICY for c in bench.tick())
    assert bench.state is PolicyState.WAITING


def test_an_action_that_waits_for_its_tick_dies_with_its_epoch():
    bench = Bench().running()
    bench.answer(bench.frame())
    bench.control.set_instruction("push")
    assert all(c.kind is not CommandKind.POLICY for c in bench.tick())


def test_the_same_instruction_again_changes_nothing():
    bench = Bench().running()
    epoch = bench.loop.instruction.epoch
    assert bench.control.set_instruction("reach") is False
    assert bench.loop.instruction.epoch == epoch and bench.state is PolicyState.RUNNING


def test_no_action_is_published_twice_or_out_of_order():
    bench = Bench().running()
    first = bench.frame()
    bench.clock.advance(0.02)
    second = bench.frame()
    bench.answer(second)
    assert bench.tick()[0].kind is CommandKind.POLICY
    bench.answer(first)
    assert bench.tick()[0].kind is CommandKind.HELD
    bench.answer(second)
    assert bench.tick()[0].kind is CommandKind.HELD


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_never_leaves_and_three_are_a_fault(bad):
    bench = Bench().running()
    action = np.zeros(7)
    action[3] = bad
    for _ in range(3):
        bench.cycle(action)
    assert bench.state is PolicyState.FAULT
    assert bench.loop.counters.last_block in bench.loop.safety.reason
    assert bench.loop.counters.last_block
    assert all(np.isfinite(c.action).all() for c in bench.out.commands)
    bench.control.set_instruction("push")
    bench.cycle()
    assert bench.state is PolicyState.FAULT, "latched"
    bench.control.recover()
    assert bench.cycle()[-1].kind is CommandKind.POLICY


def test_five_clamped_actions_hold():
    bench = Bench().running()
    for _ in range(5):
        bench.cycle(np.array([1.0] + [0.0] * 6))
    assert bench.state is PolicyState.HOLD
    assert max(abs(c.action[0]) for c in bench.out.commands) <= 0.05


def test_a_frozen_camera_warns_at_three_frames_and_holds_after_a_second():
    bench = Bench(detect_frozen=True).running()
    for _ in range(2):
        bench.cycle()
    assert (
        "frozen" in [kind for kind, _ in bench.out.warnings]
    ) and bench.state is PolicyState.RUNNING
    for _ in range(20):
        bench.cycle()
    assert bench.state is PolicyState.HOLD and "pixels" in bench.loop.safety.reason
    for value in range(1, 5):
        bench.answer(bench.frame(image=np.full((8, 8, 3), value, np.uint8)))
        bench.tick()
    assert bench.state is PolicyState.RUNNING


def measured(bench):
    pose = np.array([0.4, 0.0, 0.3, 0.0, 0.0, 0.0, 1.0])
    bench.control.measure(pose, bench.clock.now, bench.moment())


def test_silence_publishes_no_stop_and_hold_publishes_the_place_that_was_commanded():
    bench = Bench(limits=Limits(stale_action=StaleAction.SILENCE)).running()
    commands = [c for _ in range(30) for c in bench.tick()]
    assert all(c.kind is CommandKind.HELD for c in commands)
    limits = Limits(stale_action=StaleAction.HOLD, space=POSES, low=(-1.0,) * 6, high=(1.0,) * 6)
    bench = Bench(limits=limits)
    measured(bench)
    bench.running()
    last = bench.out.commands[-1].action
    stop = [c for _ in range(15) for c in bench.tick() if c.kind is CommandKind.STOP][0]
    assert stop.action[:6] == pytest.approx(last[:6]), "where it was on its way to"


def test_silence_is_silence_for_poses_too():
    limits = Limits(stale_action=StaleAction.SILENCE, space=POSES, low=(-1.0,) * 6, high=(1.0,) * 6)
    bench = Bench(limits=limits)
    measured(bench)
    bench.running()
    commands = [c for _ in range(30) for c in bench.tick()]
    bench.control.shut_down()
    assert commands and CommandKind.STOP not in [c.kind for c in bench.out.commands]


def test_shut_down_says_one_last_word_and_nothing_after_it():
    bench = Bench().running()
    before = len(bench.out.commands)
    bench.control.shut_down()
    assert [c.kind for c in bench.out.commands[before:]] == [CommandKind.STOP]
    bench.cycle()
    assert len(bench.out.commands) == before + 1


def test_chunks_are_executed_one_action_a_tick_and_replaced_after_the_replan_interval():
    bench = Bench(limits=Limits(max_age_s=2.0), chunking=Chunking(replan_interval=2)).ready()
    bench.answer(bench.frame(), np.full((4, 7), 0.01))
    indices = [bench.tick()[0].chunk_index for _ in range(2)]
    bench.answer(bench.frame(), np.full((4, 7), 0.02))
    indices += [bench.tick()[0].chunk_index for _ in range(2)]
    assert indices == [0, 1, 1, 2], "one went out at the instant of the second observation"


def test_lockstep_answers_every_frame_once_and_again_when_asked_again():
    bench = Bench(lockstep=True).ready()
    for _ in range(3):
        bench.clock.advance(0.05)
        observation = bench.frame()
        bench.frame()  # sent again while the policy thinks: no second request, no answer yet
        assert len(bench.out.submitted) == len(bench.out.commands) + 1
        bench.answer(observation)
        assert bench.out.commands[-1].latest_ns == observation.stamp_ns
    before = list(bench.out.commands)
    bench.frame()
    again = bench.out.commands[-1]
    assert len(bench.out.commands) == len(before) + 1
    assert again.latest_ns == before[-1].latest_ns and (again.action == before[-1].action).all()
    assert bench.tick() == [], "the tick publishes nothing"


def test_lockstep_answers_while_a_pipeline_fills():
    bench = Bench(lockstep=True).ready()
    observation = bench.frame()
    bench.control.result(bench.loop.instruction.epoch, None)
    assert bench.out.commands[-1].kind is CommandKind.STOP
    assert bench.out.commands[-1].latest_ns == observation.stamp_ns


def test_lockstep_answers_a_frame_that_came_before_the_empty_instruction():
    bench = Bench(lockstep=True)
    bench.control.activate()
    observation = bench.frame()
    assert bench.out.commands == []
    bench.control.set_instruction("")
    bench.frame()  # the simulation shows it again: nobody answered
    assert [c.kind for c in bench.out.commands] == [CommandKind.STOP]
    assert bench.out.commands[-1].latest_ns == observation.stamp_ns
    assert bench.out.submitted == []


def test_in_lockstep_the_gripper_does_not_care_whether_the_clock_came_after_the_frame():
    def sides(late):
        bench = Bench(lockstep=True).ready()
        for step in range(12):
            bench.clock.advance(0.05)
            stamp = bench.clock.now
            bench.clock.now -= round(late * 0.05 * SECOND) * (step % 2)
            open_or_closed = np.full((1, 7), 0.01)
            open_or_closed[0, 6] = step % 2
            bench.answer(bench.frame(stamp), open_or_closed)
            bench.clock.now = stamp
        return [command.action[6] for command in bench.out.commands]

    assert len(set(sides(late=0))) == 2
    assert sides(late=1) == sides(late=0)
