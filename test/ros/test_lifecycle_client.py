"""Nodes are brought up although an answer went astray, as when a machine is busy at the start."""

from __future__ import annotations

import signal
import sys
import threading
import time

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from lifecycle_msgs.msg import State
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from support.nodes import Program
from support.wait import wait_until
from vla_ros.ros.bringup import lifecycle
from vla_ros.ros.bringup.lifecycle import LifecycleClient


class Astray(Exception):
    """Instead of an answer: none is sent."""


class Server:
    """A node of its own with the two services. ``change``: what it makes of each request in turn,
    of make, refuse, busy (refused, since an earlier request is being obeyed); with "slowly " it
    takes a second, with "!" nobody hears the answer. ``looks``: answers of get_state that nobody
    hears, at first."""

    def __init__(self, domain: int, change: list[str], looks: int = 0) -> None:
        self.state, self.asked, self._change, self._deaf = "unconfigured", 0, change, looks
        self._context = Context()
        self._context.init(args=[], domain_id=domain)
        self._node = Node("served", context=self._context, start_parameter_services=False)
        self._node.create_service(ChangeState, "~/change_state", self._on_change)
        self._node.create_service(GetState, "~/get_state", self._on_state)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._spin)
        self._thread.start()

    def _spin(self) -> None:
        while not self._over.is_set():
            try:
                self._executor.spin_once(timeout_sec=0.05)
            except Astray:
                continue

    def _on_change(
        self, request: ChangeState.Request, response: ChangeState.Response
    ) -> ChangeState.Response:
        how = self._change[min(self.asked, len(self._change) - 1)]
        self.asked += 1
        if "slowly" in how:
            time.sleep(1.0)  # as a node that loads: three looks long
        if how == "busy":
            self.state = "configuring"
            threading.Timer(0.7, setattr, (self, "state", "inactive")).start()
        response.success = "make" in how and self.state == "unconfigured"
        if response.success:
            self.state = "inactive"
        if "!" in how:
            raise Astray
        return response

    def _on_state(
        self, request: GetState.Request, response: GetState.Response
    ) -> GetState.Response:
        self._deaf -= 1
        if self._deaf >= 0:
            raise Astray
        response.current_state = State(label=self.state)
        return response

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._executor.shutdown()
        self._node.destroy_node()
        self._context.try_shutdown()


@pytest.fixture
def serve(ros_domain, ros_env, monkeypatch):
    monkeypatch.setattr(lifecycle, "QUERY_S", 0.3)
    servers: list[Server] = []

    def start(change: list[str], looks: int = 0) -> Server:
        servers.append(Server(ros_domain, change, looks))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    ("change", "looks", "made", "asked"),
    [
        (["make"], 0, True, 1),
        (["refuse"], 0, False, 1),
        (["make!"], 0, True, 1),  # it is looked at, and is what it should be
        (["make!"], 2, True, 1),
        (["slowly make"], 0, True, 1),
        (["slowly refuse"], 0, False, 1),  # nothing is loaded twice to be refused twice
        (["refuse!", "make"], 0, True, 2),  # a request that came to nothing
        (["refuse!", "refuse"], 0, False, 2),
        (["refuse!", "refuse!", "make!"], 1, True, 3),
        (["refuse!", "busy"], 0, True, 2),  # the first was late: it is obeyed meanwhile
    ],
)
def test_an_answer_that_nobody_hears(serve, ros_domain, change, looks, made, asked):
    server = serve(change, looks)
    with LifecycleClient(ros_domain) as client:
        assert client.change("/served", "configure", 30.0, lambda: True) is made
        assert client.state("/served", 30.0, lambda: True) == server.state
    assert server.asked == asked
    assert server.state == ("inactive" if made else "unconfigured")


def test_who_never_answers_is_waited_for_no_longer_than_asked(serve, ros_domain):
    serve(["make!"], looks=1000)
    with LifecycleClient(ros_domain) as client:
        with pytest.raises(TimeoutError, match="/served/get_state did not answer in time"):
            client.change("/served", "configure", 1.5, lambda: True)
        with pytest.raises(TimeoutError, match="process ended"):
            client.change("/served", "configure", 30.0, lambda: False)
        with pytest.raises(TimeoutError, match="/nobody/change_state did not appear in time"):
            client.change("/nobody", "configure", 0.2, lambda: True)


def test_ctrl_c_of_the_launch_is_no_failure(serve, ros_domain, ros_env):
    """It comes while the answer is on its way; launch calls a status of 1 "process has died"."""
    server = serve(["make!"], looks=1000)
    bring_up = [sys.executable, "-m", lifecycle.__name__, "/served"]
    started = Program("bring_up", bring_up, ros_env)
    try:
        wait_until(lambda: server.asked, 30.0, "a request")
        started.signal(signal.SIGINT)
        assert started.wait(10.0) == 0, started.log
        assert started.log == ""
    finally:
        started.kill()
