"""What robots' controllers are told beside ~/action: joints as an array, and two arms."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from geometry_msgs.msg import TwistStamped
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64, Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from support.nodes import Program
from support.policy_client import moves
from support.ros import RosPeer
from support.wait import repeating, wait_until
from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionKind, joints
from vla_ros.core.clock import SECOND
from vla_ros.core.types import Command, CommandKind, Plan, PolicyInfo
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import stamp_of, to_time
from vla_ros.ros.nodes.policy.parameters import TABLE
from vla_ros.ros.nodes.policy.topics import PolicyTopics
from vla_ros.runtime.safety import Limits

T = 0.05
OPEN_M = 0.04


@contextlib.contextmanager
def standing(ros: RosPeer, joints: dict[str, float]) -> Iterator[None]:
    """Publish at 100 Hz that the joints are there."""
    topic = ros.publisher(JointState, "joint_states", qos.STATE)

    def tell() -> None:
        message = JointState(name=list(joints), position=list(joints.values()))
        message.header.stamp = to_time(time.time_ns())
        topic.publish(message)

    with repeating(tell, 0.01):
        yield


def acts(rig) -> None:
    """Wait for more than 20 commands with an action of their own: a busy machine holds some."""
    rig.expect(State.RUNNING)
    wait_until(lambda: rig.kinds().count(CommandKind.POLICY) > 20, 10.0, "21 actions")


def test_positions_are_the_joints_of_every_command_and_grippers_in_their_own_unit(
    start_policy, ros, tmp_path
):
    rows = np.column_stack([0.5 + 1e-3 * np.arange(40), -0.5 - 1e-3 * np.arange(40), [0.25] * 40])
    rig = start_policy(
        policy="replay",
        replay_file=moves(tmp_path, rows),
        outputs=["positions"],
        action_space="joint_position",
        action_names=["shoulder", "elbow", "finger"],
        gripper_names=["finger"],
        gripper_range=[0.0, OPEN_M],
        joint_names=["shoulder", "elbow", "finger"],
        bounds_low=[-3.0] * 2,
        bounds_high=[3.0] * 2,
        stale_action="hold",
    )
    arm = ros.inbox(Float64MultiArray, "policy/positions", qos.ACTION)
    hand = ros.inbox(Float64MultiArray, "policy/gripper_positions", qos.ACTION)
    with standing(ros, {"finger": 0.01, "elbow": -0.5, "shoulder": 0.5}):
        rig.bring_up("reach")
        with rig.filming():
            acts(rig)
        rig.call("stop")
        rig.wait_for(CommandKind.STOP, len(rig.commands))
    assert ros.change_state("/policy", "deactivate")
    begin = rig.wait_for(CommandKind.POLICY)

    def as_commanded() -> bool:
        wanted = [m.action[:2].tolist() for m in rig.commands.messages[begin:]]
        return [m.data.tolist() for m in arm.messages][-len(wanted) :] == wanted

    wait_until(as_commanded, 5.0, "each command's joints, in order")
    said = [m for m in rig.commands.messages if m.kind == CommandKind.POLICY]
    assert len(said) > 20
    assert {tuple(m.action) for m in said} <= {tuple(row) for row in rows}
    assert list(said[0].names) == ["shoulder", "elbow", "finger"]
    assert list(said[0].units) == ["rad", "rad", "1"]
    wait_until(lambda: len(hand) >= len(said), 5.0, "the gripper of each")
    assert {m.data[0] for m in hand.messages[-len(said) :]} == {0.25 * OPEN_M}


def test_two_arms_have_names_units_twists_and_grippers_of_their_own(start_policy, ros, tmp_path):
    rows = np.zeros((40, 14))
    rows[:, 0], rows[:, 5], rows[:, 6] = 0.001 * np.arange(1, 41), -0.3, 0.25
    rows[:, 8], rows[:, 10], rows[:, 13] = -0.0005 * np.arange(1, 41), 0.2, 1.0
    rig = start_policy(
        policy="replay",
        replay_file=moves(tmp_path, rows),
        arms=["left_", "right_"],
        bounds_low=[-0.05, -0.05, -0.05, -0.5, -0.5, -0.5] * 2,
        bounds_high=[0.05, 0.05, 0.05, 0.5, 0.5, 0.5] * 2,
        outputs=["twist"],
        stale_action="zero",
    )
    arms = ("left_", "right_")
    twists = [ros.inbox(TwistStamped, f"policy/{arm}twist", qos.ACTION) for arm in arms]
    grippers = [ros.inbox(Float64, f"policy/{arm}gripper", qos.ACTION) for arm in arms]
    rig.bring_up("reach")
    with rig.filming():
        acts(rig)
        rig.call("stop")
        rig.wait_for(CommandKind.STOP, len(rig.commands))
    names = ("x", "y", "z", "rx", "ry", "rz", "gripper")
    command = rig.commands.last
    assert list(command.names) == [arm + name for arm in arms for name in names]
    assert list(command.units) == ["m", "m", "m", "rad", "rad", "rad", "1"] * 2
    said = {stamp_of(m.header.stamp): m for m in rig.commands.messages}
    moved = {tuple(m.action) for m in said.values() if m.kind == CommandKind.POLICY}
    assert len(moved) > 10 and moved <= {tuple(row) for row in rows}

    def heard_of(twist):
        messages = list(twist.messages)
        return [(m.twist, said[s]) for m in messages if (s := stamp_of(m.header.stamp)) in said]

    for twist, numbers in zip(twists, (slice(0, 6), slice(7, 13)), strict=True):
        wait_until(lambda t=twist: len(heard_of(t)) > 20, 5.0, "the twists of the commands")
        for velocity, command in heard_of(twist):
            linear, angular = velocity.linear, velocity.angular
            six = [linear.x, linear.y, linear.z, angular.x, angular.y, angular.z]
            assert six == pytest.approx((np.asarray(command.action[numbers]) / T).tolist())
        wait_until(
            lambda t=twist: t.last.twist.linear.x == t.last.twist.linear.y == 0.0, 5.0, "rest"
        )
    wait_until(lambda: all(map(len, grippers)), 5.0, "both grippers")
    assert [gripper.last.data for gripper in grippers] == [0.25, 1.0]


READER = """
import sys
import rclpy
from {module} import {kind}
from vla_ros.ros.common import qos

