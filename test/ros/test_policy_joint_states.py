"""Joint states and images as drivers publish them: wrong once, twice, ahead, or only on change."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from geometry_msgs.msg import PoseStamped
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String

from support.policy_client import PolicyRig, moves
from support.ros import RosPeer
from support.wait import repeating, wait_until
from vla_ros.core.clock import MS
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import to_time

REST = 1.2
#: An arm of two joints and a hand, told to go to 0.5 rad.
ARM = {
    "policy": "replay",
    "action_space": "joint_position",
    "action_names": ["j1", "j2", "hand"],
    "gripper_names": ["hand"],
    "stale_action": "hold",
    "bounds_low": [-4.0] * 2,
    "bounds_high": [4.0] * 2,
    "velocity_limits": [0.5] * 2,
    "detect_frozen": False,
    "hold_latch_s": 0.0,
}


class Driver:
    """Publishes what it is given, in a node of its own. ``messages`` is asked 100 times a second
    for what each has: positions by name."""

    def __init__(self, ros: RosPeer, name: str, kind: Any = JointState, topic="joint_states"):
        self.node = Node(name, context=ros.context, start_parameter_services=False)
        self.publisher = self.node.create_publisher(kind, topic, qos.STATE)
        self.ahead_ns = 0
        self.says: Callable[[], list[Any]] = list

    def publish(self) -> None:
        for message in self.says():
            message.header.stamp = to_time(time.time_ns() + self.ahead_ns)
            self.publisher.publish(message)

    def at(self, **joints: float) -> None:
        self.says = lambda: [state(joints)]


def state(joints: dict[str, float], **other: Any) -> JointState:
    return JointState(name=list(joints), position=list(joints.values()), **other)


@pytest.fixture
def driver(ros: RosPeer) -> Iterator[Callable[..., Driver]]:
    """`driver(name)`: starts to publish as soon as it is given something to say."""
    drivers: list[Driver] = []

    def start(name: str = "arm_driver", *args: Any, **given: Any) -> Driver:
        drivers.append(Driver(ros, name, *args, **given))
        return drivers[-1]

    with repeating(lambda: [one.publish() for one in drivers], 0.01):
        yield start
    for one in drivers:
        one.node.destroy_node()


@contextmanager
def running(start_policy, tmp_path, driver, **parameters) -> Iterator[tuple[PolicyRig, Driver]]:
    """The arm at rest, the policy running."""
    arm = driver()
    arm.at(j1=REST, j2=-REST, hand=0.0)
    rig = arm_rig(start_policy, tmp_path, **parameters)
    with rig.filming():
        rig.expect(State.RUNNING)
        yield rig, arm


def arm_rig(start_policy, tmp_path, *, up: bool = True, **parameters: Any) -> PolicyRig:
    rows = np.tile([0.5, -0.5, 1.0], (400, 1))
    rig = start_policy(replay_file=moves(tmp_path, rows), **(ARM | parameters))
    if up:
        rig.bring_up("reach")
    return rig


def goes_on(rig: PolicyRig, count: int = 10) -> np.ndarray:
    """The next actions of the policy, float64 [count, D]."""
    begin = len(rig.commands)

    def found() -> list[Any]:
        return [m for m in rig.commands.messages[begin:] if m.kind == CommandKind.POLICY]

    wait_until(lambda: len(found()) >= count, 10.0, f"{count} actions")
    return np.array([m.action for m in found()])


def test_one_reading_in_three_is_wrong_and_no_place_to_start_from(start_policy, tmp_path, driver):
    """The newest one each time."""
    right, wrong = ({"j1": at, "j2": -REST, "hand": 0.0} for at in (REST, 0.0))
    driver().says = lambda: [state(right), state(right), state(wrong)]
    rig = arm_rig(start_policy, tmp_path)
    with rig.filming():
        rig.expect(State.RUNNING)
        first = goes_on(rig, 1)[0]
        assert first[0] > 1.0, first
        status = rig.expect(lambda s: "joint 'j1' was read at 0.000" in s.last_drop)
    assert status.state == State.RUNNING
    assert rig.node.log.count("it does not move so fast") == 1


def test_a_joint_with_two_publishers_is_refused_and_a_hand_of_its_own_is_not(
    start_policy, tmp_path, driver
):
    driver().at(j1=REST, j2=-REST)
    driver("hand_driver").at(hand=0.0)
    rig = arm_rig(start_policy, tmp_path, joint_names=["j1", "j2", "hand"])
    with rig.filming():
        rig.expect(State.RUNNING)
        goes_on(rig)
        other = driver("joint_state_publisher")
        other.at(j1=0.0, j2=0.0)
        why = (
            "joint 'j1' on /joint_states is published by two nodes, /arm_driver and"
            " /joint_state_publisher: stop all but one, or remap them (and 1 joints more)"
        )
        held = rig.expect(lambda s: s.state == State.HOLD and why in s.reason)
        rig.expect(lambda s: s.frames_dropped > held.frames_dropped + 100, 20.0)
        assert rig.node.log.count(f"frame dropped: {why}") == 1
        other.says = list
        rig.expect(State.RUNNING)
        goes_on(rig)


@pytest.mark.long
def test_a_driver_that_was_restarted_is_no_second_writer(start_policy, tmp_path, driver):
    with running(start_policy, tmp_path, driver) as (rig, arm):
        arm.says, again = list, driver("arm_driver_again")
        again.at(j1=REST, j2=-REST, hand=0.0)
        goes_on(rig, 40)  # two seconds, one more than a writer may be silent
    assert "published by two" not in rig.node.log


def test_velocities_alone_are_no_frame_that_was_dropped(start_policy, tmp_path, driver):
    base = driver("base")
    base.says = lambda: [
        JointState(name=["left_wheel", "right_wheel"], velocity=[1.0, 1.0]),
        JointState(name=["j1"], velocity=[0.1]),
    ]
    with running(start_policy, tmp_path, driver, joint_names=["j1", "j2", "hand"]) as (rig, _):
        goes_on(rig, 20)
        status = rig.expect(lambda s: s.frames_received > 40)
    assert "positions" not in status.last_drop
    assert "positions" not in rig.node.log


@pytest.mark.long
def test_a_hand_that_speaks_only_on_change_is_named_and_may_be(start_policy, tmp_path, driver):
    arm, hand = driver(), driver("hand_driver")
    arm.at(j1=REST, j2=-REST)
    names = {"joint_names": ["j1", "j2", "hand"], "policy": "replay"}
    rig = arm_rig(start_policy, tmp_path, **names)
    hand.at(hand=0.0)
    with rig.filming():
        rig.expect(State.RUNNING)
        hand.says = list
        lacks = rig.expect(lambda s: "joints_on_change" in s.reason, 20.0)
        assert "has joint 'hand' last read" in lacks.reason
        assert "its driver may speak only on change: name it in joints_on_change" in lacks.reason
        assert rig.ros.change_state("/policy", "deactivate")
        assert rig.ros.change_state("/policy", "cleanup")
        rig.ros.set_parameter("/policy", "joints_on_change", ["hand"])
        rig.bring_up()
        once = threading.Event()

        def speak() -> list[JointState]:
            once.set()
            hand.says = list
            return [state({"hand": 0.5})]

        hand.says = speak
        rig.call("resume")
        rig.expect(State.RUNNING)
        assert once.is_set()
        goes_on(rig, 40)
    assert not rig.ros.set_parameter("/policy", "joints_on_change", ["thumb"])[0]


def test_a_driver_whose_clock_is_ahead_is_not_joined_as_if_it_were_fresh(
    start_policy, tmp_path, driver
):
    with running(start_policy, tmp_path, driver) as (rig, arm):
        arm.ahead_ns = 100 * MS
        held = rig.expect(State.HOLD)
        assert "joint_states is stamped" in held.reason
        assert "ahead of this machine's clock: synchronize the clocks, or raise" in held.reason
        arm.ahead_ns = 0
        rig.expect(State.RUNNING)
        goes_on(rig)
        arm.ahead_ns = 100 * MS
        rig.expect(State.HOLD)
        assert rig.ros.set_parameter("/policy", "stamp_tolerance_s", 0.2)[0]
        rig.expect(State.RUNNING)
    assert rig.node.log.count("frame dropped: joint_states is stamped") == 1


def turns(wraps: str) -> str:
    return (
        f'<robot name="arm"><joint name="j1" type="{wraps}"><limit velocity="1.0" effort="1"/>'
        '</joint><joint name="j2" type="revolute"/></robot>'
    )


@pytest.mark.parametrize("by", ["robot_description", "continuous_joints"])
def test_a_joint_that_turns_through_pi_is_one_motion(start_policy, ros, tmp_path, driver, by):
    """A driver that reports from -pi to pi: where it comes round nothing is held back."""
    described = ros.publisher(String, "robot_description", qos.LATCHED)
    if by == "robot_description":
        described.publish(String(data=turns("continuous")))
    began = time.monotonic()
    arm = driver()

    def turning() -> list[JointState]:
        angle = 3.0 + 0.2 * (time.monotonic() - began)
        return [state({"j1": math.remainder(angle, 2 * math.pi), "j2": 0.0, "hand": 0.0})]

    arm.says = turning
    rig = arm_rig(
        start_policy,
        tmp_path,
        joint_names=["j1", "j2", "hand"],
        continuous_joints=["j1"] if by == "continuous_joints" else [""],
    )
    with rig.filming():
        rig.expect(State.RUNNING)
        wait_until(lambda: 0.2 * (time.monotonic() - began) > 0.6, 10.0, "it has come round")
        goes_on(rig, 20)
    assert "does not move so fast" not in rig.node.log
    assert "jumped" not in rig.node.log


def test_a_joint_with_ends_that_turns_is_not_followed(start_policy, tmp_path, driver):
    with running(start_policy, tmp_path, driver) as (rig, arm):
        arm.at(j1=REST - 2 * math.pi, j2=-REST, hand=0.0)
        rig.node.wait_for_log("joint 'j1' jumped from 1.200 to -5.083: ")


def test_two_cameras_on_one_topic_are_one_too_many(start_policy, ros, driver):
    rig = start_policy()
    rig.bring_up("reach")
    with rig.filming():
        rig.expect(State.RUNNING)
        goes_on(rig)
        other = driver("other_camera", Image, topic="image")
        other.says = lambda: [rig.frame()]
        why = "/image is published by two nodes, /other_camera and /test_peer: stop all but one"
        held = rig.expect(lambda s: s.state == State.HOLD and why in s.reason)
        assert "the image is refused" in held.reason
        other.says = list
        rig.expect(State.RUNNING)
        goes_on(rig)


def test_one_pose_elsewhere_is_not_where_the_arm_starts(start_policy, ros, tmp_path, driver):
    """The newest one each time: 0.3 m off."""
    rows = np.tile([0.4, 0.0, 0.3, 0.0, 0.0, 0.0, 1.0], (400, 1))
    hand = driver("hand_pose", PoseStamped, topic="measured_pose")

    def at(x: float) -> PoseStamped:
        message = PoseStamped()
        message.header.frame_id, message.pose.orientation.w = "base_link", 1.0
        message.pose.position.x, message.pose.position.z = x, 0.3
        return message

    hand.says = lambda: [at(0.4), at(0.4), at(0.7)]
    rig = start_policy(
        policy="replay",
        replay_file=moves(tmp_path, rows),
        action_space="end_effector_pose",
        stale_action="hold",
        bounds_low=[-1.0] * 3 + [-4.0] * 3,
        bounds_high=[1.0] * 3 + [4.0] * 3,
        velocity_limits=[0.2] * 3 + [1.0] * 3,
    )
    rig.bring_up("reach")
    with rig.filming():
        rig.expect(State.RUNNING)
        assert abs(goes_on(rig, 1)[0][0] - 0.4) < 1e-6
        rig.expect(lambda s: "measured_pose is 0.300 m" in s.last_drop)
