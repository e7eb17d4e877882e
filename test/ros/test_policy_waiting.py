"""A node that waits for frames says in its status what keeps them from completing, and what to do,
for as long as it lasts."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("torch", reason="torch is not installed")

from sensor_msgs.msg import Image, JointState

from support.releases import oft_statistics, tiny_config, write_random
from support.wait import repeating
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.common import qos

PATIENT = 5.0  # max_age_s where nothing is judged by it


def waits(rig, *texts):
    """Twice in a row, that is a second apart: it is no glimpse."""
    for _ in range(2):
        status = rig.expect(lambda s: all(t in s.reason for t in texts), timeout=30.0)
        assert status.state == State.WAITING
    assert "\n" not in status.reason
    return status


@contextlib.contextmanager
def jointed(ros, count):
    publisher = ros.publisher(JointState, "joint_states")

    def say():
        message = JointState(position=[0.1 * i for i in range(count)])
        message.header.stamp = ros.node.get_clock().now().to_msg()
        publisher.publish(message)

    with repeating(say, 0.01):
        yield


def test_a_state_of_another_size_is_said_until_it_is_right(start_policy, ros, tmp_path):
    """A checkpoint that wants 8 values beside a robot that has 9."""
    config = replace(tiny_config(towers="fused"), parallel=True, chunk=8, proprio_dim=8)
    write_random(tmp_path / "oft", config, seed=3, stats=oft_statistics(7, 8))
    rig = start_policy(
        policy="vla",
        checkpoint=str(tmp_path / "oft"),
        decoding="parallel",
        warmup_count=2,
        max_age_s=1.0,
        camera_rate_hz=10.0,
        pairing_slop_s=0.1,
        detect_frozen=False,
    )
    rig.bring_up("reach")
    with rig.filming(10.0):
        with jointed(ros, 9):
            waits(
                rig,
                "waits for a fresh frame and a valid action; joint_states has 9 values, the"
                " checkpoint needs 8",
                "joint_names",
            )
        with jointed(ros, 8):
            rig.expect(State.RUNNING, timeout=30.0)
    assert "joint_states" not in rig.expect(lambda s: s.state != State.WAITING).reason


def test_a_silent_wrist_camera_is_said_until_it_speaks(start_policy, ros):
    rig = start_policy(policy="zero", use_wrist_image=True, pairing_slop_s=0.2)
    rig.bring_up("reach")
    with rig.filming():
        waits(rig, "no wrist_image within", "wrist_image has said nothing yet; start what publish")
        wrist = ros.publisher(Image, "wrist_image", qos.IMAGE_PUB)
        with repeating(lambda: wrist.publish(rig.frame()), 0.05):
            rig.expect(State.RUNNING, timeout=30.0)
        assert rig.status.last.reason == "running"


def test_a_wrist_camera_whose_images_are_refused_is_not_called_silent(start_policy, ros):
    rig = start_policy(policy="zero", use_wrist_image=True, pairing_slop_s=0.2)
    rig.bring_up("reach")
    wrist = ros.publisher(Image, "wrist_image", qos.IMAGE_PUB)
    with rig.filming(), repeating(lambda: wrist.publish(rig.frame(encoding="8UC3")), 0.05):
        waits(rig, "wrist_image is refused: encoding '8UC3'")


def test_no_image_at_all_and_an_image_that_is_refused(start_policy, ros):
    rig = start_policy(policy="zero", **{"cameras.main.topic": "front"})
    rig.bring_up("reach")
    waits(rig, "no image on /front yet, nobody publishes it", "cameras.main.topic")
    front = ros.publisher(Image, "front", qos.IMAGE_PUB)
    with repeating(lambda: front.publish(rig.frame(encoding="8UC3")), 0.05):
        waits(rig, "the image is refused: encoding '8UC3'")
    with repeating(lambda: front.publish(rig.frame()), 0.05):
        rig.expect(State.RUNNING)
    gone = rig.expect(lambda s: s.state == State.HOLD and "no image on /front for" in s.reason)
    assert "exceeds max_age" in gone.reason
