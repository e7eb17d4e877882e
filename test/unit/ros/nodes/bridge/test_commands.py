"""Commands of strangers: numbers that no command has are no end of the bridge."""

import math

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from vla_ros.msg import ActionCommand
from vla_ros.ros.nodes.bridge.convert import command_of


@pytest.mark.parametrize("staleness", [math.nan, math.inf, -math.inf, 1e308, -1e308])
def test_a_staleness_that_no_clock_can_say_counts_as_none(staleness):
    assert command_of(ActionCommand(staleness_s=staleness)).staleness_ns == 0


def test_another_one_is_kept():
    assert command_of(ActionCommand(staleness_s=-0.25)).staleness_ns == -250_000_000
