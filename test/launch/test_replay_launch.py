"""replay.launch.py under the real `ros2 launch`: its exit status is the verdict's."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.bags import film, write_bag
from support.nodes import Program
from support.policy_client import moves
from support.ros2_launch import needs_launch

pytestmark = needs_launch


@pytest.mark.long
def test_the_launch_ends_with_the_verdict_s_status(
    ros2_launch: Callable[..., Program], tmp_path: Path
) -> None:
    bag, golden = tmp_path / "bag", tmp_path / "golden.npz"
    write_bag(bag, film(4))
    zero = {"bag": str(bag), "policy": "zero", "instruction": "wait"}
    kept = ros2_launch("replay.launch.py", **zero, save=str(golden))
    kept.wait(60)
    assert golden.is_file()
    same = ros2_launch("replay.launch.py", **zero, golden=str(golden))
    assert same.wait(60) == 0
    moved = zero | {"policy": "replay", "parameters": f"{{replay_file: {moves(tmp_path)}}}"}
    other = ros2_launch("replay.launch.py", **moved, golden=str(golden))
    assert other.wait(60) == 1
    nowhere = ros2_launch("replay.launch.py", **zero | {"bag": str(tmp_path / "none")})
    assert nowhere.wait(60) == 2
    refused = ros2_launch("replay.launch.py", **zero, parameters="{max_age_s: 0.01}")
    assert refused.wait(60) == 3
    for ended in (same, other, nowhere, refused):
        assert "Traceback" not in ended.log and "was destroyed" not in ended.log


@pytest.mark.skipif(
    any(verb.name == "bag" for verb in entry_points(group="ros2cli.command")),
    reason="ros2 bag is installed",
)
def test_a_missing_ros2_bag_is_one_line(ros2_launch: Callable[..., Program]) -> None:
    ended = ros2_launch("replay.launch.py", bag="run1", player="ros2bag", policy="zero")
    assert ended.wait(30) == 1
    (line,) = [line for line in ended.log.splitlines() if "[ERROR]" in line]
    assert "player:=ros2bag needs `ros2 bag`, which is not installed here" in line
    assert "process started" not in ended.log and "Destroyable" not in ended.log
