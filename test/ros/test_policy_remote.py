"""Policy nodes whose policy is a server's: two robots on one, each with a world of its own; the
server lost and back."""

from __future__ import annotations

import socket
import sys
import threading

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
for module in ("websockets", "msgpack", "prometheus_client"):
    pytest.importorskip(module, reason=f"{module} is not installed: pip install '.[serve]'")

import msgpack
from websockets.sync.client import connect

from support.foreign_server import ForeignServer, from_map, to_map
from support.nodes import Program
from support.serving import serving
from support.wait import wait_until
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.msg import ActionCommand, EpisodeStatus, PolicyStatus
from vla_ros.policies import PolicySpec
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import stamp_of
from vla_ros.srv import ResetEpisode

CLI = "import sys; from vla_ros.cli.main import main; sys.exit(main())"
ROBOTS = {"left": "reach_red_cube", "right": "reach_blue_cube"}
LONG = "stack_red_on_blue"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Robot:
    """A policy node and a simulated robot in a namespace, in real time, and what they say."""

    def __init__(self, ros, spawn_node, name, task, url):
        self.ros, self.name, self.world = ros, f"/{name}/policy", f"/{name}/bridge"
        self.status = ros.inbox(PolicyStatus, f"{self.name}/status", qos.LATCHED)
        self.commands = ros.inbox(ActionCommand, f"{self.name}/action", qos.ACTION)
        self.episodes = ros.inbox(EpisodeStatus, f"{self.world}/episode", qos.LATCHED)
        self.node = spawn_node(
            "policy",
            {"policy": "remote", "checkpoint": url, "max_age_s": 1.5, "hold_latch_s": 0.0}
            | {"detect_frozen": False},
            namespace=name,
        )
        world = {"task": task, "max_steps": 3000}
        spawn_node("bridge", world | {"image_size": 224}, namespace=name)

    def begin(self, task):
        """Another episode; returns how many statuses there were before."""
        seen, request = len(self.status), ResetEpisode.Request(task=task, initial_state=1)
        answer = self.ros.call(ResetEpisode, f"{self.world}/reset", request, 30.0)
        assert answer.success, answer.message
        return seen

    def expect(self, state, reason="", begin=0):
        """Wait for such a status after number ``begin``; returns the number of the one after."""

        def found():
            for number in range(begin, len(self.status)):
                status = self.status.messages[number]
                if status.state == state and reason in status.reason:
                    return number + 1
            return 0

        return wait_until(found, 60.0, lambda: f"{self.name} {state}: {self.status.last}")

    def solves(self, begin=0):
        """Wait for an episode that is solved."""

        def found():
            return any(
                m.state == EpisodeStatus.STATE_SUCCESS for m in self.episodes.messages[begin:]
            )

        wait_until(found, 120.0, lambda: f"{self.name}: {self.episodes.last}")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_robots_on_one_server_solve_their_tasks_and_hold_while_it_is_lost(
    ros, spawn_node, ros_env
):
    port = free_port()
    words = ["serve", "shipped:tabletop", "--port", str(port), "--num-threads", "1"]
    command = [sys.executable, "-c", CLI, *words]
    server = Program("serve", command, ros_env)
    try:
        server.wait_for_log(f"at ws://127.0.0.1:{port}", 60.0)
        url = f"ws://127.0.0.1:{port}"
        robots = [Robot(ros, spawn_node, name, task, url) for name, task in ROBOTS.items()]
        for robot in robots:
            ros.bring_up(robot.name)
        for robot in robots:
            robot.solves()
        seen = [robot.begin(LONG) for robot in robots]  # so that it is not over meanwhile
        seen = [robot.expect(State.RUNNING, "", n) for robot, n in zip(robots, seen, strict=True)]
        server.kill()
        lost = "connection refused: nothing listens there"
        pairs = zip(robots, seen, strict=True)
        seen = [robot.expect(State.HOLD, lost, begin) for robot, begin in pairs]
        server = Program("serve", command, ros_env)
        for robot, begin in zip(robots, seen, strict=True):
            robot.expect(State.RUNNING, "", begin)
        left, right = robots
        assert ros.change_state(left.name, "deactivate")
        silent, ended = len(left.commands), len(right.episodes)
        right.begin(ROBOTS["right"])
        right.solves(ended)
        assert not any(m.kind == CommandKind.POLICY for m in left.commands.messages[silent:])
        status = right.status.last
        assert (status.policy, status.decoding) == ("remote", "speculative")
        assert all(s.state != State.FAULT for robot in robots for s in robot.status.messages)
        solved = [
            {m.task for m in robot.episodes.messages if m.state == EpisodeStatus.STATE_SUCCESS}
            for robot in robots
        ]
        assert all(task in there for task, there in zip(ROBOTS.values(), solved, strict=True))
    finally:
        server.kill()
        print(f"----- serve\n{server.log}")


def test_an_answer_to_an_earlier_observation_moves_nothing(start_policy):
    """A server 20 answers behind, whose answers name the observation that they are about."""
    asked, answers, behind = {}, [], threading.Event()
    with serving(PolicySpec("zero")) as server, connect(server.address) as ours:
        metadata = msgpack.unpackb(ours.recv())

        def relay(message):
            ours.send(msgpack.packb(message, default=to_map))
            answer = msgpack.unpackb(ours.recv(30.0), object_hook=from_map)
            number = len(answers) + 1
            asked[number] = message["vla_ros"]["stamp_ns"]
            answer["actions"] = np.array([[1e-6 * number, 0, 0, 0, 0, 0, 1]])
            answers.append(answer)
            return answers[-21 if behind.is_set() else -1]

        with ForeignServer(relay, **metadata) as between:
            rig = start_policy(policy="remote", checkpoint=between.url)
            rig.bring_up("reach")
            rig.camera()
            rig.expect(State.RUNNING)
            wait_until(lambda: len(answers) > 40, 30.0, "answers")
            behind.set()
            rig.expect(lambda s: s.state == State.HOLD and "answers out of step" in s.reason)
    moved = [m for m in rig.commands.messages if m.kind == CommandKind.POLICY and m.action[0] > 0]
    assert len(moved) > 10
    for command in moved:
        assert stamp_of(command.observation_stamp) == asked[round(command.action[0] / 1e-6)]


def test_configure_fails_with_the_reason_where_nobody_answers(start_policy):
    rig = start_policy(policy="remote", checkpoint="ws://127.0.0.1:1")
    assert not rig.ros.change_state("/policy", "configure")
    status = rig.expect(lambda s: "refused" in s.reason)
    assert "ws://127.0.0.1:1: connection refused: nothing listens there" in status.reason
