"""A checkpoint that cannot be used: configure fails with the reason, the node stays."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.engine import tiny_config
from support.strange import CASES
from vla_ros.core.types import PolicyState as State
from vla_ros.engine.families.openvla import write_random


@pytest.mark.parametrize("case", ["one byte short", "NaN", "OpenVLA-OFT", "a pickle with code"])
def test_configure_fails_with_the_line_that_tells(start_policy, tmp_path, case):
    directory = tmp_path / "it"
    write_random(directory, tiny_config(towers="fused"), seed=1)
    CASES[case][0](directory)
    rig = start_policy(policy="vla", checkpoint=str(directory))
    assert not rig.ros.change_state("/policy", "configure")
    status = rig.expect(lambda s: "refused" in s.reason)
    assert status.state == State.UNCONFIGURED
    assert re.search(CASES[case][1], status.reason)
    assert str(directory) in status.reason


def test_a_precision_that_nobody_judged_is_refused_with_the_command_to_run(start_policy, tmp_path):
    directory = tmp_path / "it"
    write_random(directory, tiny_config(), seed=1)
    rig = start_policy(
        policy="vla", checkpoint=str(directory), dtype="bfloat16", require_verified=True
    )
    assert not rig.ros.change_state("/policy", "configure")
    status = rig.expect(lambda s: "refused" in s.reason)
    assert f"run `vla-ros verify --checkpoint {directory} --dtype bfloat16`" in status.reason
