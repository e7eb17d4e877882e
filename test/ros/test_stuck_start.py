"""No verb that starts a graph stands for ever: a step that does not end is named, and ends it."""

from __future__ import annotations

import os
import signal
import sys

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.nodes import Program
from support.processes import alive, children
from support.wait import wait_until
from vla_ros.ros.common.ending import STUCK

#: A call of the middleware that never returns and holds Python's lock, as Fast DDS's did.
HANGS = """
import ctypes, sys
from vla_ros.ros.bringup import graph, lifecycle
graph.STEP_S = 2.0
graph.SERVICE_TIMEOUT_S = {appears_s}
def hang(*_): ctypes.PyDLL(None).sleep(600)
lifecycle.LifecycleClient.{where} = hang
from vla_ros.cli.main import main
sys.exit(main())
"""


@pytest.fixture
def verb(ros_env):
    programs = []

    def start(code: str, *words: str) -> Program:
        programs.append(Program(words[0], [sys.executable, "-c", code, *words], ros_env))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()
        print(program.log)


@pytest.mark.parametrize("words", [("up", "policy"), ("demo", "--policy", "zero")])
@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("__init__", "joining the ROS graph did not end within 2 s"),
        ("change", "policy: configure did not end within"),
        ("close", "leaving the ROS graph did not end within 2 s"),
    ],
)
def test_a_step_in_which_the_middleware_hangs_is_named_and_everything_ends(
    verb, words, where, says, monkeypatch
):
    pytest.importorskip("mujoco", reason="the simulation is not installed")
    code = HANGS.format(where=where, appears_s=10.0)
    if where == "change":  # a model may take long to load; here it does not
        code = code.replace(
            "graph.STEP_S",
            "graph.Graph.__init__.__kwdefaults__['configure_timeout_s'] = 2.0\ngraph.STEP_S",
        )
    program = verb(code, *words)
    nodes: list[int] = []
    if words[0] == "demo" or where == "change":  # `up` looks at the graph before it starts nodes
        wait_until(lambda: children(program.pid), 20.0, "nodes")
        nodes = children(program.pid)
    assert program.wait(60.0) == STUCK
    assert says in program.log
    wait_until(lambda: not [pid for pid in nodes if alive(pid)], 20.0, "the end of all nodes")


@pytest.mark.long
def test_a_node_that_answers_nothing_is_named(verb):
    code = HANGS.format(where="nothing", appears_s=3.0)
    program = verb(code, "up", "policy")
    # One that stops between its fork and its exec would stop the program that starts it, too.
    program.wait_for_log("started monitor, policy", 20.0)
    nodes = children(program.pid)
    assert len(nodes) == 2
    for node in nodes:
        os.kill(node, signal.SIGSTOP)
    assert program.wait(60.0) == STUCK
    assert "policy: configure: /policy/get_state did not" in program.log
    wait_until(lambda: not [pid for pid in nodes if alive(pid)], 20.0, "their end")
