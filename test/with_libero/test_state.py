"""An OpenVLA-OFT checkpoint that takes the robot's state, on LIBERO through the graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.engine import tiny_config
from support.releases import oft_statistics
from vla_ros.cli.eval import completed, setup_of
from vla_ros.cli.main import make_parser
from vla_ros.data.episodes.play import DirectRunner, robot_state
from vla_ros.data.episodes.records import Job, Variant
from vla_ros.engine.families.openvla import write_random
from vla_ros.ros.listeners.graph_runner import GraphRunner
from vla_ros.runtime.control.observation import axis_angle
from vla_ros.sim.factory import EnvConfig


@pytest.mark.long
def test_the_state_is_liberos_own_and_the_same_through_the_graph(
    ros_env: dict[str, str], tmp_path: Path
) -> None:
    config = replace(tiny_config(towers="fused"), parallel=True, chunk=8, proprio_dim=8, images=2)
    write_random(tmp_path / "oft", config, seed=3, stats=oft_statistics(7, 8))
    words = ["eval", "--suite", "libero_spatial", "--checkpoint", str(tmp_path / "oft")]
    words += ["--image-size", "64", "--max-steps", "10"]
    setup = completed(setup_of(make_parser("eval")[0].parse_args(words)))
    assert (setup.state, setup.unnorm_key) == (8, "libero_spatial_no_noops")
    variant = Variant("oft", decoding="parallel")
    job = Job(variant.label, "libero_spatial/0", 0, 0)
    with DirectRunner(replace(setup, route="direct"), (variant,)) as direct:
        expected = direct.play(job, variant)
    assert (expected.steps, expected.error) == (10, "")
    with GraphRunner(setup, (variant,), on_line=lambda node, line: print(node, line)) as graph:
        record = graph.play(job, variant)
    assert record.error == ""
    assert record.action_digest == expected.action_digest


def test_the_eight_values_are_what_the_simulation_itself_observes() -> None:
    world = EnvConfig("libero", 16, False)()
    try:
        seen = world.reset("libero_spatial/0", 0, render=False)
        own = world._world._env._get_observations()
    finally:
        world.close()
    quaternion = tuple(map(float, own["robot0_eef_quat"]))
    turned = axis_angle(quaternion)
    expected = np.concatenate([own["robot0_eef_pos"], turned, own["robot0_gripper_qpos"]])
    assert robot_state(seen, 8).tolist() == expected.tolist()
