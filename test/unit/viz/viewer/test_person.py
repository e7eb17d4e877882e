"""A person at the page who has the robot: it stands between pushes, and stops with the page."""

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("viser", reason="viser is not installed: make view")

import rclpy
from geometry_msgs.msg import TwistStamped
from std_srvs.srv import Trigger

from support.wait import wait_until
from vla_ros.core.clock import SECOND
from vla_ros.core.types import PolicyState
from vla_ros.msg import ActionChunk, ActionCommand
from vla_ros.ros.common import qos
from vla_ros.ros.nodes.view.node import BEGINS_NS, STANDS_NS, PagePerson, ViewNode, steps_of
from vla_ros.viz.viewer.window import JogRequest, PageAction, PageRequest


def test_held_lasts_for_a_moment_after_the_last_push():
    person = PagePerson()
    assert not person.has_robot
    person.pushed(SECOND)
    assert person.held(SECOND + STANDS_NS) and not person.held(SECOND + STANDS_NS + 1)
    person.reported(PolicyState.RUNNING, SECOND + BEGINS_NS)  # it has not heard of it yet
    assert person.has_robot
    person.reported(PolicyState.TAKEOVER, 9 * SECOND)
    assert person.has_robot
    person.reported(PolicyState.FAULT, 9 * SECOND)
    assert not person.has_robot


@pytest.fixture
def view(ros, ros_domain, monkeypatch):
    rclpy.init(args=["--ros-args", "-p", "port:=8391"], domain_id=ros_domain)
    node = ViewNode()
    yield node
    node.close()
    node.destroy_node()
    rclpy.shutdown()


def test_the_robot_stands_between_pushes_and_is_stopped_where_the_page_is_lost(
    view, ros, monkeypatch
):
    stops, watched = [], [True]
    monkeypatch.setattr(type(view._window), "watched", property(lambda _: watched[0]))

    def stop(_, response):
        stops.append(1)
        response.success = True
        return response

    ros.node.create_service(Trigger, "policy/stop", stop)
    moved = ros.inbox(TwistStamped, "policy/takeover/twist", qos.EVENT)
    wait_until(lambda: view.count_subscribers("policy/takeover/twist") > 0, 10, "a listener")
    wait_until(view._requests._triggers[PageAction.STOP].service_is_ready, 10, "the service")

    def spin(times):
        for _ in range(times):
            rclpy.spin_once(view, timeout_sec=0.05)

    view._jog(JogRequest((0.1, 0.0, 0.0, 0.0, 0.0, 0.0)))
    spin(2)
    moved.wait(lambda m: m.twist.linear.x == 0.1, timeout=10)
    zeros = lambda: sum(m.twist.linear.x == 0.0 for m in moved.messages)  # noqa: E731
    wait_until(lambda: spin(5) or zeros() > 5, 20, "velocities of zero while nothing is held")
    watched[0] = False
    wait_until(lambda: spin(5) or stops, 20, "STOP")
    assert not view._person.has_robot
    spin(5)
    count = len(moved.messages)
    spin(10)
    assert len(moved.messages) == count, "nothing more goes out"
    watched[0] = True
    view._jog(JogRequest((0.1, 0.0, 0.0, 0.0, 0.0, 0.0)))
    view._ask(PageRequest(PageAction.RELEASE))
    assert not view._person.has_robot


def test_a_chunk_is_the_path_that_the_hand_will_take():
    chunk = ActionChunk(action_space=ActionCommand.SPACE_END_EFFECTOR_DELTA, length=2, width=7)
    chunk.actions = [0.1, 0, 0, 0, 0, 0, 1, 0, 0.2, 0, 0, 0, 0, 1]
    assert steps_of(chunk).tolist() == [[0.1, 0, 0], [0, 0.2, 0]]
    chunk.length = 3
    assert steps_of(chunk) is None
    chunk = ActionChunk(action_space=ActionCommand.SPACE_JOINT_POSITION, length=1, width=6)
    chunk.actions = [0.0] * 6
    assert steps_of(chunk) is None
