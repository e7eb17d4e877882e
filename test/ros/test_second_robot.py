"""A robot of another make, driven through its joint trajectory controller: see second_robot/."""

from __future__ import annotations

import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from second_robot.session import GOAL, OPEN_M, Session, T, to_and_fro, to_goal
from support.timing import judge
from support.wait import wait_until
from vla_ros.core.types import PolicyState as State

A = 0.5  # max_age_s
HYSTERESIS = 0.05  # gripper_hysteresis
MARGIN = 0.06  # s: two processes and a bystander
BUSY = 1.0  # s: the same on a machine with other work


@pytest.fixture
def meet(spawn_node, ros, ros_env):
    """`meet(replay_file)`: the other robot and the policy node."""
    started = []

    def start(replay, **parameters):
        return Session(spawn_node, ros, ros_env, started, replay, **parameters)

    yield start
    for program in started:
        program.end()
        print(f"----- {program.name}\n{program.log}")


def test_the_other_robot_is_driven_to_a_goal_pose(meet, tmp_path):
    session = meet(to_goal(tmp_path))
    session.begin("reach")
    session.wait_for(GOAL)
    near = (HYSTERESIS + 0.001) * OPEN_M  # smaller changes of the gripper are ignored
    wait_until(lambda: abs(session.finger - OPEN_M / 2) < near, 10.0, "the gripper half open")
    time.sleep(0.5)
    assert np.abs(session.positions[-1] - GOAL).max() < 0.01, "it stays there"
    command = session.rig.commands.last
    assert (command.action_space, len(command.action)) == (3, 7)
    assert list(command.names)[-1] == "finger_joint" and list(command.units) == ["rad"] * 6 + ["1"]
    session.check_trajectories()


def test_a_slowed_down_robot_reaches_its_goal_later_and_without_a_hold(meet, tmp_path):
    """A speed slider at 30 %: what is commanded waits for the arm."""
    session = meet(to_goal(tmp_path), options='{"scale": 0.3}', velocity_limits=[0.5] * 6)
    session.begin("reach")
    began = time.monotonic()
    session.wait_for(GOAL, 40.0)
    assert time.monotonic() - began > 2.0
    assert {s.state for s in session.rig.status.messages} <= {
        State.INACTIVE, State.WAITING, State.RUNNING, State.UNCONFIGURED,
    }  # fmt: skip


def test_an_emergency_stop_at_speed_is_a_hold_and_its_release_no_leap(meet, tmp_path, capsys):
    limits = {"velocity_limits": [0.5] * 6, "acceleration_limits": [20.0] * 6}
    session = meet(to_and_fro(tmp_path), hold_latch_s=0.0, **limits)
    session.begin("wave")
    session.emergency_stop(True)
    session.rig.expect(State.HOLD)
    assert "the arm has not moved" in session.rig.status.last.reason
    stood = session.positions[-1].copy()
    time.sleep(1.5)  # silent by then, and tried again
    assert np.abs(session.positions[-1] - stood).max() < 1e-3
    begin = len(session.positions)
    session.emergency_stop(False)
    session.rig.expect(State.RUNNING)
    session.wait_for_motion()
    positions, over = np.array(session.positions[begin:]), 10  # samples, 50 ms
    fastest = np.abs(positions[over:] - positions[:-over]).max() / (over * 0.005)
    with capsys.disabled():
        print(f"\nreleased: largest step in 50 ms {fastest * 0.05:.3f} rad")
    assert fastest * 0.05 < 0.5 * (0.3 + T + 0.1), "no farther than the leash"


@pytest.mark.timing
def test_the_other_robot_stops_when_told_or_left_alone_and_goes_on(meet, tmp_path, capsys):
    session = meet(to_and_fro(tmp_path))
    session.begin("wave")

    told = session.stop_s()
    judge("rest after a stop", told, quiet=2 * T + MARGIN, loaded=2 * T + BUSY)
    session.rig.call("resume")
    session.wait_for_motion()

    lost_at = time.monotonic_ns()
    session.blind(True)
    blind = session.stopped_after_s(lost_at)
    judge("rest after a blind", blind, quiet=A + T + MARGIN, loaded=A + T + BUSY)
    session.rig.expect(State.HOLD)
    session.blind(False)
    session.rig.expect(State.RUNNING)

    killed = session.pause_after_s(session.kill_worker())
    judge("rest after a killed worker", killed, quiet=2 * T + MARGIN, loaded=2 * T + BUSY)
    session.rig.runs_again(1)
    session.wait_for_motion()

    assert session.ros.change_state("/policy", "deactivate")
    began = time.monotonic_ns()
    rest = session.stopped_after_s(began)
    judge("rest after deactivation", rest, quiet=2 * T + MARGIN, loaded=2 * T + BUSY)
    session.check_trajectories()
    with capsys.disabled():
        print(f"\nstands still after: stop {told:.3f} s, cameras covered {blind:.3f} s,"
              f" worker killed {killed:.3f} s")  # fmt: skip
