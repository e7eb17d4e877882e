"""The unit for systemd: it can be read, starts a launch, and ends it as Ctrl-C does."""

from __future__ import annotations

import configparser
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.nodes import Program
from support.processes import alive, session
from support.ros2_launch import needs_launch
from support.wait import wait_until
from vla_ros.core.resources import config_path, share
from vla_ros.msg import PolicyStatus
from vla_ros.ros.common.qos import LATCHED

UNIT = config_path("systemd/vla_ros.service")
SOURCED = 'source /opt/ros/${ROS_DISTRO}/setup.bash && source "${WORKSPACE}" && '


def service() -> tuple[dict[str, str], dict[str, str]]:
    """Section [Service] of the unit, and its environment."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    lines = [line.partition("=")[2] for line in UNIT.read_text().splitlines()]
    words = [word for line in lines for word in shlex.split(line) if "=" in word]
    return dict(parser["Service"]), dict(word.split("=", 1) for word in words)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    here = tmp_path / UNIT.name
    here.write_text(UNIT.read_text().replace("User=robot", "User=root"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(here)], capture_output=True, text=True, timeout=60
    )
    said = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert not said, done.stderr


@needs_launch
def test_the_unit_starts_a_policy_and_its_signal_ends_everything(ros, ros_env) -> None:
    found, given = service()
    command = [word.replace("$$", "$") for word in shlex.split(found["ExecStart"])]
    assert SOURCED in command[-1]
    command[-1] = command[-1].replace(SOURCED, "")  # what is sourced is here already
    launch = given["LAUNCH"].replace(
        "vla_ros policy.launch.py", str(share() / "launch" / "policy.launch.py")
    )
    path = f"{Path(sys.executable).parent}:{ros_env['PATH']}"
    program = Program("service", command, {**ros_env, "LAUNCH": launch, "PATH": path})
    try:
        status = ros.inbox(PolicyStatus, "/policy/status", LATCHED)
        up = status.wait(lambda m: m.state == PolicyStatus.STATE_WAITING, timeout=60)
        pids = [*session(program.pid), up.worker_pid]
        program.signal(signal.Signals[found["KillSignal"]])
        assert program.wait(int(found["TimeoutStopSec"])) == 0
        wait_until(lambda: not any(map(alive, pids)), 5.0, "the end of everything")
    finally:
        program.kill()
        print(program.log)
