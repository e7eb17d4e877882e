"""The messages built by setup.py work over the real middleware, between processes."""

import contextlib
import sys

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.nodes import Program
from support.wait import wait_until
from vla_ros.action import ExecuteInstruction
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
message = ActionCommand(check_fields=True, action=[0.1 * i for i in range(7)], decoding="K=3")
message.stages.total_s = 0.0125
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
    assert (got.decoding, got.stages.total_s) == ("K=3", 0.0125)
    assert answer.success and answer.message == "stack -1"


SERVER = """
import rclpy, time
from rclpy.action import ActionServer
from vla_ros.action import ExecuteInstruction
from vla_ros.msg import Percentiles

rclpy.init()
node = rclpy.create_node("server")

def execute(goal):
    while not node.count_subscribers("execute/_action/feedback"):  # who asks may not be known yet
        time.sleep(0.01)
    feedback = ExecuteInstruction.Feedback(state=3, actions=7)
    feedback.observation_age = Percentiles(p50=0.05, count=7)
    goal.publish_feedback(feedback)
    goal.succeed()
    result = ExecuteInstruction.Result(outcome=ExecuteInstruction.Result.OUTCOME_SUCCESS)
    result.message = f"did {goal.request.instruction}"
    return result

ActionServer(node, ExecuteInstruction, "execute", execute)
rclpy.spin(node)
"""


def test_an_action_between_two_processes(ros, ros_env):
    server = Program("server", [sys.executable, "-c", SERVER], ros_env)
    heard = []
    client = ros.action_client(ExecuteInstruction, "execute")
    try:
        goal = ExecuteInstruction.Goal(instruction="push the cube", time_limit_s=2.0)
        wait_until(client.server_is_ready, 15, "the action server")
        for _ in range(3):  # a server that does not know its client yet answers in vain
            sent = ros.in_executor(client.send_goal_async, goal, heard.append)
            with contextlib.suppress(AssertionError):
                wait_until(sent.done, 5, "the goal to be accepted")
                break
        ended = ros.in_executor(sent.result().get_result_async)
        wait_until(lambda: ended.done() and heard, 15, "result and feedback")
    finally:
        client.destroy()
        server.kill()
    result = ended.result().result
    assert (result.outcome, result.message) == (result.OUTCOME_SUCCESS, "did push the cube")
    assert (heard[0].feedback.actions, heard[0].feedback.observation_age.p50) == (7, 0.05)


def test_checked_fields_refuse_what_are_no_numbers():
    """Of any width: names and units say how many there are."""
    assert len(ActionCommand(check_fields=True, action=[0.0] * 14).action) == 14
    with pytest.raises((TypeError, AssertionError), match=r"real number|float"):  # Lyrical asserts
        ActionCommand(check_fields=True, action=["left"] * 7)


def test_each_domain_is_its_own(ros_domain, ros_env):
    from support.domain import leased_domain

    with leased_domain() as other, leased_domain() as third:
        assert len({ros_domain, other, third}) == 3
    assert ros_env["ROS_DOMAIN_ID"] == str(ros_domain)
