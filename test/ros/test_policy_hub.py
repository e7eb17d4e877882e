"""A policy node whose checkpoint is a hub id: held beside the robot's file; a hub of our own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState

from support.engine import tiny_config
from support.local_hub import local_hub
from support.nodes import Program, start_node
from support.ros import RosPeer
from support.wait import wait_until
from vla_ros.core.resources import config_path
from vla_ros.engine.families.openvla import write_random
from vla_ros.engine.io import lock
from vla_ros.msg import PolicyDescription, PolicyStatus
from vla_ros.ros.common import qos

NAME = "somebody/policy"


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.kill()
        print(f"----- {program.name}\n{program.log}")


@pytest.mark.long
def test_it_is_held_beside_the_robots_file_and_a_changed_copy_is_refused(
    ros: RosPeer,
    ros_env: dict[str, str],
    tmp_path: Path,
    programs: list[Program],
) -> None:
    robot = tmp_path / "robot" / "robot.yaml"
    robot.parent.mkdir()
    robot.write_text(
        f"/**/policy: {{ros__parameters: {{policy: vla, checkpoint: {NAME}, num_threads: 1}}}}\n"
    )
    write_random(tmp_path / "weights", tiny_config(), seed=1)
    described = ros.inbox(PolicyDescription, "policy/description", qos.LATCHED)
    status = ros.inbox(PolicyStatus, "policy/status", qos.LATCHED)

    def started(environment: dict[str, str]) -> Program:
        program = start_node("policy", environment, files=(config_path("policy.yaml"), robot))
        programs.append(program)
        return program

    with local_hub() as hub:
        commit = hub.push_folder(NAME, tmp_path / "weights")
        environment = hub.environment(tmp_path, ros_env)
        node = started(environment)
        assert ros.change_state("/policy", "configure"), node.log
    held = lock.read(robot.with_name(lock.FILE))[NAME]
    assert held.commit == commit
    wait_until(lambda: len(described), 10.0, "the description")
    row = next(row for row in described.last.assumptions if row.what == "checkpoint")
    assert row.value == f"{NAME} at {commit}"
    assert row.source == str(robot.with_name(lock.FILE))
    node.kill()
    # The hub is gone, which a held copy does not need, and a byte of the copy is another one.
    (weights,) = (tmp_path / "hf").rglob("snapshots/*/model.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    started(environment)
    request = ChangeState.Request(transition=Transition(id=Transition.TRANSITION_CONFIGURE))

    def refused() -> bool:
        with contextlib.suppress(AssertionError):  # it may not be there yet, or take its time
            assert not ros.call(ChangeState, "/policy/change_state", request, 3.0).success
        return "refused: " in status.last.reason

    wait_until(refused, 60.0, lambda: f"the refusal: {status.last.reason}")
    assert f"model.safetensors is not the file that {NAME} is held to by" in status.last.reason
