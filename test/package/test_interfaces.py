"""The messages built by setup.py work over the real middleware, between processes."""

import sys

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.nodes import Program
from vla_ros.msg import ActionCommand
from vla_ros.srv import ResetEpisode

PEER = """
import rclpy
from vla_ros.msg import ActionCommand
from vla_ros.srv import ResetEpisode

rclpy.init()
node = rclpy.create_node("peer")
publisher = node.create_publisher(ActionCommand, "action", 10)

def answer(request, response):
    response.success, response.message = True, f"{request.task} {request.initial_state}"
    return response

node.create_service(ResetEpisode, "reset", answer)
message = ActionCommand(check_fields=True, action=[0.1 * i for i in range(7)], schedule="K=3")
message.stages.total = 12.5
node.create_timer(0.05, lambda: publisher.publish(message))
rclpy.spin(node)
"""


def test_a_message_and_a_service_between_two_processes(ros, ros_env):
    peer = Program("peer", [sys.executable, "-c", PEER], ros_env)
    try:
        got = ros.inbox(ActionCommand, "action").wait(timeout=15)
        reset = ResetEpisode.Request(task="stack", initial_state=-1)
        answer = ros.call(ResetEpisode, "reset", reset)
    finally:
        peer.kill()
    assert np.allclose(got.action, np.arange(7) * 0.1)
    assert (got.schedule, got.stages.total) == ("K=3", 12.5)
    assert answer.success and answer.message == "stack -1"


def test_checked_fields_refuse_a_wrong_length():
    with pytest.raises(AssertionError, match="length"):
        ActionCommand(check_fields=True, action=[0.0] * 6)


def test_each_domain_is_its_own(ros_domain, ros_env):
    from support.domain import leased_domain

    with leased_domain() as other, leased_domain() as third:
        assert len({ros_domain, other, third}) == 3
    assert ros_env["ROS_DOMAIN_ID"] == str(ros_domain)
