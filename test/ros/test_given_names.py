"""Names that a node does not have, in a parameter file or on the command line: refused in a line
that says the nearest, never passed over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.nodes import Program
from vla_ros.ros.common.parameter_files import matches, parameters_of_all
from vla_ros.ros.nodes.policy.parameters import TABLE

NODE = [sys.executable, "-m", "vla_ros.ros.nodes.{}.node", "--ros-args"]


def started(node: str, env: dict[str, str], *words: str) -> tuple[int, str]:
    """Exit status and last line of a node that has to refuse what it was given."""
    command = [word.format(node) for word in NODE]
    done = subprocess.run([*command, *words], env=env, capture_output=True, text=True, timeout=60)
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("node", "text", "says"),
    [
        ("policy", "policy: {#max_age: 0.3}", "'max_age': did you mean 'max_age_s'"),
        ("policy", "policy: {#velocity_limit: [0.5]}", "robot.yaml, line 1: policy has no param"),
        ("policy", "policy: {#controlrate: 10.0}", "'control_rate_hz'"),
        ("policy", "/**: {#boundshigh: [0.1]}", "'bounds_high'"),
        ("policy", "policy: {#camera: {main: {topic: x}}}", "'cameras.main.topic'"),
        ("policy", "policy: {#limits: {max_age_s: 0.3}}", "'limits.max_age_s'"),
        ("policy", "policy: {#zzz: 1}", "'zzz'; see docs"),
        ("policy", "vla_policy: {#max_age_s: 0.3}", "is for vla_policy, and this"),
        ("policy", "/arm/policy: {#max_age_s: 0.3}", "is for arm/policy"),
        ("policy", "arm: {policy: {#max_age_s: 0.3}}", "is for arm/policy"),
        ("policy", "policy: {#max_age_s: 1}", "line 1: max_age_s is 1: ROS takes no whole number"),
        ("policy", "policy: {#bounds_low: [-1, 1]}", "line 1: bounds_low is [-1, 1]: ROS takes no"),
        ("policy", "policy: {#bounds_low: []}", "bounds_low is an empty list"),
        ("monitor", "monitor: {#max_ages: 1.0}", "monitor has no parameter 'max_ages'"),
        ("bridge", "bridge: {#taks: x}", "bridge has no parameter 'taks'"),
        ("recorder", "recorder: {#flght: true}", "'flight'"),
    ],
)  # fmt: skip
def test_a_file_that_means_something_else_is_refused(ros_env, tmp_path, node, text, says):
    head, _, rest = text.partition("#")
    text = f"{head}ros__parameters: {{{rest}}}" if rest else text
    file = written(tmp_path / "robot.yaml", text)
    code, line = started(node, ros_env, "--params-file", file)
    assert (code, says in line) == (2, True), line
    assert line.startswith("bad parameter: ")


def test_so_is_a_name_of_the_command_line(ros_env):
    code, line = started("policy", ros_env, "-p", "max_ages_s:=0.3")
    assert code == 2 and "did you mean 'max_age_s'?" in line


def test_one_file_may_be_for_all_nodes_and_lists_may_be_empty(ros_env, tmp_path):
    """Sections for other nodes, another's parameter for all, and lists without an entry."""
    text = (
        "/**: {ros__parameters: {use_sim_time: false, max_age_s: 0.4, flight_mb: 64}}\n"
        "camera_driver: {ros__parameters: {fps: 30}}\n"
        "policy: {ros__parameters: {outputs: [], camera_roles: [], joint_names: [],"
        " gripper_names: [], policy_options: [], engine_options: [], arms: []}}\n"
    )
    file = written(tmp_path / "all.yaml", text)
    command = [word.format("policy") for word in NODE]
    node = Program("policy", [*command, "--params-file", file], ros_env)
    try:
        node.wait_for_log("given, but of other nodes: flight_mb", timeout=30)
        assert node.returncode is None
    finally:
        node.kill()


def test_every_parameter_of_the_policy_is_known():
    assert {row.name for row in TABLE} <= parameters_of_all()


@pytest.mark.parametrize(
    ("pattern", "name", "is_for"),
    [
        ("/policy", "/policy", True), ("/**", "/a/policy", True), ("/*/policy", "/a/policy", True),
        ("/**/policy", "/policy", True), ("/**/policy", "/a/b/policy", True),
        ("/*/policy", "/a/b/policy", False), ("/*", "/policy", True), ("/pol.cy", "/policy", False),
        ("/policy", "/a/policy", False),
    ],
)  # fmt: skip
def test_sections_are_matched_as_ros_matches_them(pattern, name, is_for):
    assert matches(pattern, name) is is_for
