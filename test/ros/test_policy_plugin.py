"""The documented example package behind the policy node."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.plugins import EXAMPLE, LATE, install, offer
from support.policy_client import PolicyRig
from support.timing import QUIET
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


@pytest.mark.long
@pytest.mark.timing
@pytest.mark.parametrize("takes_s", [0.08, 0.005])
def test_a_machine_slower_than_real_time_is_logged_once(
    spawn_node, ros, ros_env, tmp_path, takes_s
):
    """With no monitor beside it; a fast one is not."""
    offer(tmp_path, "late", LATE, "late = late:Late")
    path = os.pathsep.join(filter(None, (str(tmp_path), ros_env.get("PYTHONPATH"))))
    parameters = {"policy": "late", "policy_options": [f"takes_s={takes_s}"]}
    node = spawn_node("policy", parameters, extra_env={"PYTHONPATH": path})
    rig = PolicyRig(ros, node, ros_env, [])
    rig.bring_up("wait")
    said = "this machine is slower than real time: inference takes "
    slow = takes_s > 0.05
    with rig.filming(20.0):
        rig.expect(State.RUNNING)
        if slow:
            node.wait_for_log(said, 15.0)
        for _ in range(5):
            rig.latency.wait_new(lambda m: m.inference_s.count >= 10)
    if slow or QUIET:  # one that others use may well be too slow
        assert node.log.count(said) == int(slow), node.log
