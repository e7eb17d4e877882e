"""The page in the browser, in a real one: it shows a running policy and stops it."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("viser", reason="viser is not installed: make view")

from support.browser import browser, button, field, missing, text_of
from support.nodes import Program
from support.wait import wait_until
from vla_ros.bringup.view import address_in
from vla_ros.msg import ActionCommand, PolicyStatus
from vla_ros.nodes.common.qos import ACTION, LATCHED

MAIN = "import sys; from vla_ros.cli.main import main; sys.exit(main())"
SENTENCE = "push the blue cube to the left"
BROWSER_S = 150.0  # software rendering, on a machine that may have other things to do


@pytest.fixture
def up(ros_env):
    programs = []

    def start(*words):
        programs.append(Program("up", [sys.executable, "-c", MAIN, "up", *words], ros_env))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()
        print(program.log)


def address_of(graph):
    def told():
        return next(filter(None, map(address_in, graph.log.splitlines())), "")

    return wait_until(told, 60, lambda: f"an address in:\n{graph.log}")


@pytest.mark.timeout(500)
@pytest.mark.skipif(bool(missing()), reason=missing() or "there is a browser")
@pytest.mark.skipif(importlib.util.find_spec("mujoco") is None, reason="mujoco is not installed")
def test_the_page_shows_the_state_takes_an_instruction_and_stops_the_robot(up, ros):
    # A loaded machine must not hold the policy before the page does.
    late = ("-p", "policy.max_age_s=3.0", "-p", "bridge.image_size=128")
    graph = up("sim", "--view", "-p", "policy.policy=scripted", *late)
    statuses = ros.inbox(PolicyStatus, "/policy/status", LATCHED)
    address = address_of(graph)
    statuses.wait(lambda m: m.state == PolicyStatus.STATE_RUNNING, timeout=60)
    with browser() as chrome:
        chrome.get(address)
        shown = ("RUNNING", "WAITING", "HOLD")
        wait_until(lambda: text_of(chrome, "vla-word") in shown, BROWSER_S, "the state")

        box = field(chrome)
        box.send_keys(SENTENCE)
        button(chrome, "Say it").click()
        statuses.wait_new(lambda m: m.instruction == SENTENCE, timeout=BROWSER_S)
        wait_until(lambda: text_of(chrome, "vla-told") == SENTENCE, BROWSER_S, "what was said")

        button(chrome, "STOP").click()
        stopped = statuses.wait_new(lambda m: "stop" in m.reason, timeout=BROWSER_S)
        assert stopped.state == PolicyStatus.STATE_WAITING
        wait_until(lambda: "stop" in text_of(chrome, "vla-reason"), BROWSER_S, "the reason")
    commands = ros.inbox(ActionCommand, "/policy/action", ACTION)
    time.sleep(1.0)
    assert not any(m.kind == ActionCommand.KIND_POLICY for m in commands.messages)


def test_the_graph_goes_on_without_its_view(up, ros):
    """Killed in the middle, it takes nothing along."""
    graph = up("policy", "--view", "-p", "policy.instruction=wait")
    statuses = ros.inbox(PolicyStatus, "/policy/status", LATCHED)
    address_of(graph)
    graph.wait_for_log("everything is running", timeout=60)
    found = os.popen(f"ps -o pid=,args= --ppid {graph.pid}").read().splitlines()
    view = next(int(line.split()[0]) for line in found if "nodes.view" in line)
    os.kill(view, signal.SIGKILL)
    graph.wait_for_log("view was ended by SIGKILL, and everything else goes on", timeout=20)
    statuses.wait_new(timeout=10)
    assert graph.returncode is None
    graph.signal(signal.SIGINT)
    assert graph.wait(30) == 0
