"""Nodes where torch is not installed: what computes a policy has a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from rcl_interfaces.srv import ListParameters

import vla_ros.ros.nodes
from support.missing import without
from support.nodes import run_cli
from support.policy_client import moves
from support.wait import wait_until

HEAVY = ("torch", "transformers")
NODES = sorted(path.parent.name for path in Path(vla_ros.ros.nodes.__path__[0]).glob("*/node.py"))
NEEDS = {"bridge": "mujoco", "recorder": "rosbags", "rerun": "rerun", "view": "viser"}


@pytest.fixture
def env(ros_env, tmp_path):
    """Of processes that find neither torch nor transformers, nor do theirs."""
    hidden = without(tmp_path, HEAVY, ros_env)
    for name in HEAVY:
        done = subprocess.run([sys.executable, "-c", f"import {name}"], env=hidden, check=False,
                              capture_output=True, text=True)  # fmt: skip
        assert f"No module named '{name}'" in done.stderr
    return hidden


def spins(ros, name):
    """Whether it answers. A request just after its start may reach nobody."""
    with contextlib.suppress(AssertionError):
        return ros.call(ListParameters, f"/{name}/list_parameters", timeout=2.0)


@pytest.mark.parametrize("name", [name for name in NODES if name != "policy"])
def test_a_node_runs(name, ros, spawn_node, env, tmp_path):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
    outputs = {"recorder": {"output": str(tmp_path / "bag")}, "rerun": {"out": str(tmp_path / "r")}}
    spawn_node(name, outputs.get(name), extra_env=env)
    wait_until(lambda: spins(ros, name), 60.0, f"an answer of {name}")


@pytest.mark.parametrize("policy", ["zero", "scripted", "replay"])
def test_the_policy_node_is_active_with_a_worker_of_a_policy_without_a_model(
    policy, ros, spawn_node, env, tmp_path
):
    parameters = {"policy": policy, "replay_file": moves(tmp_path)}
    spawn_node("policy", parameters, extra_env=env)
    ros.bring_up("/policy")


def test_the_policy_node_leaves_torch_to_the_worker_of_a_model(start_policy):
    pytest.importorskip("torch", reason="torch is not installed")
    rig = start_policy(policy="vla", checkpoint="shipped:tabletop")
    rig.bring_up()
    status = rig.expect(lambda s: s.worker_pid)
    loaded = [Path(f"/proc/{pid}/maps").read_text() for pid in (rig.node.pid, status.worker_pid)]
    assert ["libtorch" in files for files in loaded] == [False, True]


def test_a_bag_is_replayed(env, tmp_path):
    pytest.importorskip("rosbags", reason="rosbags is not installed")
    from support.bags import START, T, film, task, write_bag

    bag = write_bag(tmp_path / "bag", [task(START - T, "reach"), *film(3)])
    words = ("--policy", "zero", "--domain-id", env["ROS_DOMAIN_ID"])
    code, _, err = run_cli("replay", str(bag), *words, env=env)
    assert code == 0, err
