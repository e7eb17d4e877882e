"""Joint positions through the loop: from where the robot is, and held where they were led."""

import numpy as np
import pytest

from unit.runtime.control.bench import Bench
from vla_ros.core.action_space import ActionKind, joints
from vla_ros.core.clock import Moment
from vla_ros.core.types import CommandKind, PolicyState, StaleAction
from vla_ros.runtime.safety import Limits

NAMES = ("shoulder", "claw", "elbow", "thumb")
PLACES = {"shoulder": 0, "elbow": 2}


def limits(kind=ActionKind.JOINT_POSITION, **other):
    stale = StaleAction.HOLD if kind.absolute else StaleAction.ZERO
    given = {"low": (-2.0,) * 2, "high": (2.0,) * 2, "stale_action": stale}
    return Limits(space=joints(kind, NAMES, ("claw", "thumb")), **(given | other))


def waiting(**other):
    return Bench(limits=limits(**other)).ready()


def measure(bench, **positions):
    now = Moment(bench.clock.now, bench.clock.steady)
    values, places = np.array(list(positions.values())), [PLACES[n] for n in positions]
    bench.control.measure(values, now.now_ns, now, places)


def test_nothing_moves_before_every_joint_has_said_where_it_is():
    bench = waiting()
    measure(bench, shoulder=0.1)
    assert bench.cycle(np.zeros(4)) == []
    assert bench.loop.counters.last_block.endswith("nothing fresh on joint_states of 'elbow'")
    measure(bench, shoulder=0.1)
    measure(bench, elbow=-0.1)  # a driver of its own
    assert [c.kind for c in bench.cycle(np.zeros(4))] == [CommandKind.POLICY]


def test_the_first_command_is_a_change_from_the_measured_joints():
    bench = waiting(jump=0.05)  # 0.2 rad a period
    measure(bench, shoulder=0.5, elbow=-0.5)
    (command,) = bench.cycle(np.array([1.0, 0.3, -0.4, 0.9]))
    assert command.action == pytest.approx([0.7, 0.3, -0.4, 0.9])


def test_a_hold_keeps_joints_and_grippers_as_they_were_commanded():
    bench = waiting()
    measure(bench, shoulder=0.0, elbow=0.0)
    bench.cycle(np.array([0.5, 0.3, 0.5, 0.9]))
    bench.clock.advance(0.3)
    measure(bench, shoulder=0.4, elbow=0.45)
    commands = [c for _ in range(10) for c in bench.tick()]
    assert bench.state is PolicyState.HOLD
    stops = [c for c in commands if c.kind is CommandKind.STOP]
    assert stops[0].action == pytest.approx([0.5, 0.3, 0.5, 0.9]), "one reading moves nothing"
    held = [c for c in commands if c.kind is CommandKind.HELD]
    assert all(c.action == pytest.approx([0.5, 0.3, 0.5, 0.9]) for c in held), "the place as before"


def test_joint_displacements_stop_by_saying_none():
    bench = waiting(kind=ActionKind.JOINT_DELTA, low=(-0.1,) * 2, high=(0.1,) * 2)
    (command,) = bench.cycle(np.array([0.3, 0.5, -0.05, 0.6]))
    assert command.action.tolist() == [0.1, 0.5, -0.05, 0.6]
    commands = [c for _ in range(15) for c in bench.tick()]
    assert {c.kind for c in commands} == {CommandKind.HELD, CommandKind.STOP}
    assert all(c.action.tolist() == [0.0, 0.5, 0.0, 0.6] for c in commands)


def test_each_gripper_keeps_its_own_dwell():
    bench = waiting(kind=ActionKind.JOINT_DELTA, gripper_dwell_s=0.2)
    bench.cycle(np.array([0.0, 1.0, 0.0, 1.0]))
    (first,) = bench.cycle(np.array([0.0, 0.0, 0.0, 1.0]))
    bench.tick(0.3)
    (second,) = bench.cycle(np.array([0.0, 0.0, 0.0, 0.0]))
    assert first.action.tolist() == [0.0, 1.0, 0.0, 1.0], "the claw has just been told to open"
    assert second.action.tolist() == [0.0, 0.0, 0.0, 0.0]


def test_an_answer_of_another_width_is_no_action():
    bench = waiting()
    measure(bench, shoulder=0.0, elbow=0.0)
    assert bench.cycle(np.zeros(7)) == []
    assert bench.loop.counters.last_block == "action has shape (7,), not (4,)"


def test_one_joint_that_has_long_said_nothing_keeps_a_robot_from_beginning():
    bench = waiting()
    measure(bench, shoulder=0.0, elbow=0.0)
    bench.clock.advance(0.6)
    measure(bench, elbow=0.0)
    assert bench.cycle(np.zeros(4)) == []
    assert bench.loop.counters.last_block.endswith("nothing fresh on joint_states of 'shoulder'")
