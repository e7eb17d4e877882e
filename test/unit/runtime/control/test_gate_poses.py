"""Absolute poses: what the robot is told first, where it is held, and no wrap at half a turn."""

import numpy as np
import pytest

from golden.gate import gate
from unit.runtime.control.bench import Bench
from vla_ros.core import rotation
from vla_ros.core.action_space import ActionKind, end_effectors
from vla_ros.core.clock import MS, SECOND, Moment
from vla_ros.core.types import CommandKind, PolicyState, StaleAction
from vla_ros.runtime.safety import Limits

POSES = end_effectors(ActionKind.END_EFFECTOR_POSE)
HERE = np.array([0.4, 0.0, 0.3, 0.0, 0.0, 0.0, 0.0])
WIDE = {"low": (-1.0,) * 3 + (-np.pi,) * 3, "high": (1.0,) * 3 + (np.pi,) * 3}


def limits(stale=StaleAction.HOLD, **other):
    return Limits(stale_action=stale, space=POSES, **(WIDE | other))


def pose(x=0.4, turn=0.0, axis=0):
    out = HERE.copy()
    out[0], out[3 + axis] = x, turn
    return out


def waiting(**other):
    return Bench(limits=limits(**other)).ready()


def measure(bench, where=HERE, age_s=0.0):
    now = Moment(bench.clock.now, bench.clock.steady)
    bench.control.measure(where, now.now_ns - round(age_s * SECOND), now)


def kinds(commands):
    return [c.kind for c in commands]


def test_the_first_pose_is_held_to_the_jump_limit_from_the_measured_one():
    bench = waiting(jump=0.05)  # a tenth of a metre
    measure(bench)
    (command,) = bench.cycle(pose(x=0.9))
    assert command.action[0] == pytest.approx(0.5)
    bench.control.set_instruction("push")  # a flush: what was commanded goes on
    measure(bench, pose(x=-0.2))
    (command,) = [c for c in bench.cycle(pose(x=0.9)) if c.kind is CommandKind.POLICY]
    assert command.action[0] == pytest.approx(0.6), "no farther from it than the leash"


def test_without_a_measured_pose_nothing_moves():
    bench = waiting()
    assert bench.cycle(pose()) == []
    assert "measured_pose" in bench.loop.counters.last_block
    measure(bench)
    assert kinds(bench.cycle(pose())) == [CommandKind.POLICY]


@pytest.mark.parametrize("age_s", [0.6, -0.1])
def test_a_measured_pose_that_is_old_or_of_the_future_is_dropped(age_s):
    bench = waiting()
    measure(bench, age_s=age_s)
    assert "measured pose" in bench.loop.counters.last_drop
    assert bench.cycle(pose()) == []


def test_a_stop_needs_no_measurement():
    bench = waiting()
    measure(bench)
    bench.cycle(pose(x=0.6))
    commands = [c for _ in range(30) for c in bench.tick()]
    assert bench.state is PolicyState.HOLD
    assert {c.action[0] for c in commands if c.kind is CommandKind.STOP} == {0.6}


def test_an_action_without_a_place_to_begin_from_leaves_the_robot_held():
    bench = waiting()
    measure(bench)
    bench.cycle(pose())
    bench.clock.advance(0.4)
    measure(bench)
    assert kinds(bench.tick(0.1)) == [CommandKind.STOP] and bench.state is PolicyState.HOLD
    bench.tick(0.5)  # where it is was measured too long ago by now
    assert kinds(bench.cycle(pose())) == [CommandKind.STOP]
    assert "measured_pose" in bench.loop.counters.last_block


def test_after_a_silent_hold_the_jump_is_from_where_the_robot_is_now():
    bench = waiting(jump=0.05, silence_after_s=0.2)
    measure(bench)
    bench.cycle(pose())
    for _ in range(24):
        bench.tick()
    assert bench.state is PolicyState.HOLD
    for _ in range(2):
        measure(bench, pose(x=-0.5))  # it was moved by hand
        assert CommandKind.POLICY not in kinds(bench.cycle(pose(x=0.4)))
    measure(bench, pose(x=-0.5))
    (command,) = bench.cycle(pose(x=0.4))
    assert command.action[0] == pytest.approx(-0.4), "one jump from there"
    for _ in range(3):
        measure(bench, pose(x=-0.5))
        commands = bench.cycle(pose(x=-0.45))
    assert kinds(commands) == [CommandKind.POLICY]
    assert commands[0].action[0] == -0.45


def test_the_last_word_holds_where_the_robot_was_led_whatever_one_reading_says():
    bench = waiting()
    measure(bench)
    bench.cycle(pose(x=0.5))
    measure(bench, pose(x=0.7))
    bench.control.shut_down()
    assert bench.out.commands[-1].kind is CommandKind.STOP
    assert bench.out.commands[-1].action[0] == 0.5


@pytest.mark.parametrize("step_s", [-5.0, -0.2, 0.2, 5.0])
def test_a_clock_step_at_speed_is_a_stop_where_the_robot_was_led(step_s):
    """Its measurements are void then; a HOLD said nothing to any output."""
    bench = waiting()
    measure(bench)
    bench.cycle(pose(x=0.5))
    bench.clock.now += round(step_s * SECOND)
    (command,) = bench.tick()
    assert (command.kind, command.action[0]) == (CommandKind.STOP, 0.5)
    assert bench.state is PolicyState.HOLD


def test_a_turn_past_pi_is_a_small_one():
    before = pose(turn=3.1)
    within = limits(jump=0.02)  # 0.126 rad
    gated = gate(pose(turn=-3.1), (before,), within)  # 0.083 rad by the shorter way
    assert gated.clamped == ""
    gated = gate(pose(turn=-2.9), (before,), within)  # 0.283 rad
    assert gated.clamped == "jump"
    moved = np.linalg.norm(rotation.relative(before[3:6], gated.action[3:6]))
    assert moved == pytest.approx(0.02 * 2 * np.pi)
    left = np.linalg.norm(rotation.relative(gated.action[3:6], pose(turn=-2.9)[3:6]))
    assert left == pytest.approx(2 * np.pi - 6.0 - moved), "by the shorter way"


def test_bounds_of_a_rotation_are_an_angle_around_their_middle():
    narrow = limits(low=(-1.0,) * 3 + (-0.5,) * 3, high=(1.0,) * 3 + (0.5,) * 3)
    tilted = HERE.copy()
    tilted[3:6] = [0.45, 0.45, 0.0]  # each within its range, together 0.636 rad
    gated = gate(tilted, (), narrow)
    assert (gated.clamped, gated.far) == ("bounds", True)
    assert np.linalg.norm(gated.action[3:6]) == pytest.approx(0.5)


def test_a_change_of_turning_is_held_to_the_jerk_limit():
    steady = (pose(turn=0.2), pose(turn=0.1))
    assert gate(pose(turn=0.3), steady, limits(jerk=0.01)).clamped == ""
    gated = gate(pose(turn=-0.3), steady, limits(jerk=0.01))
    assert gated.clamped == "jerk"
    assert gated.action[3] == pytest.approx(0.3 - 0.02 * np.pi)


def test_a_measured_pose_out_of_order_changes_nothing():
    bench = waiting()
    measure(bench)
    bench.clock.advance(0.01)
    measure(bench, pose(x=0.9), age_s=(20 * MS) / SECOND)
    bench.control.shut_down()
    assert bench.loop.fresh_pose(Moment(bench.clock.now, bench.clock.steady))[0] == 0.4
