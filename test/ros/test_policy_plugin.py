"""The documented example package behind the policy node."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.plugins import EXAMPLE, install
from support.policy_client import PolicyRig
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State


def test_an_installed_package_s_policy_runs_in_the_node(spawn_node, ros, ros_env, tmp_path):
    site = install(EXAMPLE, tmp_path)
    path = os.pathsep.join(filter(None, (str(site), ros_env.get("PYTHONPATH"))))
    parameters = {"policy": "nod", "policy_options": ["step_m=0.01"]}
    node = spawn_node("policy", parameters, extra_env={"PYTHONPATH": path})
    rig = PolicyRig(ros, node, ros_env, [])
    rig.bring_up("nod")
    with rig.filming():
        assert rig.expect(State.RUNNING).policy == "nod"
        nods = rig.commands.wait(lambda m: m.kind == CommandKind.POLICY and m.action[2] < 0)
    assert nods.action[2] == pytest.approx(-0.01)
