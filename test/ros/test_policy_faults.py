"""The policy node when its camera or its worker fails: it stops the robot, and goes on after."""

from __future__ import annotations

import signal
import time

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.policy_client import GRIPPER
from support.timing import judge
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.common.convert import stamp_of

A, T = 0.5, 0.05  # max_age_s and the control period of the shipped configuration
SILENCE = 1.0
MARGIN = 0.03  # s, for the operating system to run two processes
LATEST = 2.5 * T  # from one tick to the next, with one that the operating system brings late
BUSY = 1.0  # s, for one that has other work too


def running(start_policy, **parameters):
    rig = start_policy(**parameters)
    rig.bring_up("reach")
    camera = rig.camera()
    rig.expect(State.RUNNING)
    rig.wait_for(CommandKind.POLICY)
    return rig, camera


@pytest.mark.timing
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_camera_that_stops_stops_the_robot_and_one_that_comes_back_ends_the_hold(
    start_policy, number
):
    rig, camera = running(start_policy)
    camera.signal(number)
    lost_at, lost_stamp = time.monotonic_ns(), time.time_ns()
    held = rig.expect(lambda s: s.state == State.HOLD and stamp_of(s.header.stamp) > lost_stamp)
    assert "observation age" in held.reason
    assert "max_age 500 ms" in held.reason

    # A busy machine may have stopped before for a while.
    before = sum(stamp_of(m.header.stamp) <= lost_stamp for m in list(rig.commands.messages))
    first = rig.wait_for(CommandKind.STOP, before)
    # The first tick after A stops, by the node's own stamps: a tick that the machine brings late is
    # judged as a late tick.
    tick = rig.largest_tick_gap_s(first - 1)
    judge("largest gap between ticks", tick, quiet=LATEST, loaded=BUSY)
    after = (stamp_of(rig.commands.messages[first].header.stamp) - lost_stamp) / 1e9
    limit = A + max(T, tick) + MARGIN
    assert after <= limit, f"first STOP {after:.3f} s after the camera was lost, not {limit:.3f}"
    heard = (rig.commands.times[first] - lost_at) / 1e9
    judge("first STOP heard", heard, quiet=A + LATEST + MARGIN, loaded=A + LATEST + BUSY)
    # Zero commands at the control rate for a second, then nothing.
    time.sleep(SILENCE + 10 * T)
    stops = rig.commands.messages[first:]
    assert {CommandKind(m.kind) for m in stops} == {CommandKind.STOP}
    assert all(not any(m.action[:6]) and m.action[6] == GRIPPER for m in stops)
    assert all(stamp_of(m.observation_stamp) == stamp_of(m.valid_until) == 0 for m in stops)
    said = [stamp_of(m.header.stamp) for m in rig.commands.messages[first:]]
    lasted = (said[-1] - said[0]) / 1e9
    tick = rig.largest_tick_gap_s(first)
    judge("largest gap between ticks", tick, quiet=LATEST, loaded=BUSY)
    assert SILENCE - T - max(T, tick) <= lasted <= SILENCE + max(T, tick) + MARGIN
    assert rig.status.last.state == State.HOLD

    begin, chunks = len(rig.commands), len(rig.chunks)
    if number is signal.SIGSTOP:
        camera.signal(signal.SIGCONT)
    else:
        rig.camera()
    rig.expect(State.RUNNING)
    moved = rig.commands.messages[rig.wait_for(CommandKind.POLICY, begin)]
    # Two fresh actions were held back; the third is published.
    rig.chunks.wait(lambda m: m.observation_stamp == moved.observation_stamp)
    fresh = [stamp_of(m.observation_stamp) for m in rig.chunks.messages[chunks:]]
    assert fresh.index(stamp_of(moved.observation_stamp)) >= 2
    rig.check_commands(A)


@pytest.mark.timing
def test_a_worker_that_dies_or_hangs_is_replaced_and_the_ticks_go_on(start_policy):
    # No silence, so that every control tick can be seen.
    rig, _ = running(start_policy, silence_after_s=60.0)
    began = len(rig.commands)
    pids = []
    for number, reason in (
        (signal.SIGKILL, "killed by SIGKILL"),
        (signal.SIGSTOP, "exceeds max_age"),  # held at A, replaced after it
        (signal.SIGSEGV, "killed by SIGSEGV"),
    ):
        pids.append(rig.worker(number))
        rig.expect(lambda s, r=reason: s.state == State.HOLD and r in s.reason)
        back = rig.runs_again(len(pids))
        assert back.worker_pid not in (0, *pids)
        begin = len(rig.commands)
        rig.wait_for(CommandKind.POLICY, begin)

    rig.node.wait_for_log("worker lost: the worker has not answered for")

    rig.worker(signal.SIGKILL)  # the fourth in ten minutes
    fault = rig.expect(State.FAULT)
    assert "3 replacements" in fault.reason
    assert fault.worker_pid == 0
    assert {m.kind for m in rig.after(fault, 20)} == {CommandKind.STOP}
    judge("largest gap between ticks", rig.largest_tick_gap_s(began), quiet=LATEST, loaded=BUSY)

    assert rig.call("recover")
    rig.expect(State.WAITING)
    rig.expect(State.RUNNING)
    rig.wait_for(CommandKind.POLICY, len(rig.commands))
    rig.check_commands(A)


def test_activation_starts_a_worker_where_a_fault_left_none(start_policy):
    rig, _ = running(start_policy)
    for number in range(1, 4):
        rig.worker(signal.SIGKILL)
        rig.runs_again(number)
    rig.worker(signal.SIGKILL)
    assert rig.expect(State.FAULT).worker_pid == 0
    assert rig.ros.change_state("/policy", "deactivate")
    assert rig.ros.change_state("/policy", "activate")
    assert rig.call("resume")
    assert rig.expect(State.RUNNING).worker_pid
    rig.check_commands(A)


def test_activation_starts_a_worker_where_one_gave_up_while_inactive(start_policy):
    rig, _ = running(start_policy)
    assert rig.ros.change_state("/policy", "deactivate")
    for number in range(1, 4):
        rig.expect(lambda s: s.worker_pid)
        rig.worker(signal.SIGKILL)
        rig.expect(lambda s, n=number: s.worker_restarts == n and s.worker_pid)
    rig.worker(signal.SIGKILL)
    gone = rig.expect(lambda s: "3 replacements" in s.reason)
    assert (gone.state, gone.worker_pid) == (State.INACTIVE, 0)
    assert rig.ros.change_state("/policy", "activate")
    assert rig.call("resume")
    assert rig.expect(State.RUNNING).worker_pid
    rig.check_commands(A)
