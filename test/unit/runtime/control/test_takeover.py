"""A person moves the robot while he says so, at the same gate; then the policy begins anew."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.runtime.control.bench import Bench
from unit.runtime.control.test_hold import Arm
from vla_ros.core.action_space import ActionKind, end_effectors
from vla_ros.core.types import CommandKind, PolicyState, StaleAction
from vla_ros.runtime.control.takeover import TakeoverNumbers, Teleoperation
from vla_ros.runtime.safety import Limits

POLICY, HELD, STOP, TAKEOVER = CommandKind
TIMEOUT_S = Limits().takeover_timeout_s


def says(bench, x, gripper=1.0, meaning=TakeoverNumbers.ACTION, age_s=0.0):
    stamp_ns = bench.clock.now - round(age_s * 1e9)
    bench.control.take_over(Teleoperation(np.array([x, 0, 0, 0, 0, 0, gripper]), meaning, stamp_ns))


def test_a_persons_command_moves_the_robot_in_the_next_period_and_the_policy_thinks_on():
    bench = Bench().running()
    says(bench, -0.02)
    asked = len(bench.out.submitted)
    (command,) = bench.cycle()
    assert command.kind is TAKEOVER and command.action[0] == -0.02
    assert bench.state is PolicyState.TAKEOVER
    assert not command.stamp_ns  # it rests on no observation of ours
    assert command.valid_until_ns == bench.clock.now - 50_000_000 + round(TIMEOUT_S * 1e9)
    (held,) = bench.cycle()  # a displacement is executed once
    assert held.kind is HELD and not held.action[:6].any()
    assert len(bench.out.submitted) == asked + 2
    assert bench.loop.counters.takeover_published == 1


@pytest.mark.parametrize("word", ["release", "resume"])
def test_after_the_last_command_it_holds_until_a_word_and_the_policy_begins_anew(word):
    bench = Bench().running()
    says(bench, -0.02)
    before = bench.frame()
    epoch = bench.loop.instruction.epoch
    said = [c.kind for _ in range(6) for c in bench.tick()]
    assert said == [TAKEOVER, *[HELD] * 5]
    (stopped,) = bench.tick()
    assert stopped.kind is STOP and bench.state is PolicyState.HOLD
    bench.answer(before, epoch=epoch)  # asked for while he moved it
    for _ in range(20):
        assert [c.kind for c in bench.cycle()] == [STOP]
    assert bench.state is PolicyState.HOLD
    assert getattr(bench.control, word)()
    assert bench.state is PolicyState.WAITING
    (command,) = bench.cycle()
    assert command.kind is POLICY and bench.state is PolicyState.RUNNING


def test_a_link_that_comes_back_is_the_same_takeover():
    bench = Bench().running()
    for _ in range(3):
        says(bench, -0.02)
        bench.tick()
        for _ in range(8):
            bench.cycle()
        assert bench.state is PolicyState.HOLD
    says(bench, -0.02)
    assert [c.kind for c in bench.tick()] == [TAKEOVER]
    assert bench.control.release()
    assert bench.state is PolicyState.WAITING, "given back once, not as often as it was lost"


def test_another_instruction_ends_the_hold_and_the_same_one_does_not():
    bench = Bench().running()
    says(bench, -0.02)
    for _ in range(9):
        bench.cycle()
    assert not bench.control.set_instruction(bench.loop.instruction.text)
    assert bench.state is PolicyState.HOLD
    assert bench.control.set_instruction("something else")
    assert bench.state is PolicyState.WAITING


@pytest.mark.parametrize("end", ["release", "stop"])
def test_who_goes_on_after_the_end_is_heard_once_he_has_paused(end):
    bench = Bench().running()
    says(bench, 0.01)
    bench.tick()
    getattr(bench.control, end)()
    for _ in range(20):
        says(bench, 0.01)
        assert TAKEOVER not in [c.kind for c in bench.tick()]
    bench.tick(TIMEOUT_S + 0.05)
    says(bench, 0.01)
    assert [c.kind for c in bench.tick()] == [TAKEOVER]
    assert bench.control.release() and not bench.control.release()


@pytest.mark.parametrize(
    "state", [PolicyState.WAITING, PolicyState.HOLD, PolicyState.FAULT], ids=lambda s: s.name
)
def test_he_may_help_in_every_state_and_what_needs_a_word_still_needs_it(state):
    bench = Bench(limits=Limits(hold_latch_s=0.5))
    if state is PolicyState.WAITING:
        bench.control.activate()
    else:
        bench.running()
    if state is PolicyState.FAULT:
        bench.control.fault("broken")
    while state is PolicyState.HOLD and not bench.loop.safety.latched:
        bench.tick()
    assert bench.state is state
    says(bench, 0.01)
    assert [c.kind for c in bench.tick()] == [TAKEOVER]
    for _ in range(8):
        bench.tick()
    back = PolicyState.HOLD if state is PolicyState.WAITING else state
    assert bench.state is back
    assert bench.loop.safety.latched is (back is PolicyState.HOLD)


def test_he_is_held_to_the_limits_and_they_end_nothing():
    bench = Bench(limits=Limits(jump=0.1)).running()
    for _ in range(10):
        says(bench, -5.0)
        (command,) = bench.tick()
        assert command.kind is TAKEOVER and command.action[0] >= -0.05
    assert bench.state is PolicyState.TAKEOVER


@given(st.lists(st.sampled_from([-0.05, 0.0, 0.05, None]), min_size=5, max_size=40))
@settings(max_examples=50, deadline=None)
def test_no_hand_over_jumps(moves):
    """Each command that moves is within the jump limit of the one before it; None: nothing is said
    for as long as it takes to lose the robot."""
    bench = Bench(limits=Limits(jump=0.2)).running()
    for move in moves:
        if move is None:
            for _ in range(8):
                bench.cycle()
        else:
            says(bench, move)
            bench.cycle()
    moved = [c.action[0] for c in bench.out.commands]
    kinds = [c.kind for c in bench.out.commands]
    for (before, after), kind in zip(zip(moved, moved[1:], strict=False), kinds[1:], strict=True):
        assert kind in (HELD, STOP) or abs(after - before) <= 0.2 * 0.1 + 1e-9


def test_velocities_hold_until_the_timeout_and_become_displacements():
    bench = Bench().running()
    says(bench, 0.2, meaning=TakeoverNumbers.VELOCITY)
    said = [bench.tick()[0] for _ in range(6)]
    assert [c.kind for c in said] == [TAKEOVER] * 6
    assert np.allclose([c.action[0] for c in said], 0.01)
    assert bench.tick()[0].kind is STOP


def test_velocities_lead_on_from_the_last_place():
    space = end_effectors(ActionKind.END_EFFECTOR_POSE)
    limits = Limits(
        space=space, low=(-1,) * 3 + (-3,) * 3, high=(1,) * 3 + (3,) * 3,
        stale_action=StaleAction.HOLD,
    )  # fmt: skip
    bench = Bench(limits=limits)
    bench.control.activate()
    here = bench.moment()
    pose = np.array([0.3, 0, 0.2, 0, 0, 1.5])
    bench.control.measure(pose, here.now_ns, here, range(6))
    values = np.array([0.1, 0, 0, 0, 0, 0.2, 1.0])
    bench.control.take_over(Teleoperation(values, TakeoverNumbers.VELOCITY, bench.clock.now))
    first, second = (bench.tick()[0].action for _ in range(2))
    assert np.allclose(first[:6], pose + np.array([0.005, 0, 0, 0, 0, 0.01]))
    assert np.allclose(second[:6], pose + np.array([0.01, 0, 0, 0, 0, 0.02]))


def test_a_leader_arm_is_followed_within_the_jump_limit_from_where_the_robot_is():
    arm = Arm(speed=0.5, jump=0.02)
    for _ in range(10):
        arm.period()
    start = arm.told
    for _ in range(10):
        values = np.array([start - 1.0, np.nan])
        arm.bench.control.take_over(
            Teleoperation(values, TakeoverNumbers.JOINTS, arm.bench.clock.now)
        )
        (command,) = arm.period()
        assert command.kind is TAKEOVER
    assert np.abs(arm.steps[1:]).max() <= 0.02 * 6 + 1e-9
    assert arm.told == pytest.approx(start - 1.0)
    arm.bench.control.release()
    for _ in range(30):
        arm.period()
    assert arm.bench.state is PolicyState.RUNNING
    assert np.abs(arm.steps[1:]).max() <= 0.02 * 6 + 1e-9


def test_what_is_old_moves_nothing_and_a_gripper_stays_until_something_is_said_of_it():
    bench = Bench()
    bench.control.activate()
    says(bench, 0.01, age_s=TIMEOUT_S + 0.1)
    assert not bench.tick() and "takeover_timeout_s is 0.3" in bench.out.warnings[-1][1]
    says(bench, 0.01, gripper=np.nan)
    (command,) = bench.tick()
    assert command.kind is TAKEOVER and np.isnan(command.action[6]), "nobody has said: as it is"
    says(bench, 0.01, gripper=0.0)
    assert bench.tick()[0].action[6] == 0.0
    says(bench, 0.01, gripper=np.nan)  # as it is
    assert bench.tick()[0].action[6] == 0.0


def test_in_lockstep_he_answers_the_frame_also_where_there_is_no_task():
    bench = Bench(lockstep=True)
    bench.control.activate()
    bench.frame()
    says(bench, 0.01)
    (command,) = bench.out.commands
    assert command.kind is TAKEOVER and command.latest_ns == bench.clock.now
    bench.control.set_instruction("reach")
    bench.clock.advance(0.05)
    says(bench, 0.02)
    bench.answer(bench.frame())
    assert [c.action[0] for c in bench.out.commands] == [0.01, 0.02]
    bench.clock.advance(TIMEOUT_S + 0.05)
    bench.answer(bench.frame())
    assert bench.out.commands[-1].kind is STOP and bench.state is PolicyState.HOLD
    assert bench.control.release()
    bench.clock.advance(0.05)
    bench.answer(bench.frame())
    assert bench.out.commands[-1].kind is POLICY
