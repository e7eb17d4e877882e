"""HOLD of a node with limits as of a robot: left when its cause is over, or when asked."""

from __future__ import annotations

import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.policy_client import moves
from support.timing import judge
from support.wait import wait_until
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State

STEP_M = 0.01  # of every action, 0.2 m/s
BOUNDS = {
    "bounds_low": [-0.02] * 3 + [-0.1] * 3,
    "bounds_high": [0.02] * 3 + [0.1] * 3,
}
#: Parameters, and how far the first command from rest may go, m.
LIMITS = {
    "jump": ({**BOUNDS, "jump_limit": 0.2}, 0.2 * 0.04),
    "jump and jerk": ({**BOUNDS, "jump_limit": 0.05, "jerk_limit": 0.05}, 0.05 * 0.04),
    "per second": (
        {
            "velocity_limits": [0.25] * 3 + [1.0] * 3,
            "acceleration_limits": [0.5] * 3 + [2.0] * 3,
        },
        0.5 * 0.05**2,
    ),
}


def steady(folder):
    """A policy that says the same displacement for ever."""
    rows = np.zeros((50, 7))
    rows[:, 0], rows[:, 6] = STEP_M, 1.0
    return {"policy": "replay", "replay_file": moves(folder, rows)}


def at_full_speed(rig):
    """Wait for a command that says all of the policy's displacement."""

    def full():
        last = rig.commands.last
        return last.kind == CommandKind.POLICY and abs(last.action[0] - STEP_M) < 1e-9

    wait_until(lambda: len(rig.commands) and full(), 10.0, lambda: rig.status.last.reason)


@pytest.mark.parametrize(("limits", "first_m"), LIMITS.values(), ids=LIMITS)
def test_a_robot_with_limits_of_its_own_moves_again_after_the_camera_stalled(
    start_policy, tmp_path, limits, first_m
):
    rig = start_policy(**steady(tmp_path), **limits)
    rig.bring_up("reach")
    with rig.filming():
        rig.expect(State.RUNNING)
        at_full_speed(rig)
    rig.expect(State.HOLD)  # nobody films any more
    begin = len(rig.commands)
    with rig.filming():
        began = time.monotonic()
        rig.expect(State.RUNNING)
        judge("HOLD left after its cause", time.monotonic() - began, quiet=1.0, loaded=3.0)
        at_full_speed(rig)
    acted = [m for m in rig.commands.messages[begin:] if m.kind == CommandKind.POLICY]
    assert acted[0].action[0] <= first_m + 1e-9, "from rest"


def test_a_hold_that_lasted_is_left_only_when_somebody_resumes(start_policy, tmp_path):
    rig = start_policy(**steady(tmp_path), hold_latch_s=0.5)
    rig.bring_up("reach")
    with rig.filming():
        rig.expect(State.RUNNING)
    latched = rig.expect(lambda s: s.state == State.HOLD and "call ~/resume" in s.reason)
    assert "it lasted longer than hold_latch_s, 0.5 s" in latched.reason
    begin = len(rig.commands)
    with rig.filming():
        received = rig.status.last.frames_received
        wait_until(lambda: rig.status.last.frames_received > received + 20, 10.0, "20 frames")
        assert rig.status.last.state == State.HOLD
        assert CommandKind.POLICY not in {m.kind for m in rig.commands.messages[begin:]}
        rig.call("resume")
        rig.expect(State.RUNNING)
