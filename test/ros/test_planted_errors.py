"""Thirty mistakes in a parameter file, by every door: one line that names file, line and name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.nodes import Program
from support.planted import PLANTED, planted
from support.ros2_launch import needs_launch, start
from vla_ros.cli.main import main


def test_there_are_thirty() -> None:
    assert len(PLANTED) == 30


@pytest.mark.parametrize("name", PLANTED)
def test_the_node_refuses_it(ros_env: dict[str, str], tmp_path: Path, name: str) -> None:
    file = tmp_path / "robot.yaml"
    file.write_text(planted(name), encoding="utf-8")
    command = [sys.executable, "-m", "vla_ros.ros.nodes.policy.node", "--ros-args"]
    command += ["--params-file", str(file)]
    done = subprocess.run(command, env=ros_env, capture_output=True, text=True, timeout=60)
    line = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2 and line.startswith("bad parameter: "), done.stderr
    assert str(file) in line and all(word in line for word in ("line 3", *PLANTED[name][1])), line


@pytest.mark.parametrize("name", PLANTED)
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
    assert all(word in error for word in ("line 3", *PLANTED[name][1])), error


LEFT = ["-p", "policy.cameras.left.topic=/left"]


@pytest.mark.parametrize(
    ("text", "flags", "says"),
    [
        # the graph's own line, -p's, and of two sections the one for this node
        ("parameters: {max_age_s: 90.0}", [], "my.up.yaml, line 4: max_age_s is 90.0"),
        ("lifecycle: true", ["-p", "policy.max_age_s=90"], "-p policy.max_age_s: max_age_s is 90"),
        ("parameter_files: [policy.yaml, two.yaml]", [], "two.yaml, line 4: max_age_s is 0.0: mu"),
        ("parameter_files: [policy.yaml, two.yaml]", ["-p", "policy.max_age_s=0.5"], ""),
        ("parameter_files: [policy.yaml, mixed.yaml]", [], "mixed.yaml, line 2: policy.bounds_low"),
        ("parameter_files: [policy.yaml, whole.yaml]", [], "whole.yaml, line 2: policy.max_age_s"),
        ("parameter_files: [policy.yaml, bare.yaml]", [], "bare.yaml: no ros__parameters: below"),
        ("lifecycle: true", ["-p", "policy.camera_roles=[left]", *LEFT], ""),
        ("parameters: {camera_roles: [left]}", LEFT, ""),
        ("lifecycle: true", LEFT, "'cameras.left.topic'"),
    ],
)
def test_up_names_the_place_whose_value_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, flags: list[str], says: str
) -> None:
    two = "monitor:\n  ros__parameters: {max_age_s: 1.0}\n"
    two += "policy:\n  ros__parameters: {max_age_s: 0.0}\n"
    (tmp_path / "two.yaml").write_text(two, encoding="utf-8")
    mixed = "policy:\n  ros__parameters: {bounds_low: [-0.1, -1, -0.1, -1, -1, -1]}\n"
    (tmp_path / "mixed.yaml").write_text(mixed, encoding="utf-8")
    (tmp_path / "whole.yaml").write_text("policy:\n  ros__parameters: {max_age_s: 1}\n")
    (tmp_path / "bare.yaml").write_text("policy: {max_age_s: 1.0}\n")
    graph = tmp_path / "my.up.yaml"
    head = "# max_age_s: a comment\nnodes:\n  policy:\n"
    graph.write_text(f"{head}    {text}\n", encoding="utf-8")
    assert main(["up", str(graph), "--list", *flags]) == (2 if says else 0)
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == (1 if says else 0)


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
