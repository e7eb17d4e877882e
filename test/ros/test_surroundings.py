"""An environment in which ROS cannot run is named at every door, before ROS's own lines."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.nodes import run_cli
from vla_ros.ros.common.surroundings import middlewares

WRONG = {
    "no home": ({"HOME": "", "ROS_HOME": "", "ROS_LOG_DIR": ""}, "HOME is not set, and ROS writes"),
    "a high domain": ({"ROS_DOMAIN_ID": "300"}, "ROS_DOMAIN_ID is '300': give a whole number"),
    "a word": ({"ROS_DOMAIN_ID": "arm"}, "ROS_DOMAIN_ID is 'arm': give a whole number"),
    "a middleware": (
        {"RMW_IMPLEMENTATION": "rmw_nobodys_cpp"},
        "RMW_IMPLEMENTATION is rmw_nobodys_cpp, which is not installed here",
    ),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_verb_says_what_is_wrong_before_anything_starts(ros_env, name):
    change, says = WRONG[name]
    code, out, err = run_cli("up", "policy", "--for", "1", env={**ros_env, **change}, timeout=60)
    assert (code, says in err) == (2, True), out + err
    assert err.count("\n") == 1 and "started" not in out


@pytest.mark.parametrize("name", [one for one in WRONG if one != "a middleware"])
def test_a_node_says_it_too(ros_env, name):
    change, says = WRONG[name]
    command = [sys.executable, "-m", "vla_ros.ros.nodes.monitor.node"]
    done = subprocess.run(
        command, env={**ros_env, **change}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("door", ["verb", "node"])
def test_a_loopback_that_is_down_is_named(ros_env, door):
    """A network namespace begins with it down, as a container's with `--network none` once did."""
    apart = ["unshare", "-rn"]
    try:
        subprocess.run([*apart, "true"], check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("no namespaces of a user's own here (unshare -rn)")
    code = "import sys; from vla_ros.cli.main import main; sys.exit(main())"
    verb = [sys.executable, "-c", code, "up", "policy", "--for", "1"]
    node = [sys.executable, "-m", "vla_ros.ros.nodes.monitor.node"]
    command = [*apart, *(verb if door == "verb" else node)]
    done = subprocess.run(command, env=ros_env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "the loopback interface lo is down" in done.stderr


def test_the_middleware_that_runs_here_is_found():
    assert "rmw_fastrtps_cpp" in middlewares(os.environ)
