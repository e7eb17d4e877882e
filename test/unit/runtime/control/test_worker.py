"""A worker that is lost, one that comes in its place, one that stood by."""

from __future__ import annotations

import pytest

from unit.runtime.control.bench import Bench
from vla_ros.core.types import CommandKind, PolicyState

POLICY, STOP = CommandKind.POLICY, CommandKind.STOP


@pytest.fixture(params=[False, True], ids=["realtime", "lockstep"])
def bench(request) -> Bench:
    return Bench(lockstep=request.param).running_either()


def test_after_a_loss_one_valid_action_of_the_new_worker_is_enough(bench):
    bench.control.worker_lost("killed")
    assert bench.state is PolicyState.HOLD
    bench.tick()
    asked = len(bench.out.submitted)
    bench.control.worker_ready()
    assert bench.state is PolicyState.WAITING
    assert len(bench.out.submitted) == asked + 1, "the newest frame is shown at once"
    bench.clock.advance(0.05)
    bench.answer(bench.frame())
    bench.control.tick()
    assert bench.state is PolicyState.RUNNING
    assert bench.out.commands[-1].kind is POLICY


def test_a_clock_jump_meanwhile_makes_it_a_hold_like_any_other():
    bench = Bench().running()
    bench.control.worker_lost("killed")
    bench.clock.now += 10**10
    bench.tick()
    bench.control.worker_ready()
    assert bench.state is PolicyState.HOLD
    kinds = [bench.cycle()[-1].kind for _ in range(3)]
    assert kinds == [STOP, STOP, POLICY]


def test_a_hold_that_was_there_before_waits_for_several_actions():
    bench = Bench().running()
    bench.tick(0.6)  # the observation is too old: a hung worker is lost only after that
    assert bench.state is PolicyState.HOLD
    bench.control.worker_lost("hangs")
    bench.control.worker_ready()
    assert bench.state is PolicyState.HOLD


def test_a_worker_that_is_lost_while_it_comes_is_one_loss():
    bench = Bench().running()
    bench.control.worker_lost("killed")
    bench.control.worker_lost("killed again")
    bench.control.worker_ready()
    assert bench.state is PolicyState.WAITING
    assert bench.cycle()[-1].kind is POLICY


def test_a_loss_that_was_got_over_shortens_no_later_hold():
    bench = Bench().running()
    bench.control.worker_lost("killed")
    bench.control.worker_ready()
    assert bench.cycle()[-1].kind is POLICY
    bench.tick(0.6)
    bench.control.worker_lost("hangs")
    bench.control.worker_ready()
    assert bench.state is PolicyState.HOLD


def test_what_the_lost_worker_said_moves_nothing():
    bench = Bench().running()
    frame, epoch = bench.frame(), bench.loop.instruction.epoch
    bench.control.worker_lost("killed")
    bench.answer(frame, epoch=epoch)
    bench.control.worker_ready()
    assert bench.tick()[-1].kind is STOP
    assert bench.loop.instruction.epoch == epoch + 1


def test_a_switch_begins_anew_and_goes_on_with_the_next_answer(bench):
    bench.clock.advance(0.05)
    frame, epoch = bench.frame(), bench.loop.instruction.epoch
    bench.control.worker_switched("killed")
    assert bench.state is PolicyState.WAITING
    assert bench.loop.safety.reason == "killed; the spare worker took over"
    observation, instruction = bench.out.submitted[-1]
    assert observation.stamp_ns == frame.stamp_ns
    assert instruction.text == "reach"
    bench.answer(observation, epoch=instruction.epoch)
    if not bench.lockstep:
        assert instruction.epoch == epoch + 1
        bench.tick()
    assert bench.state is PolicyState.RUNNING
    assert bench.out.commands[-1].kind is POLICY
    assert bench.out.commands[-1].epoch == instruction.epoch


def test_a_switch_voids_what_the_other_worker_said():
    bench = Bench().running()
    frame, epoch = bench.frame(), bench.loop.instruction.epoch
    bench.answer(frame)  # it waits for its tick
    bench.control.worker_switched("killed")
    bench.answer(frame, epoch=epoch)  # and this one was on its way
    (command,) = bench.tick()
    assert (command.kind, bench.state) == (STOP, PolicyState.WAITING)


def test_a_switch_leaves_hold_and_fault_and_inactive_as_they_are():
    bench = Bench().running()
    bench.tick(0.6)
    bench.control.worker_switched("hangs")
    assert bench.state is PolicyState.HOLD
    bench.control.fault("broken")
    bench.control.worker_switched("killed")
    assert bench.state is PolicyState.FAULT
    bench.control.deactivate()
    bench.control.worker_switched("killed")
    assert bench.state is PolicyState.INACTIVE
