"""What the parameters ask of a frame, and where they cannot give what a checkpoint needs."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from geometry_msgs.msg import PoseStamped, TransformStamped
from sensor_msgs.msg import JointState

from vla_ros.core.pixels import BadMessage
from vla_ros.core.types import PolicyInfo
from vla_ros.ros.nodes.policy.cameras import Camera
from vla_ros.ros.nodes.policy.inputs import as_pose, joints_of, pose_of
from vla_ros.ros.nodes.policy.needs import FrameStreams, needs_of, tf2_is_there
from vla_ros.ros.nodes.policy.parameters import TABLE, camera_rows

OFT = PolicyInfo("vla", cameras=2, state_dim=8)
FINGERS = {"state_layout": "libero_oft", "joint_names": ["left", "right"]}


def needs(info: PolicyInfo, **given: object) -> FrameStreams:
    return needs_of({row.name: row.default for row in TABLE} | given, info)


def test_a_policy_that_asks_for_nothing_is_shown_one_camera() -> None:
    found = needs(PolicyInfo("zero"))
    assert found.main == Camera("image", "raw")
    assert (found.wrist, found.joints, found.end_effector, found.ground_truth) == (
        None, False, None, False,
    )  # fmt: skip
    assert needs(PolicyInfo("scripted")).ground_truth


def test_a_checkpoint_s_needs_are_met_without_being_asked() -> None:
    found = needs(OFT, **FINGERS, image_transport="compressed", **{"cameras.main.transport": "raw"})
    assert found.main == Camera("image", "raw")
    assert found.wrist == Camera("wrist_image", "compressed")
    assert found.joints
    assert found.joint_names == ("left", "right")
    assert found.end_effector == ""
    assert needs(OFT).size == 8  # a message's positions as they come, eight of them


def test_further_cameras_are_found_by_their_roles() -> None:
    roles = {"camera_roles": ["left", "belt"], "image_transport": "compressed"}
    rows = camera_rows(roles)
    given = {row.name: row.default for row in rows} | roles | {"cameras.belt.topic": "belt/rgb"}
    looks = PolicyInfo("lerobot", camera_roles=("left", "belt"))
    assert needs(looks, **given).more == {
        "left": Camera("left_image", "compressed"), "belt": Camera("belt/rgb", "compressed"),
    }  # fmt: skip
    assert needs(PolicyInfo("zero"), **given).more == {}  # nobody looks through them
    with pytest.raises(ValueError, match=r"cameras.left.topic is empty, and this"):
        needs(looks, **given | {"cameras.left.topic": ""})
    with pytest.raises(ValueError, match="camera_roles has 5 cameras, at most 4"):
        camera_rows({"camera_roles": list("abcde")})


@pytest.mark.parametrize(
    ("info", "given", "says"),
    [
        (OFT, {"cameras.wrist.topic": ""},
         "cameras.wrist.topic is empty, and this checkpoint looks through two cameras, main and"
         " wrist: name the camera's topic"),
        (OFT, {"joint_names": list("abcdefg")},
         "this checkpoint needs 8 values of robot state, state_layout joints with 7 joint_names"
         " gives 7"),
        (OFT, {"state_layout": "libero_oft"},
         "state_layout libero_oft needs 1 or 2 joint_names, the gripper's fingers, not 0"),
        (PolicyInfo("vla", state_dim=7), FINGERS,
         "this checkpoint needs 7 values of robot state, state_layout libero_oft with 2"
         " joint_names gives 8"),
        (OFT, {"joint_names": ["a", "b", "a"]}, "joint_names has 'a' more than once"),
    ],
)  # fmt: skip
def test_what_cannot_be_met_is_refused_in_one_line(info, given, says) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        needs(info, **given)


@pytest.mark.skipif(tf2_is_there(), reason="tf2_ros is installed here")
def test_a_frame_without_tf2_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="needs tf2_ros, which cannot be imported here"):
        needs(OFT, **FINGERS, end_effector_frame="tool0")


def test_a_transform_is_the_pose_of_its_child() -> None:
    transform = TransformStamped()
    transform.header.frame_id, transform.header.stamp.sec = "base", 5
    transform.transform.translation.z = 0.4
    transform.transform.rotation.x, transform.transform.rotation.w = 1.0, 0.0
    pose = as_pose(transform)
    assert pose.header == transform.header
    assert pose_of(pose).position == (0.0, 0.0, 0.4)
    assert pose_of(pose).quaternion == (1.0, 0.0, 0.0, 0.0)


def test_a_pose_that_is_none_is_a_bad_message() -> None:
    for field, value in (("x", float("nan")), ("w", 0.5)):
        message = PoseStamped()
        message.pose.orientation.w = 1.0
        setattr(message.pose.orientation, field, value)
        with pytest.raises(BadMessage, match="not of length 1"):
            pose_of(message)


@pytest.mark.parametrize(
    ("names", "positions", "says"),
    [
        (["a", "b"], [1.0], "2 names for 1 positions"),
        ([], [1.0, 2.0], "0 names for 2 positions"),
        (["a\n"], [float("nan")], r"position of joint 'a\\n' is not finite"),
    ],
)
def test_joint_states_that_cannot_be_sorted_by_name_are_bad(names, positions, says) -> None:
    with pytest.raises(BadMessage) as caught:
        joints_of(JointState(name=names, position=positions), frozenset({"a", "a\n"}))
    assert says.replace(r"\\n", r"\n") in str(caught.value)


def test_what_is_left_out_may_be_anything() -> None:
    message = JointState(name=["a", "wheel"], position=[1.0, float("nan")])
    names, positions = joints_of(message, frozenset({"a"}))
    assert names == ("a", "wheel")
    assert positions[0] == 1.0