rclpy.init()
node = rclpy.create_node("controller")
node.create_subscription({kind}, sys.argv[1], lambda m: print("heard", flush=True), qos.ACTION)
rclpy.spin(node)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("output", "topic", "kind"),
    [
        ("twist", "twist", TwistStamped),
        ("positions", "positions", Float64MultiArray),
        ("trajectory", "joint_trajectory", JointTrajectory),
    ],
)
def test_the_last_word_waits_for_the_readers_of_every_output(ros, ros_env, output, topic, kind):
    """Not of ~/action alone, which nobody reads here."""
    space = END_EFFECTOR_DELTA if output == "twist" else joints(ActionKind.JOINT_DELTA, ("a", "b"))
    count = len(space.motion)
    limits = Limits(space=space, low=(-1.0,) * count, high=(1.0,) * count)
    values = {row.name: row.default for row in TABLE} | {"outputs": [output]}
    topics = PolicyTopics(ros.node)
    topics.open(values, limits, lambda *_: None)
    code = READER.format(module=kind.__module__.rpartition("._")[0], kind=kind.__name__)
    reader = Program("reader", [sys.executable, "-c", code, f"/test_peer/{topic}"], ros_env)
    try:
        number = itertools.count()

        def say() -> None:
            action = np.full(space.width, 0.1)
            command = Command(CommandKind.POLICY, action, next(number), 0, 0, 0)
            plan = Plan(((T, action, 0.0 * action),))
            command = replace(command, joint_positions=action, plan=plan, valid_until_ns=SECOND)
            topics.command(command, PolicyInfo("zero"))

        def heard() -> bool:
            say()
            return "heard" in reader.log

        wait_until(heard, 20.0, "a reader", every=0.1)
        assert topics.flush(10.0)
        reader.signal(signal.SIGSTOP)
        say()
        began = time.monotonic()
        assert not topics.flush(0.3)
        assert time.monotonic() - began >= 0.3
        reader.signal(signal.SIGCONT)
        assert topics.flush(10.0)
    finally:
        reader.kill()
        topics.close()
