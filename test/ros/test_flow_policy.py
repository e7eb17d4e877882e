"""A flow policy in a whole graph: random weights, so the graph is judged and not the task."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: source a ROS 2 or use its wheels")
pytest.importorskip("mujoco", reason="mujoco is not installed: the demo needs the simulation")

from support.nodes import run_cli
from vla_ros.bringup.environment import python_path

pytestmark = pytest.mark.ros
NEEDS = ("-p", "policy.use_joint_states=true", "-p", "policy.use_wrist_image=true")


@pytest.mark.slow
def test_a_flow_policy_runs_in_the_graph_and_replays_identically(tmp_path: Path) -> None:
    names = ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE", "FASTDDS_DEFAULT_PROFILES_FILE")
    env = {key: value for key, value in os.environ.items() if key not in names}
    env["PYTHONPATH"] = python_path(env)
    seen = []
    for number in range(2):
        film = tmp_path / f"{number}.gif"
        words = ("--checkpoint", "random:smolvla-small", *NEEDS, "--task", "reach_red_cube",
                 "--mode", "lockstep", "--gif", str(film), "--json")  # fmt: skip
        code, out, err = run_cli("demo", *words, env=env, timeout=150.0)
        assert code == 0, err
        result = json.loads(out.splitlines()[-1])
        assert result["graph_ok"] is True
        assert result["schedule"] == "flow"
        assert result["actions"] >= result["steps"] > 0
        assert result["stale_published"] == result["worker_restarts"] == 0
        assert {"preprocess", "vision", "prefill", "decode"} <= set(result["stages_ms"])
        seen.append(film.read_bytes())
    assert seen[0] == seen[1]
