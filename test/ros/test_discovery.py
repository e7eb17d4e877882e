"""Participants find each other soon under the shipped profile, and churn of endpoints gets on."""

from __future__ import annotations

from pathlib import Path

import pytest

from endurance.dds_hang import churn

pytest.importorskip("rclpy")

from endurance.dds_match import rounds
from support.nodes import start_node
from vla_ros.msg import PolicyStatus
from vla_ros.ros.common import qos

# The announcement after the initial ones comes after 3 s: who is found later has missed two.
FOUND_S = 6.0


@pytest.mark.long
def test_nodes_that_start_together_find_each_other(ros_env):
    took = rounds(processes=4, number=3, spread=0.3, env=ros_env, seed=0)
    assert max(took) < FOUND_S, took


def test_writers_that_come_and_go_are_counted(ros_env):
    *_, last = churn(2, 10, 1e9, 60.0, ros_env, 60.0)
    assert last.cycles >= 10


def test_no_participant_asks_another_for_its_types(ros_env, ros):
    """Two participants of one process that ask each other can wait for each other for ever: the
    threads that do so are not even there."""
    node = start_node("policy", ros_env, {"policy": "zero"})
    try:
        ros.inbox(PolicyStatus, "/policy/status", qos.LATCHED).wait(lambda m: True, 20.0)
        tasks = Path(f"/proc/{node.pid}/task")
        threads = {(task / "comm").read_text().strip() for task in tasks.iterdir()}
        assert any(name.startswith("dds.ev") for name in threads)
        assert not [name for name in threads if name.startswith("dds.tls")]
    finally:
        node.kill()
