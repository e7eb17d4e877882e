"""`policy: zero` on a robot of joints: where everybody starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from sensor_msgs.msg import JointState

from support.nodes import Program
from support.policy_client import PolicyRig
from support.ros import RosPeer
from support.wait import repeating, wait_until
from vla_ros.core.resources import config_path
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.bringup.contract import read_contract, robot_parameters, write_contract
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import to_time

SO101 = config_path("so101_sim.yaml")
HERE = {"gripper": 0.3, "wrist_roll": 0.5, "wrist_flex": 0.4, "elbow_flex": -0.2,
        "shoulder_lift": 0.1, "shoulder_pan": -0.6}  # fmt: skip
PATIENT = {"max_age_s": 1.0}  # on a busy machine, too


def test_an_so101_stands_still_with_the_shipped_file_alone(
    spawn_node: Callable[..., Program], ros: RosPeer, ros_env: dict[str, str]
) -> None:
    files = [config_path("policy.yaml"), SO101]
    node = spawn_node("policy", {"outputs": ["joint_state"], **PATIENT}, files=files)
    rig = PolicyRig(ros, node, ros_env, [])
    commands = ros.inbox(JointState, "policy/joint_commands", qos.ACTION)
    driver = ros.publisher(JointState, "joint_states", qos.STATE)

    def measured() -> None:
        message = JointState(name=list(HERE), position=list(HERE.values()))
        message.header.stamp = to_time(time.time_ns())
        driver.publish(message)

    with repeating(measured, 0.01):
        rig.bring_up("lift the red cube")
        with rig.filming():
            status = rig.expect(State.RUNNING)
            wait_until(lambda: len(commands) > 20, 10.0, "21 commands")
    assert status.policy == "zero"
    for said in (dict(zip(m.name, m.position, strict=True)) for m in commands.messages):
        assert said == pytest.approx(HERE), "the hand, too"


def test_a_contract_made_of_the_shipped_file_starts_too(
    spawn_node: Callable[..., Program], ros: RosPeer, tmp_path: Path
) -> None:
    made = tmp_path / "so101.yaml"
    write_contract(robot_parameters(SO101), "so101", made)
    contract = read_contract(made)
    given: dict[str, Any] = {**contract.parameters, **PATIENT}
    spawn_node("policy", given, remappings=dict(contract.remappings))
    ros.bring_up("/policy")
