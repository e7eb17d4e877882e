"""Policy nodes whose policy is a server's: two robots on one, the server lost and back."""

from __future__ import annotations

import socket
import sys

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
for module in ("websockets", "msgpack", "prometheus_client"):
    pytest.importorskip(module, reason=f"{module} is not installed: pip install '.[serve]'")

from sensor_msgs.msg import Image
from std_msgs.msg import String

from support.nodes import Program
from support.wait import repeating, wait_until
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.msg import ActionCommand, PolicyStatus
from vla_ros.ros.common import qos

CLI = "import sys; from vla_ros.cli.main import main; sys.exit(main())"
ROBOTS = ("left", "right")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Robot:
    """A policy node in a namespace, its camera, and what it says."""

    def __init__(self, ros, spawn_node, name, url):
        self.ros, self.name = ros, f"/{name}/policy"
        self.node = spawn_node(
            "policy",
            {"policy": "remote", "checkpoint": url, "max_age_s": 1.5, "hold_latch_s": 0.0},
            namespace=name,
        )
        self.status = ros.inbox(PolicyStatus, f"{self.name}/status", qos.LATCHED)
        self.commands = ros.inbox(ActionCommand, f"{self.name}/action", qos.ACTION)
        self.task = ros.publisher(String, f"/{name}/instruction", qos.LATCHED)
        self.camera = ros.publisher(Image, f"/{name}/image", qos.IMAGE_PUB)
        self.shown = 0

    def begin(self):
        self.ros.bring_up(self.name)
        self.task.publish(String(data=f"pick up the red block {self.name}"))

    def show(self):
        self.shown += 1
        message = Image(height=64, width=64, encoding="rgb8", step=192)
        message.data.frombytes(bytes([self.shown % 251]) * 64 * 192)
        message.header.stamp = self.ros.node.get_clock().now().to_msg()
        self.camera.publish(message)

    def expect(self, state, reason="", begin=0):
        """Wait for such a status after number ``begin``; returns the number of the one after."""

        def found():
            for number in range(begin, len(self.status)):
                status = self.status.messages[number]
                if status.state == state and reason in status.reason:
                    return number + 1
            return 0

        return wait_until(found, 60.0, lambda: f"{self.name} {state}: {self.status.last}")


def test_two_robots_on_one_server_hold_when_it_is_lost_and_go_on_when_it_is_back(
    ros, spawn_node, ros_env
):
    port = free_port()
    words = ["serve", "shipped:tabletop", "--port", str(port), "--num-threads", "1"]
    command = [sys.executable, "-c", CLI, *words]
    server = Program("serve", command, ros_env)
    try:
        server.wait_for_log(f"at ws://127.0.0.1:{port}", 60.0)
        robots = [Robot(ros, spawn_node, name, f"ws://127.0.0.1:{port}") for name in ROBOTS]
        for robot in robots:
            robot.begin()
        with repeating(lambda: [robot.show() for robot in robots], 0.1):
            seen = [robot.expect(State.RUNNING) for robot in robots]
            server.kill()
            lost = "connection refused: nothing listens there"
            pairs = zip(robots, seen, strict=True)
            seen = [robot.expect(State.HOLD, lost, begin) for robot, begin in pairs]
            server = Program("serve", command, ros_env)
            pairs = zip(robots, seen, strict=True)
            for robot, begin in pairs:
                robot.expect(State.RUNNING, "", begin)
            left, right = robots
            assert ros.change_state(left.name, "deactivate")
            silent, begin = len(left.commands), len(right.commands)
            wait_until(
                lambda: any(m.kind == CommandKind.POLICY for m in right.commands.messages[begin:]),
                20.0,
            )
            assert not any(m.kind == CommandKind.POLICY for m in left.commands.messages[silent:])
        status = right.status.last
        assert (status.policy, status.schedule) == ("remote", "speculative")
        assert all(s.state != State.FAULT for robot in robots for s in robot.status.messages)
    finally:
        server.kill()
        print(f"----- serve\n{server.log}")


def test_configure_fails_with_the_reason_where_nobody_answers(start_policy):
    rig = start_policy(policy="remote", checkpoint="ws://127.0.0.1:1")
    assert not rig.ros.change_state("/policy", "configure")
    status = rig.expect(lambda s: "refused" in s.reason)
    assert "ws://127.0.0.1:1: connection refused: nothing listens there" in status.reason
