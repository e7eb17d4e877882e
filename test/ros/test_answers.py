"""An answer whose asker is not known to the server yet is kept, and the node goes on.

A client whose reader of answers is in another partition of DDS is such an asker, for as long as
it lives: the middleware takes its request, finds nobody to answer to, and says so after 100 ms.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from std_srvs.srv import Trigger

from support.ros import RosPeer
from support.wait import wait_until
from vla_ros.ros.common import answers
from vla_ros.ros.common.answers import KEPT_S

DEAF = """<?xml version="1.0" encoding="UTF-8" ?>
<dds xmlns="http://www.eprosima.com"><profiles>
  <data_reader profile_name="client">
    <qos><partition><names><name>elsewhere</name></names></partition></qos>
  </data_reader>
</profiles></dds>
"""
ASK = """
import sys, time, rclpy
from rclpy.action import ActionClient
from std_srvs.srv import Trigger
from vla_ros.action import ExecuteInstruction
rclpy.init()
node = rclpy.create_node("deaf", start_parameter_services=False)
client = node.create_client(Trigger, "/policy/stop")
actions = ActionClient(node, ExecuteInstruction, "/policy/execute_instruction")
while not node.count_services("/policy/stop"):
    time.sleep(0.05)
time.sleep(1.0)
if sys.argv[1] == "goal":
    future = actions.send_goal_async(ExecuteInstruction.Goal(instruction="push"))
else:
    future = client.call_async(Trigger.Request())
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    rclpy.spin_once(node, timeout_sec=0.1)
print("answered", future.done())
"""


@pytest.fixture
def ask_deaf(ros_env, tmp_path):
    """Asks as a client that the node never discovers."""
    profile = tmp_path / "deaf.xml"
    profile.write_text(DEAF)
    env = {
        **ros_env,
        "FASTDDS_DEFAULT_PROFILES_FILE": str(profile),
        "FASTRTPS_DEFAULT_PROFILES_FILE": str(profile),
        "RMW_FASTRTPS_USE_QOS_FROM_XML": "1",
    }

    def ask(what: str, seconds: float) -> str:
        done = subprocess.run(
            [sys.executable, "-c", ASK, what, str(seconds)],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout + done.stderr

    return ask


def test_a_node_says_in_a_line_of_its_own_whom_it_could_not_answer(start_policy, ask_deaf):
    rig = start_policy()
    rig.bring_up()
    said = ask_deaf("stop", KEPT_S + 2.0)
    assert "answered False" in said, said
    log = rig.node.log
    assert "/policy/stop: a request was carried out and its answer reached nobody" in log, log
    assert "RuntimeWarning" not in log and "SystemError" not in log, log
    assert rig.ros.call(Trigger, "/policy/stop").success


def test_an_answer_waits_until_its_asker_is_known(ros, ros_domain, monkeypatch):
    """The graph that shows nobody stands for a discovery that is late."""
    known = 0
    monkeypatch.setattr(answers, "askers", lambda node, name: known)
    server = RosPeer(ros_domain, "server")
    try:
        server.node.create_service(Trigger, "late", lambda _, answer: answer)
        server.in_executor(answers.KeptAnswers, server.node)
        client = ros.node.create_client(Trigger, "late")
        wait_until(client.service_is_ready, 10.0, "the service")
        futures = [client.call_async(Trigger.Request()) for _ in range(3)]
        time.sleep(0.5)
        assert not any(future.done() for future in futures)
        known = 1
        wait_until(lambda: all(future.done() for future in futures), 2.0, "the answers")
        server.in_executor(lambda: None)
        assert ros.call(Trigger, "late", timeout=2.0) is not None, "the next is answered at once"
    finally:
        server.close()
