"""What the policy node takes for granted: said at configure, with its source, to who asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from sensor_msgs.msg import JointState

from support.policy_client import PolicyRig, moves
from support.ros import RosPeer
from vla_ros.msg import Assumption, PolicyDescription
from vla_ros.ros.common import qos

pytestmark = pytest.mark.ros
#: An arm of two joints and a hand, whose owner said its order, its gripper and its limits.
ARM = {
    "policy": "replay",
    "action_space": "joint_position",
    "action_names": ["j1", "j2", "hand"],
    "joint_names": ["j1", "j2"],
    "gripper_names": ["hand"],
    "stale_action": "hold",
    "bounds_low": [-4.0] * 2,
    "bounds_high": [4.0] * 2,
    "velocity_limits": [0.5] * 2,
    "action_rate_hz": 30.0,
    "outputs": ["positions"],
}


@contextmanager
def joints_published(ros: RosPeer) -> Iterator[None]:
    """A driver that has said nothing yet."""
    publisher = ros.publisher(JointState, "joint_states", qos.STATE)
    yield
    ros.node.destroy_publisher(publisher)


def rows(ros: RosPeer) -> dict[str, Assumption]:
    heard = ros.inbox(PolicyDescription, "policy/description", qos.LATCHED)
    return {a.what: a for a in heard.wait().assumptions}


def test_what_an_owner_said_has_its_parameter_and_the_rest_is_marked(
    start_policy: Callable[..., PolicyRig], ros: RosPeer, tmp_path
) -> None:
    with joints_published(ros):
        rig = start_policy(**ARM, replay_file=moves(tmp_path, np.zeros((4, 3))))
        assert ros.change_state("/policy", "configure")
        said = rows(ros)
    assert said["commands"].value == "joint_position: j1 [rad], j2 [rad], hand [1]"
    for what, parameter in (
        ("commands", "action_space"),
        ("grippers", "gripper_names"),
        ("order of joints", "joint_names"),
        ("action rate", "action_rate_hz"),
        ("largest speeds", "velocity_limits"),
    ):
        assert said[what].source == f"parameter {parameter}", what
        assert not said[what].is_default, what
    for what in ("a gripper's controller", "command rate", "oldest observation", "camera main"):
        assert said[what].is_default, what
    assert said["camera main"].value == "/image, published by nobody yet"
    assert said["joint states"].value.startswith("/joint_states, published by /")
    rig.node.wait_for_log("taken for granted; ? marks a default that nothing says:")
    rig.node.wait_for_log("? command rate ")


def test_an_activation_names_who_publishes_by_then(
    start_policy: Callable[..., PolicyRig], ros: RosPeer
) -> None:
    rig = start_policy(policy="zero")
    heard = ros.inbox(PolicyDescription, "policy/description", qos.LATCHED)
    assert ros.change_state("/policy", "configure")
    heard.wait(lambda m: any("/image, published by nobody yet" in a.value for a in m.assumptions))
    rig.connect()
    assert ros.change_state("/policy", "activate")
    heard.wait(lambda m: any("published by /" in a.value for a in m.assumptions))
