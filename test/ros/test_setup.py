"""`vla-ros setup` over a running robot, and the graph that its file starts: all real processes."""

from __future__ import annotations

import json
import os
import pty
import select
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.nodes import Program
from support.ros import RosPeer
from vla_ros.core.types import PolicyState as State
from vla_ros.msg import PolicyStatus
from vla_ros.ros.common import qos

STUB = Path(__file__).parents[1] / "support" / "stub_robot.py"
Start = Callable[..., Program]


@pytest.fixture
def start(ros_env: dict[str, str]) -> Iterator[Start]:
    """`start("setup", "--yes")`: the command as a process; `start(STUB)`: the robot."""
    programs: list[Program] = []

    def run(first: str | Path, *words: str) -> Program:
        head = [str(first)] if isinstance(first, Path) else ["-m", "vla_ros", first]
        programs.append(Program(str(first), [sys.executable, *head, *words], ros_env))
        return programs[-1]

    yield run
    for program in programs:
        program.end()
        print(f"----- {program.name}\n{program.log}")


def set_up(start: Start, out: Path, *words: str) -> tuple[dict[str, Any], str]:
    """What `setup --yes --json` says, and its file."""
    done = start("setup", "--yes", "--json", "--out", str(out), *words)
    assert done.wait(60) == 0, done.log
    return json.loads(done.log.splitlines()[-1]), out.read_text()


def test_from_a_running_robot_to_motion(start: Start, ros: RosPeer, tmp_path: Path) -> None:
    robot = start(STUB)
    robot.wait_for_log("ready", 30.0)
    out = tmp_path / "robot.yaml"
    said, text = set_up(start, out)

    values = yaml.safe_load(text)["/**/policy"]["ros__parameters"]
    assert values == said["parameters"]
    assert values["cameras.main.topic"] == "/front_camera/image_raw"
    assert values["cameras.wrist.topic"] == "/wrist_camera/image_raw"
    assert values["camera_rate_hz"] == pytest.approx(15.0, abs=5.0), "the slowest camera's"
    assert values["action_names"] == ["shoulder", "elbow", "wrist_roll", "gripper"]
    assert values["bounds_low"] == [-2.0, -1.5, -3.1]
    assert values["bounds_high"] == [2.0, 1.6, 3.1]
    assert values["velocity_limits"] == pytest.approx([0.3, 0.2, 0.6])
    assert values["gripper_range"] == [0.0, 0.04]
    assert values["outputs"] == ["trajectory"]
    assert said["remappings"] == {
        "joint_states": "/joint_states",
        "~/joint_trajectory": "/arm_controller/joint_trajectory",
    }
    assert said["missing"] == {}
    assert "gripper_range" in said["doubts"], "nobody said which end is closed"
    (line,) = (one for one in text.splitlines() if "cameras.main.topic" in one)
    assert "raw 64x48 rgb8 at" in line and "best effort, by /front_camera" in line
    assert sorted(tmp_path.glob("*.png")) == sorted(map(Path, said["images"].values()))

    start("up", str(out), "-p", "policy.instruction=wait", "-p", "policy.max_age_s=1.0")
    status = ros.inbox(PolicyStatus, "policy/status", qos.LATCHED)
    runs = status.wait(lambda one: one.state == State.RUNNING, timeout=60)
    assert runs.policy == "zero"
    robot.wait_for_log("commanded shoulder elbow wrist_roll", 20.0)


def test_a_running_robot_without_a_description_is_asked_about(start: Start, tmp_path: Path) -> None:
    start(STUB, "--without", "description", "controller").wait_for_log("ready", 30.0)
    said, text = set_up(start, tmp_path / "robot.yaml")
    assert {"bounds_low", "bounds_high", "outputs"} <= said["missing"].keys()
    assert "bounds_low" not in said["parameters"], "left out, so that configure refuses it"
    assert "    # bounds_low:  # ? nothing says the ends of" in text
    assert "velocity_limits" in said["doubts"]
    assert said["parameters"]["velocity_limits"] == [0.2, 0.2, 0.2]
    assert "action_names" in said["doubts"], "the alphabet's order"


def test_where_nothing_runs_it_says_what_to_do(start: Start, tmp_path: Path) -> None:
    out = tmp_path / "robot.yaml"
    ended = start("setup", "--yes", "--out", str(out), "--for", "1")
    assert ended.wait(30) == 1
    assert "no camera and no joint states in ROS domain" in ended.log
    assert "start the drivers, or start from --robot (" in ended.log
    assert not out.exists()


class Person:
    """A person at a terminal of their own, who types the answers, one a question."""

    def __init__(self, folder: Path, env: dict[str, str], *answers: str) -> None:
        self.shown = ""
        self._left, self._seen = list(answers), 0
        pid, self._terminal = pty.fork()
        if pid == 0:
            os.chdir(folder)
            command = [sys.executable, "-m", "vla_ros", "setup"]
            os.execve(sys.executable, command, {**env, "TERM": "dumb", "COLUMNS": "100"})
        typed = b""
        while True:
            if not select.select([self._terminal], [], [], 2.0)[0] and typed == b"\x03":
                # Between the question and the read that waits, Python only notes a signal.
                os.write(self._terminal, typed)
                continue
            if not (part := self._read()):
                break
            self.shown += part.replace("\r\n", "\n")
            if self.shown.endswith("left out): ") and len(self.shown) > self._seen:
                self._seen = len(self.shown)
                typed = self._left.pop(0).encode()
                os.write(self._terminal, typed)
        self.status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(self._terminal)

    def _read(self) -> str:
        try:
            return os.read(self._terminal, 4096).decode()
        except OSError:  # the other end is closed
            return ""


def test_a_person_answers_and_a_wrong_answer_is_asked_again(
    start: Start, ros_env: dict[str, str], tmp_path: Path
) -> None:
    start(STUB, "--without", "description", "controller").wait_for_log("ready", 30.0)
    person = Person(
        tmp_path, ros_env, "0\r", "0 0.04\r", "-2 -1.5 x\r", "-2, -1.5, -3\r", "2 1.6 3\r"
    )
    assert person.status == 0, person.shown
    assert person.shown.count("give 2 numbers, joined by spaces\n") == 1
    assert person.shown.count("give 3 numbers, joined by spaces\n") == 1
    values = yaml.safe_load((tmp_path / "robot.yaml").read_text())["/**/policy"]["ros__parameters"]
    assert values["gripper_range"] == [0.0, 0.04]
    assert values["bounds_low"] == [-2.0, -1.5, -3.0]
    assert values["bounds_high"] == [2.0, 1.6, 3.0]


def test_ctrl_c_in_the_middle_writes_nothing(
    start: Start, ros_env: dict[str, str], tmp_path: Path
) -> None:
    start(STUB, "--without", "description", "controller").wait_for_log("ready", 30.0)
    person = Person(tmp_path, ros_env, "0 0.04\r", "\x03")
    assert person.status == 130, person.shown
    last = person.shown.rpartition("^C")[2].strip()  # a terminal may echo it twice
    assert last == "vla-ros setup: interrupted: robot.yaml is not written"
    assert not list(tmp_path.iterdir()), "neither the file nor the cameras' images"
