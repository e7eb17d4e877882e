"""The page in the browser, in a real one: it shows a running policy and stops it."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("viser", reason="viser is not installed: make view")

from sensor_msgs.msg import JointState

from support.browser import browser, missing
from support.nodes import Program
from support.policy_client import moves
from support.wait import wait_until
from vla_ros.msg import ActionCommand, PolicyStatus
from vla_ros.ros.common.qos import ACTION, LATCHED

MAIN = "import sys; from vla_ros.cli.main import main; sys.exit(main())"
TEXT = "push the blue cube to the left"
BROWSER_S = 90.0  # software rendering, on a machine that may have other things to do
INSTRUCTION = "form input[class*=TextInput-input]"


@pytest.fixture
def verb(ros_env):
    programs = []

    def start(*words):
        programs.append(Program(words[0], [sys.executable, "-c", MAIN, *words], ros_env))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()
        print(program.log)


def address_of(graph):
    def told():
        found = re.search(r"http://\S+", graph.log)
        return found[0] if found else ""

    return wait_until(told, 60, lambda: f"an address in:\n{graph.log}")


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.skipif(bool(missing()), reason=missing() or "there is a browser")
@pytest.mark.skipif(importlib.util.find_spec("mujoco") is None, reason="mujoco is not installed")
def test_a_demo_is_watched_told_what_to_do_and_stopped_in_the_browser(verb, ros, ros_env, tmp_path):
    sway = np.zeros((6000, 7))
    sway[:, 1] = 0.01 * np.sign(np.sin(np.arange(6000) / 15))
    graph = verb(
        *("demo", "--view", "--domain-id", ros_env["ROS_DOMAIN_ID"], "--timeout", "300"),
        *("--policy", "replay", "--replay-file", moves(tmp_path, sway)),
        # A loaded machine must not hold the policy before the page does.
        *("-p", "policy.max_age_s=3.0", "-p", "bridge.max_steps=6000"),
    )
    statuses = ros.inbox(PolicyStatus, "/policy/status", LATCHED)
    commands = ros.inbox(ActionCommand, "/policy/action", ACTION)
    joints = ros.inbox(JointState, "/joint_states")
    address = address_of(graph)
    assert not any(m.state == PolicyStatus.STATE_RUNNING for m in statuses.messages)
    with browser() as page:
        page.size(1000, 800)  # little 3-D to draw
        page.open(address)
        wait_until(lambda: page.text("vla-word") == "RUNNING", BROWSER_S, "the state", every=0.2)

        page.write(INSTRUCTION, TEXT)
        page.press_button("Send")
        statuses.wait_new(lambda m: m.instruction == TEXT, timeout=BROWSER_S)
        wait_until(
            lambda: page.text("vla-instruction") == TEXT,
            BROWSER_S,
            "what was instructed",
            every=0.2,
        )

        def stops_by(press):
            statuses.wait_new(lambda m: m.state == PolicyStatus.STATE_RUNNING, timeout=BROWSER_S)
            assert moved(joints) > 0.005
            press()
            stopped = statuses.wait_new(lambda m: "stop" in m.reason, timeout=BROWSER_S)
            assert stopped.state == PolicyStatus.STATE_WAITING
            wait_until(lambda: page.text("vla-word") == "STOPPED", BROWSER_S, "the page shows it")
            began = len(commands.messages)
            assert moved(joints) < 0.002
            assert all(m.kind != ActionCommand.KIND_POLICY for m in commands.messages[began:])

        stops_by(lambda: page.press_button("STOP"))
        page.press_button("Resume")
        stops_by(lambda: page.press_key("Escape", 27))
    graph.signal(signal.SIGINT)
    assert graph.wait(30) == 130


def moved(joints):
    """The farthest that any joint goes in the next second of messages, rad or m."""
    begin = len(joints.messages)
    wait_until(lambda: len(joints.messages) > begin + 20, 30, "joint states")
    positions = np.array([m.position for m in joints.messages[begin:]])
    return float(np.ptp(positions, axis=0).max())


def test_the_graph_goes_on_without_its_view(verb, ros):
    """Killed in the middle, it takes nothing along."""
    graph = verb("up", "policy", "--view", "-p", "policy.instruction=wait")
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
