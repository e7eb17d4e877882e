"""STOP of the page waits behind nothing: not behind a held button, not behind the view itself."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("viser", reason="viser is not installed: make view")

import rclpy
from geometry_msgs.msg import TwistStamped
from std_msgs.msg import Float64, String
from std_srvs.srv import Trigger

from support.wait import wait_until
from vla_ros.ros.common import qos
from vla_ros.ros.nodes.view.node import MOST_WAITING, ViewNode
from vla_ros.viz.viewer.window import JogRequest, PageAction, PageRequest

PUSH = JogRequest((0.1, 0.0, 0.0, 0.0, 0.0, 0.0))


@pytest.fixture
def view(ros, ros_domain):
    """The real node, whose executor stands still until the test spins it."""
    rclpy.init(args=["--ros-args", "-p", "port:=8390"], domain_id=ros_domain)
    node = ViewNode()
    yield node
    node.close()
    node.destroy_node()
    rclpy.shutdown()


@pytest.fixture
def stops(ros):
    """Calls of the service that stops a policy."""
    heard = []

    def stop(_, response):
        heard.append(1)
        response.success = True
        return response

    ros.node.create_service(Trigger, "policy/stop", stop)
    return heard


@pytest.mark.parametrize("held", [0, 19, 40])
def test_stop_goes_out_while_the_view_stands_still(view, ros, stops, held):
    wait_until(view._requests._triggers[PageAction.STOP].service_is_ready, 10, "the service")
    moved = ros.inbox(TwistStamped, "policy/takeover/twist", qos.EVENT)
    opened = ros.inbox(Float64, "policy/takeover/gripper", qos.EVENT)
    wait_until(lambda: view.count_subscribers("policy/takeover/twist") > 0, 10, "the policy")
    for _ in range(held):
        view._jog(PUSH)
    view._jog(JogRequest(opening=1.0))
    view._ask(PageRequest(PageAction.STOP))
    wait_until(lambda: stops, 10, "STOP")
    for _ in range(20):
        rclpy.spin_once(view, timeout_sec=0.02)
    assert len(stops) == 1
    assert not moved.messages and not opened.messages, "what was asked before STOP is void"
    view._jog(PUSH)
    for _ in range(20):
        rclpy.spin_once(view, timeout_sec=0.05)
    moved.wait(timeout=10)


def test_stop_is_said_by_the_instruction_where_no_service_is(view, ros):
    instructions = ros.inbox(String, "instruction", qos.LATCHED)
    view._ask(PageRequest(PageAction.STOP))
    assert instructions.wait(timeout=10).data == ""


def test_no_press_is_lost_silently(view, monkeypatch):
    shown = []
    monkeypatch.setattr(view._window, "notify", lambda text, good: shown.append((text, good)))
    for number in range(MOST_WAITING + 1):
        view._jog(PUSH)
        view._ask(PageRequest(PageAction.INSTRUCT, f"task {number}"))
    assert [request.text for request in view._queue][-1] == f"task {MOST_WAITING - 1}"
    assert shown == [(f"not done: {MOST_WAITING} requests wait already", False)]
