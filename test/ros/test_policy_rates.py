"""Two rates at the real node: the data's, at which actions are executed, and the robot's."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

from support.plugins import EXAMPLE, install
from support.policy_client import PolicyRig
from support.ros import RosPeer
from support.timing import judge
from support.wait import repeating, wait_until
from vla_ros.core.clock import SECOND
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import stamp_of, to_time

STEP = 0.005  # rad an action
ARM = {
    "policy": "replay",
    "outputs": ["positions"],
    "action_space": "joint_delta",
    "joint_delta_from": "commanded",
    "action_names": ["j1", "g"],
    "joint_names": ["j1"],
    "gripper_names": ["g"],
    "bounds_low": [-0.5],
    "bounds_high": [0.5],
    "velocity_limits": [5.0],
    "leash_s": 5.0,
    "detect_frozen": False,
    "camera_rate_hz": 50.0,
}


class Joint:
    """A joint that is where it was commanded to be, and when it was commanded so."""

    def __init__(self, ros: RosPeer) -> None:
        self.position = 0.0
        self.commanded: list[float] = []
        self.times_ns: list[int] = []
        self._states = ros.publisher(JointState, "joint_states", qos.STATE)
        ros.node.create_subscription(Float64MultiArray, "policy/positions", self._obey, qos.ACTION)

    def _obey(self, message: Float64MultiArray) -> None:
        self.position = message.data[0]
        self.commanded.append(self.position)
        self.times_ns.append(time.monotonic_ns())

    def report(self) -> None:
        message = JointState(name=["j1"], position=[self.position])
        message.header.stamp = to_time(time.time_ns())
        self._states.publish(message)


def actions(tmp_path, **said: float) -> str:
    path = tmp_path / "steps.npz"
    np.savez(path, actions=np.tile([STEP, 1.0], (5000, 1)), **said)
    return str(path)


def speed(start_policy, ros: RosPeer, file: str, **rates: float) -> float:
    """Of the joint, in rad/s, over two seconds, while there are actions: a machine that does other
    work misses some."""
    rig = start_policy(replay_file=file, **(ARM | rates))
    joint = Joint(ros)
    with repeating(joint.report, 0.01):
        rig.bring_up("turn")
        with rig.filming(50.0):
            rig.expect(State.RUNNING)
            wait_until(lambda: joint.position > 5 * STEP, 15.0, "the joint moves")
            begin = len(joint.commanded) - 1
            wait_until(
                lambda: joint.times_ns[-1] - joint.times_ns[begin] > 2 * SECOND, 15.0, "2 s of it"
            )
    rig.node.kill()
    commands = list(rig.commands.messages)
    period_s, moved, seconds = 1.0 / rates["control_rate_hz"], 0.0, 0.0
    for before, command in pairwise(commands[2:]):
        if command.kind == CommandKind.POLICY:
            since = stamp_of(command.header.stamp) - stamp_of(before.header.stamp)
            moved, seconds = moved + command.action[0], seconds + max(since / SECOND, period_s)
    assert joint.commanded[-1] >= 0.9 * moved > 0.0  # it is there
    return moved / seconds


@pytest.mark.timing
@pytest.mark.parametrize("control_hz", [20.0, 100.0])
def test_a_policy_moves_the_robot_as_fast_at_any_control_rate(
    start_policy, ros, tmp_path, control_hz
):
    """It was 0.098 rad/s at 20 Hz and 0.247 rad/s at 100 Hz."""
    rates = {"action_rate_hz": 20.0, "control_rate_hz": control_hz}
    found = speed(start_policy, ros, actions(tmp_path), **rates)
    away = abs(found / (20.0 * STEP) - 1.0)
    judge("speed away from its data's", away, quiet=0.05, loaded=0.25, unit="of it")


def configure(rig: PolicyRig, *lines: str, **wanted: Any) -> None:
    """Configure; the status has what is wanted, and the log comes to have each line once."""
    assert rig.ros.change_state("/policy", "configure")
    rig.expect(lambda s: all(getattr(s, name) == value for name, value in wanted.items()))
    for line in lines:
        rig.node.wait_for_log(line)
        assert rig.node.log.count(line) == 1


def test_a_file_s_own_rate_is_the_actions_and_stays_when_the_robot_s_changes(
    start_policy, tmp_path
):
    rig = start_policy(replay_file=actions(tmp_path, action_rate_hz=10.0), **ARM)
    line = "actions at 10 Hz, the rate of this policy's data; commands at 20 Hz"
    configure(rig, line, action_rate_hz=10.0, control_rate_hz=20.0)
    assert rig.ros.set_parameter("/policy", "control_rate_hz", 100.0) == (True, "")
    rig.expect(lambda s: (s.action_rate_hz, s.control_rate_hz) == (10.0, 100.0))
    done, reason = rig.ros.set_parameter("/policy", "action_rate_hz", 50.0)
    assert not done and "action_rate_hz" in reason


def test_a_parameter_wins_over_the_checkpoint_and_the_contradiction_is_said(start_policy, tmp_path):
    given = ARM | {"action_rate_hz": 50.0}
    rig = start_policy(replay_file=actions(tmp_path, action_rate_hz=30.0), **given)
    lines = (
        "check this: action_rate_hz 50, not the checkpoint's 30",
        "check this: control_rate_hz 20 is below action_rate_hz 50",
    )
    configure(rig, *lines, action_rate_hz=50.0, control_rate_hz=20.0)


def test_a_robot_is_asked_for_the_rate_that_nothing_says(spawn_node, ros, ros_env, tmp_path):
    """Where an output leads to it; the same policy without one takes the control rate."""
    path = os.pathsep.join(filter(None, (str(install(EXAMPLE, tmp_path)), ros_env["PYTHONPATH"])))
    given = {"policy": "nod", "outputs": ["twist"], "velocity_limits": [0.2] * 6}
    node = spawn_node("policy", given, extra_env={"PYTHONPATH": path})
    rig = PolicyRig(ros, node, ros_env, [])
    assert not ros.change_state("/policy", "configure")
    refused = rig.expect(lambda s: "refused" in s.reason)
    assert "\n" not in refused.reason
    assert "nothing says the rate of this policy's data" in refused.reason
    assert "set action_rate_hz (Bridge 5, DROID 15" in refused.reason
    assert ros.set_parameter("/policy", "outputs", [""]) == (True, "")
    taken = "nothing says the rate of this policy's data; control_rate_hz 20 is taken"
    configure(rig, taken, action_rate_hz=20.0)
