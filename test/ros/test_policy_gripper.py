"""Goals to a gripper's controller: told until one is reached, whatever becomes of the first."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support import built_messages
from support.nodes import Program
from support.policy_client import GRIPPER, PolicyRig, moves
from support.wait import wait_until
from vla_ros.core.clock import SECOND
from vla_ros.core.types import PolicyState as State

CONTROLLER = Path(built_messages.__file__).with_name("gripper_controller.py")
KINDS = ("GripperCommand", "ParallelGripperCommand")


@pytest.fixture(scope="module")
def python_path(tmp_path_factory):
    try:
        folder = built_messages.where("control_msgs", tmp_path_factory.mktemp("control_msgs"))
    except LookupError as missing:
        pytest.skip(str(missing))
    return os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH", ""))))


class Hand:
    """A policy with `outputs: [gripper]` that goes on closing to GRIPPER, and controllers."""

    def __init__(self, ros, spawn_node, env, folder, python_path, kind):
        self._env = {**env, "PYTHONPATH": python_path}
        self._kind = kind
        self.started = []
        parameters = {
            "policy": "replay",
            "replay_file": moves(folder),
            "outputs": ["gripper"],
            "gripper_action": kind,
            "velocity_limits": [2.0, 2.0, 2.0, 20.0, 20.0, 20.0],
            "hold_latch_s": 0.0,
        }
        node = spawn_node("policy", parameters, extra_env={"PYTHONPATH": python_path})
        self.rig = PolicyRig(ros, node, env, self.started)

    def controller(self, answers):
        words = [sys.executable, str(CONTROLLER), "/policy/gripper_cmd", self._kind, answers]
        program = Program("controller", words, self._env)
        self.started.append(program)
        program.wait_for_log("ready")
        return program

    def acts(self, more=30):
        """Wait for so many commands more."""
        begin = len(self.rig.commands)
        wait_until(lambda: len(self.rig.commands) >= begin + more, 20.0, f"{more} commands")


@pytest.fixture
def hand(ros, spawn_node, ros_env, tmp_path, python_path, request):
    kind = getattr(request, "param", KINDS[0])
    made = Hand(ros, spawn_node, ros_env, tmp_path, python_path, kind)
    yield made
    for program in made.started:
        program.kill()
        print(f"----- {program.name}\n{program.log}")


def goals(program):
    """(steady ns, position, answer) of each that came."""
    rows = [line.split()[1:] for line in program.log.splitlines() if line.startswith("goal ")]
    return [(int(at), float(position), answer) for at, position, answer in rows]


def answered(program):
    return [answer for _, _, answer in goals(program)]


@pytest.mark.long
@pytest.mark.parametrize("hand", KINDS, indirect=True)
@pytest.mark.parametrize("answer", ["reject", "abort"])
def test_a_goal_that_came_to_nothing_is_sent_again_a_second_later_until_one_is_reached(
    hand, answer
):
    controller = hand.controller(f"{answer},{answer},succeed")
    hand.rig.bring_up("reach")
    with hand.rig.filming():
        hand.rig.expect(State.RUNNING)
        wait_until(lambda: "succeed" in answered(controller), 20.0, "a goal that is reached")
        hand.acts(50)
    assert answered(controller) == [answer, answer, "succeed"], "and none after it"
    assert {position for _, position, _ in goals(controller)} == {GRIPPER}
    first, second, third = (at for at, _, _ in goals(controller))
    assert min(second - first, third - second) > 0.9 * SECOND
    told = f"its goal was {answer}ed"
    assert hand.rig.node.log.count(told) == 1, "once a reason"


@pytest.mark.long
def test_a_controller_that_gave_up_because_it_holds_something_is_left_alone(hand):
    controller = hand.controller("stall")
    hand.rig.bring_up("reach")
    with hand.rig.filming():
        hand.rig.expect(State.RUNNING)
        wait_until(lambda: goals(controller), 20.0, "a goal")
        hand.acts(50)
    assert answered(controller) == ["stall"]


@pytest.mark.long
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL], ids=["left", "killed"])
def test_a_controller_that_starts_anew_is_told_what_the_last_one_knew(hand, end):
    first = hand.controller("succeed")
    hand.rig.bring_up("reach")
    with hand.rig.filming():
        hand.rig.expect(State.RUNNING)
        wait_until(lambda: goals(first), 20.0, "a goal")
        hand.acts()
        first.signal(end)
        first.process.wait(20.0)
        second = hand.controller("succeed")
        wait_until(lambda: goals(second), 20.0, "the goal again")
        hand.acts(50)
    assert answered(first) == ["succeed"]
    # Again where the answer was lost: a server may hear a client before that hears the server.
    assert answered(second) in (["succeed"], ["succeed"] * 2)


def test_an_activation_tells_the_gripper_anew(hand):
    controller = hand.controller("succeed")
    hand.rig.bring_up("reach")
    with hand.rig.filming():
        hand.rig.expect(State.RUNNING)
        wait_until(lambda: goals(controller), 20.0, "a goal")
        for change in ("deactivate", "activate"):
            assert hand.rig.ros.change_state("/policy", change)
        hand.rig.instruct("reach again")
        wait_until(lambda: len(goals(controller)) == 2, 20.0, "the goal again")
        hand.acts()
    assert answered(controller) == ["succeed"] * 2
