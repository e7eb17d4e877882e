"""The foxglove node beside real publishers, seen by a plain client of Foxglove's protocol."""

from __future__ import annotations

import re
import signal
import sys

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("foxglove", reason="foxglove-sdk is not installed: pip install '.[foxglove]'")
pytest.importorskip("websockets", reason="websockets is not installed")

from std_msgs.msg import String

from support.foxglove import connected
from support.nodes import Program
from support.wait import wait_until
from vla_ros.msg import PolicyStatus
from vla_ros.nodes.common.qos import LATCHED
from vla_ros.recording.typestore import typestore

MAIN = "import sys; from vla_ros.cli.main import main; sys.exit(main())"


@pytest.fixture
def port(ros_env):
    words = ["foxglove", "--port", "0", "--say"]
    program = Program("foxglove", [sys.executable, "-c", MAIN, *words], ros_env)

    def told():
        found = re.search(r"ws://127\.0\.0\.1:(\d+)", program.log)
        return int(found[1]) if found else 0

    yield wait_until(told, 60, lambda: f"an address in:\n{program.log}")
    program.signal(signal.SIGINT)
    assert program.wait(30) == 0
    program.kill()


def test_what_was_said_before_is_seen_and_the_instruction_is_said(ros, port):
    status = ros.publisher(PolicyStatus, "/policy/status", LATCHED)
    status.publish(PolicyStatus(reason="as it was before anybody looked"))
    said = ros.inbox(String, "/instruction", LATCHED)
    with connected(port) as app:
        app.until(lambda: "/policy/status" in app.channels, 60)
        number = app.subscribe("/policy/status")
        kind = app.channels["/policy/status"]["schemaName"]
        seen = typestore().deserialize_cdr(app.message(number, 60), kind)
        assert seen.reason == "as it was before anybody looked"
        app.say("/instruction", "push the cube")
        said.wait_new(lambda m: m.data == "push the cube", timeout=60)


def test_a_late_client_gets_what_is_kept_too(ros, port):
    status = ros.publisher(PolicyStatus, "/policy/status", LATCHED)
    status.publish(PolicyStatus(reason="kept"))
    with connected(port) as first, connected(port) as second:
        for app in (first, second):
            app.until(lambda app=app: "/policy/status" in app.channels, 60)
            assert app.message(app.subscribe("/policy/status"), 60)
