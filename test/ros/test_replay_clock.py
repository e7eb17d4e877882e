"""`vla-ros replay` in lock-step: simulated time reaches a policy whose reader was matched late."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("rosbags", reason="rosbags is not installed: pip install '.[replay]'")

from rosgraph_msgs.msg import Clock
from std_msgs.msg import String

from support.ros import RosPeer
from vla_ros.msg import PolicyStatus
from vla_ros.ros.common import qos
from vla_ros.ros.nodes.replay.driver import PolicyLink

pytestmark = pytest.mark.ros
NOW_NS = 5_000_000_000


def test_a_clock_that_is_matched_late_is_given_again(ros: RosPeer, ros_domain: int) -> None:
    """/clock is volatile: what was published before the match is lost, under load the one message
    that the status waits for."""
    status, heard = PolicyStatus(), ros.publisher(PolicyStatus, "policy/status", qos.LATCHED)

    def at(message: Clock) -> None:
        status.header.stamp = message.clock
        heard.publish(status)

    def to_do(message: String) -> None:
        status.instruction = message.data
        heard.publish(status)
        ros.node.create_timer(1.0, late)

    def late() -> None:
        if not ros.node.count_subscribers("/clock"):
            ros.node.create_subscription(Clock, "/clock", at, qos.STATE)

    ros.node.create_subscription(String, "instruction", to_do, qos.LATCHED)
    with PolicyLink(ros_domain, (), False, True, lambda: None) as link:
        link.begin("reach", False, NOW_NS)
    assert status.header.stamp.sec == 5
