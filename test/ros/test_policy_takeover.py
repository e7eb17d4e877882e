"""A person takes over a running policy node by the topics that teleoperation speaks."""

from __future__ import annotations

import array

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from geometry_msgs.msg import TwistStamped
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64

from support.policy_client import moves
from support.wait import repeating, wait_until
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.msg import ActionCommand
from vla_ros.ros.common import qos

STEP_M = 0.01  # of every action of the policy
PERIOD_S = 0.05
JOINTS = [f"joint{i}" for i in range(3)]


def steady(folder):
    rows = np.zeros((50, 7))
    rows[:, 0], rows[:, 6] = STEP_M, 1.0
    return {"policy": "replay", "replay_file": moves(folder, rows), "jump_limit": 0.3}


def said(rig, begin, kind):
    return [m for m in rig.commands.messages[begin:] if m.kind == kind]


def speak(rig, kind, topic):
    """Something that publishes a message with these fields and the stamp of now."""
    publisher = rig.ros.publisher(kind, f"policy/takeover/{topic}", qos.EVENT)
    rig.ros.wait_for_subscriber(publisher)

    def say(fill):
        message = kind()
        if hasattr(message, "header"):
            message.header.stamp = rig.ros.node.get_clock().now().to_msg()
        fill(message)
        publisher.publish(message)

    return say


def twist(x):
    def fill(message):
        message.twist.linear.x = x

    return fill


def test_a_joystick_takes_over_and_the_policy_goes_on_when_it_is_given_back(start_policy, tmp_path):
    rig = start_policy(**steady(tmp_path))
    rig.bring_up("reach")
    say = speak(rig, TwistStamped, "twist")
    grip = speak(rig, Float64, "gripper")
    with rig.filming():
        rig.expect(State.RUNNING)
        begin = len(rig.commands)
        with repeating(lambda: say(twist(-0.2)), 0.03):
            status = rig.expect(State.TAKEOVER)
            assert status.reason == "a person has taken over"
            wait_until(
                lambda: any(
                    m.action[0] == pytest.approx(-0.2 * PERIOD_S)
                    for m in said(rig, begin, CommandKind.TAKEOVER)
                ),
                10.0,
                "his velocity",
            )
            grip(lambda message: setattr(message, "data", 0.0))
            wait_until(lambda: rig.commands.last.action[6] == 0.0, 10.0, "a closed gripper")
            chunks = len(rig.chunks)
            wait_until(lambda: len(rig.chunks) > chunks + 3, 10.0, "the policy's own answers")
        begin = len(rig.commands)
        status = rig.expect(State.HOLD)  # let go, or its link was lost: nobody can tell
        assert "call ~/release or ~/resume" in status.reason
        rig.after(status, 10)
        assert not said(rig, begin, CommandKind.POLICY), "a person was moving it"
        assert rig.call("release").startswith("released")
        rig.expect(State.RUNNING)
        wait_until(lambda: rig.commands.last.action[0] == STEP_M, 10.0, "the policy's action")
    messages = rig.commands.messages
    moved = [
        (a.action[0], b.action[0], b.kind) for a, b in zip(messages, messages[1:], strict=False)
    ]
    steps = [abs(b - a) for a, b, kind in moved if kind in (0, 3)]
    assert max(steps) <= 0.3 * 0.1 + 1e-9
    assert rig.now().takeover_published >= 3


def test_release_and_what_is_refused(start_policy, tmp_path):
    rig = start_policy(**steady(tmp_path))
    rig.bring_up("reach")
    say = speak(rig, ActionCommand, "action")

    def act(width=7, space=0):
        def fill(message):
            message.action_space = space
            message.action = array.array("d", [-0.01] * 6 + [1.0] if width == 7 else [0.0] * width)

        return fill

    with rig.filming():
        rig.expect(State.RUNNING)
        say(act(space=3))
        wait_until(lambda: "joint_position, this robot's is" in rig.node.log, 10.0, "refusal")
        wait_until(
            lambda: say(act(space=7)) or "is 7, this robot's is end_effector_delta" in rig.node.log,
            10.0,
            "refusal of what is no action space",
            every=0.5,
        )
        assert "in a callback" not in rig.node.log
        with repeating(lambda: say(act()), 0.03):
            rig.expect(State.TAKEOVER)
            assert rig.call("release").startswith("released")
            rig.expect(State.RUNNING)  # though he goes on


def test_a_leader_arm_leads(start_policy, tmp_path):
    rig = start_policy(
        policy="zero",
        action_space="joint_position",
        joint_names=JOINTS,
        action_names=JOINTS,
        gripper_names=[""],
        bounds_low=[-3.0] * 3,
        bounds_high=[3.0] * 3,
        stale_action="hold",
        jump_limit=0.05,
    )
    rig.bring_up("reach")
    state = rig.ros.publisher(JointState, "joint_states", qos.EVENT)
    say = speak(rig, JointState, "joint_states")

    def measured():
        message = JointState(name=JOINTS, position=[0.0] * 3)
        message.header.stamp = rig.ros.node.get_clock().now().to_msg()
        state.publish(message)

    def lead(message):
        message.name, message.position = JOINTS[::-1], array.array("d", [0.3, 0.2, 0.1])

    with repeating(measured, 0.02), repeating(lambda: say(lead), 0.03):
        rig.expect(State.TAKEOVER)
        wait_until(
            lambda: len(rig.commands) and list(rig.commands.last.action) == [0.1, 0.2, 0.3],
            10.0,
            "the leader's joints",
        )
    first = said(rig, 0, CommandKind.TAKEOVER)[0]
    assert max(first.action) <= 0.05 * 6 + 1e-9
