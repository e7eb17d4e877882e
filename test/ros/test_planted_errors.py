"""Thirty mistakes in a parameter file, by every door: one line that names file, line and name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.nodes import Program
from support.planted import BY_NAME, PLANTED, planted
from support.ros2_launch import needs_launch, start
from vla_ros.cli.main import main


def test_there_are_thirty() -> None:
    assert len(PLANTED) == 30 and len(BY_NAME) >= 14


@pytest.mark.parametrize("name", PLANTED)
def test_the_node_refuses_it(ros_env: dict[str, str], tmp_path: Path, name: str) -> None:
    file = tmp_path / "robot.yaml"
    file.write_text(planted(name), encoding="utf-8")
    command = [sys.executable, "-m", "vla_ros.ros.nodes.policy.node", "--ros-args"]
    command += ["--params-file", str(file)]
    done = subprocess.run(command, env=ros_env, capture_output=True, text=True, timeout=60)
    line = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2 and line.startswith("bad parameter: "), done.stderr
    assert all(word in line for word in PLANTED[name][1]), line


@pytest.mark.parametrize("name", BY_NAME)
def test_up_refuses_it_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file, graph = tmp_path / "robot.yaml", tmp_path / "my.up.yaml"
    file.write_text(planted(name), encoding="utf-8")
    nodes = f"nodes: {{policy: {{parameter_files: [policy.yaml, {file}], lifecycle: true}}}}\n"
    graph.write_text(nodes, encoding="utf-8")
    assert main(["up", str(graph), "--list"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(file) in error
    assert all(word in error for word in PLANTED[name][1]), error


@needs_launch
@pytest.mark.parametrize("name", ["without its unit", "a number beyond its range"])
def test_so_does_launch(
    ros_env: dict[str, str], tmp_path: Path, name: str, kill: Callable[[Program], Program]
) -> None:
    file = tmp_path / "robot.yaml"
    file.write_text(planted(name), encoding="utf-8")
    graph = kill(start("policy.launch.py", ros_env, extra_params_file=str(file)))
    graph.wait_for_log("bad parameter: ", timeout=60)
    assert graph.wait(60.0) != 0
    (line,) = [one for one in graph.log.splitlines() if "bad parameter: " in one]
    assert f"{file}, line 3" in line and all(word in line for word in PLANTED[name][1]), line


@pytest.fixture
def kill():
    started: list[Program] = []

    def keep(program: Program) -> Program:
        started.append(program)
        return program

    yield keep
    for program in started:
        program.kill()
