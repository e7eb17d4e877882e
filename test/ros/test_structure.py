"""Serialized messages of every type that is listened to: whole ones pass, cut ones do not."""

from __future__ import annotations

import random
from importlib import import_module

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from rclpy.serialization import serialize_message
from sensor_msgs.msg import JointState

from endurance.mutate import spoilt_bytes, spoilt_message
from support.wait import wait_until
from vla_ros.core.pixels import BadMessage
from vla_ros.ros.common.listening import message_of

KINDS = (
    "sensor_msgs/JointState", "sensor_msgs/Image", "sensor_msgs/CompressedImage", "std_msgs/String",
    "std_msgs/Bool", "geometry_msgs/PoseStamped", "rcl_interfaces/Log", "vla_ros/ActionCommand",
    "vla_ros/ActionChunk", "vla_ros/PolicyStatus", "vla_ros/EpisodeStatus", "vla_ros/NamedPoses",
    "vla_ros/Latency", "diagnostic_msgs/DiagnosticArray", "trajectory_msgs/JointTrajectory",
)  # fmt: skip


def class_of(kind):
    package, _, name = kind.partition("/")
    return getattr(import_module(f"{package}.msg"), name)


def written(kind, rng):
    while True:
        try:
            return bytes(serialize_message(spoilt_message(class_of(kind), rng)))
        except UnicodeEncodeError:
            continue


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_middleware_writes_passes(kind):
    rng = random.Random(kind)
    for _ in range(40):
        raw = written(kind, rng)
        message_of(raw, class_of(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_cut_short_anywhere_is_refused(kind):
    """But for the few bytes that the writer takes too many."""
    raw = written(kind, random.Random(1))
    for length in range(len(raw) - 9, -1, -max(1, len(raw) // 200)):
        with pytest.raises(BadMessage, match=r"cut short|not plain CDR"):
            message_of(raw[:length], class_of(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_bytes_are_read_or_refused_in_one_line(kind):
    rng = random.Random(kind)
    for _ in range(200):
        try:
            message_of(spoilt_bytes(written(kind, rng), rng), class_of(kind))
        except BadMessage as error:
            assert str(error) and "\n" not in str(error)


def test_damaged_joint_states_do_not_end_the_policy(start_policy):
    """Cut short behind the stamp, they ended it below rclpy."""
    rig = start_policy(use_joint_states=True, state_layout="joints")
    rig.bring_up()
    rig.connect()
    publisher = rig.ros.publisher(JointState, "joint_states")
    rig.ros.wait_for_subscriber(publisher)
    good = JointState(name=[f"j{i}" for i in range(7)], position=[0.0] * 7)
    raw = bytes(serialize_message(good))
    before = rig.now().frames_dropped

    def dropped_one():
        """A reader that does not know its writer yet hears none of them: said again."""
        for length in range(len(raw) - 5, 0, -1):
            publisher.publish(raw[:length])
        return (status := rig.now()).frames_dropped > before and status

    dropped = wait_until(dropped_one, 10.0, "a drop", every=0.1)
    assert "cut short" in dropped.last_drop or "not plain CDR" in dropped.last_drop
