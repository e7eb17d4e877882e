"""Participants find each other soon under the shipped profile, and churn of endpoints gets on."""

from __future__ import annotations

import pytest

from endurance.dds_hang import churn

pytest.importorskip("rclpy")

from endurance.dds_match import rounds

# The announcement after the initial ones comes after 3 s: who is found later has missed two.
FOUND_S = 6.0


def test_nodes_that_start_together_find_each_other(ros_env):
    took = rounds(processes=4, number=3, spread=0.3, env=ros_env, seed=0)
    assert max(took) < FOUND_S, took


def test_writers_that_come_and_go_are_counted(ros_env):
    *_, last = churn(2, 10, 1e9, 60.0, ros_env, 60.0)
    assert last.cycles >= 10
