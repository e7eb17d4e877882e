"""Fixtures of the tests that run nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.nodes import Program
    from support.policy_client import PolicyRig
    from support.ros import RosPeer


@pytest.fixture
def start_policy(
    spawn_node: Callable[..., Program], ros: RosPeer, ros_env: dict[str, str], tmp_path: Path
) -> Iterator[Callable[..., PolicyRig]]:
    """`start_policy(**parameters)`: a policy node process with everything around it, by default
    one that replays motions. See support.policy_client."""
    from support.policy_client import PolicyRig, moves

    cameras: list[Program] = []

    def start(**parameters: object) -> PolicyRig:
        if "policy" not in parameters:
            parameters |= {"policy": "replay", "replay_file": moves(tmp_path)}
        return PolicyRig(ros, spawn_node("policy", parameters), ros_env, cameras)

    yield start
    for camera in cameras:
        camera.kill()
        print(f"----- {camera.name}\n{camera.log}")
