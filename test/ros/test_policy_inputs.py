"""What goes in, from a robot, cameras and drivers of other makes: see tools/second_robot/arm.py."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from geometry_msgs.msg import PoseStamped
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image, JointState

from support.engine import tiny_config
from support.nodes import Program
from support.policy_client import PolicyRig, moves
from support.releases import oft_statistics
from support.ros import RosPeer
from support.timing import judge
from support.wait import repeating, wait_until
from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import PolicyState as State
from vla_ros.engine.families.openvla import write_random
from vla_ros.ros.common.convert import stamp_of, to_time

if TYPE_CHECKING:
    from sensor_msgs.msg import Image as ImageMessage

ARM = Path(__file__).resolve().parents[2] / "tools" / "second_robot" / "arm.py"
JOINTS = ["shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3", "finger_joint"]
REMAPPED = {"image": "front/image_raw"}
LOOKS = {
    "policy": "zero",
    "cameras.wrist.topic": "wrist/image_raw",
    "cameras.wrist.transport": "compressed",
    "use_wrist_image": True,
    "use_joint_states": True,
    "joint_names": JOINTS,
}
DEEP = QoSProfile(depth=100, reliability=ReliabilityPolicy.BEST_EFFORT)


@dataclass
class Seen:
    """Stamps of the images of both cameras, as anybody else received them."""

    front: list[int] = field(default_factory=list)
    wrist: list[int] = field(default_factory=list)


@dataclass
class Meeting:
    """The other robot and the policy node in one graph."""

    rig: PolicyRig
    arm: Program
    seen: Seen

    def answered(self, seconds: float) -> tuple[int, int, int]:
        """Over so long: main images offered, those with a wrist image within T/2, answers."""
        time.sleep(seconds)
        begin = self.seen.front[0] + SECOND
        end = begin + round((seconds - 2.0) * SECOND)
        offered = [s for s in self.seen.front if begin <= s < end]
        paired = [s for s in offered if any(abs(s - w) <= 25 * MS for w in self.seen.wrist)]
        stamps = {stamp_of(chunk.observation_stamp) for chunk in self.rig.chunks.messages}
        wrist = {
            s: min([s, *(w for w in self.seen.wrist if abs(s - w) <= 25 * MS)]) for s in paired
        }
        return len(offered), len(paired), sum(wrist[s] in stamps or s in stamps for s in paired)


@pytest.fixture
def meet(
    spawn_node: Callable[..., Program], ros: RosPeer, ros_env: dict[str, str]
) -> Iterator[Callable[..., Meeting]]:
    """`meet(arm_options, **parameters)`: both started, the policy active with a task."""
    started: list[Program] = []

    def start(options: dict[str, Any], **parameters: object) -> Meeting:
        node = spawn_node("policy", LOOKS | parameters, remappings=REMAPPED)
        rig = PolicyRig(ros, node, ros_env, started)
        rig.bring_up("reach")
        seen = Seen()

        def note(where: list[int]) -> Callable[[ImageMessage], None]:
            return lambda message: where.append(stamp_of(message.header.stamp))

        ros.node.create_subscription(Image, "front/image_raw", note(seen.front), DEEP)
        ros.node.create_subscription(
            CompressedImage, "wrist/image_raw/compressed", note(seen.wrist), DEEP
        )
        started.append(Program("arm", [sys.executable, str(ARM), json.dumps(options)], ros_env))
        wait_until(lambda: len(seen.front) > 5, 20.0, "the other robot's camera")
        return Meeting(rig, started[-1], seen)

    yield start
    for program in started:
        program.kill()
        print(f"----- {program.name}\n{program.log}")


@pytest.mark.long
@pytest.mark.timing
@pytest.mark.parametrize("drop", [0.0, 0.2])
def test_every_image_of_another_robot_that_can_be_answered_is(meet, drop, capsys):
    meeting = meet({"drop": drop})
    meeting.rig.expect(State.RUNNING)
    offered, paired, answered = meeting.answered(12.0)
    status = meeting.rig.status.last
    with capsys.disabled():
        print(
            f"\ndrop {drop:.0%}: answered {answered} of {offered} offered, {paired} with a pair;"
            f" dropped in all {status.frames_dropped}, last: {status.last_drop}"
        )
    assert offered >= 100 * (1 - drop)
    # The cameras are on this machine too, and the node keeps the newest of each: what comes while
    # it has no processor is lost.
    alone, silent = 1 - paired / offered, 1 - answered / max(1, paired)
    judge("share without a pair", alone, quiet=0.35 if drop else 0.15, loaded=0.95, unit="")
    judge("share of pairs without an answer", silent, quiet=0.05, loaded=0.4, unit="")
    meeting.rig.check_commands()


def test_a_joint_that_nobody_publishes_is_named_in_status_and_log(meet):
    meeting = meet({}, joint_names=[*JOINTS[:6], "thumb"])
    told = (
        "joint_states has no 'thumb':"
        " wanted 'shoulder_pan', 'shoulder_lift', 'elbow', 'wrist_1', 'wrist_2', 'wrist_3',"
        " 'thumb'; offered 'elbow', 'shoulder_lift', 'shoulder_pan', 'wrist_1', 'wrist_2',"
        " 'wrist_3', 'finger_joint'"
    )
    # On a busy machine some are dropped for another reason: their images are too far apart.
    status = meeting.rig.expect(lambda s: s.frames_dropped > 20 and s.last_drop == told)
    assert status.state == State.WAITING
    meeting.rig.node.wait_for_log(told)
    assert meeting.rig.node.log.count(told) == 1


def test_joints_that_are_left_out_are_told_once(meet):
    meeting = meet({}, joint_names=JOINTS[:6])
    meeting.rig.expect(State.RUNNING)
    meeting.rig.node.wait_for_log("joint_states offers more than is wanted")
    time.sleep(2.0)
    assert meeting.rig.node.log.count("joint_states offers more than is wanted") == 1
    assert "offered 'elbow'" in meeting.rig.node.log


def test_a_camera_that_is_lost_is_named_with_the_gap(meet):
    meeting = meet({}, **{"cameras.wrist.topic": "nowhere"})
    meeting.rig.expect(
        lambda s: s.last_drop.endswith("wrist_image has said nothing yet"), timeout=10.0
    )


def test_best_effort_drivers_of_states_and_poses_match(start_policy, ros, tmp_path):
    rig = start_policy(
        policy="replay",
        replay_file=moves(tmp_path),
        use_joint_states=True,
        action_space="end_effector_pose",
        stale_action="hold",
    )
    states = ros.node.create_publisher(JointState, "joint_states", DEEP)
    poses = ros.node.create_publisher(PoseStamped, "measured_pose", DEEP)
    rig.bring_up()
    for publisher in (states, poses):
        wait_until(lambda p=publisher: p.get_subscription_count() == 1, 10.0, publisher.topic_name)


# OpenVLA-OFT's state


@contextlib.contextmanager
def posing(ros: RosPeer, rate: float = 100.0) -> Iterator[None]:
    """Publish the end effector's pose, best effort, on the other robot's clock."""
    publisher = ros.node.create_publisher(PoseStamped, "end_effector_pose", DEEP)

    def pose() -> None:
        message = PoseStamped()
        message.header.stamp = to_time(time.time_ns() - 4 * MS)
        message.pose.position.x, message.pose.orientation.w = 0.3, 1.0
        publisher.publish(message)

    with repeating(pose, 1.0 / rate):
        yield


def test_an_oft_checkpoint_with_robot_state_runs_through_the_node(meet, ros, tmp_path):
    config = replace(tiny_config(towers="fused"), parallel=True, chunk=8, proprio_dim=8, images=2)
    write_random(tmp_path / "oft", config, seed=3, stats=oft_statistics(7, 8))
    given = {
        "policy": "vla",
        "checkpoint": str(tmp_path / "oft"),
        "decoding": "parallel",
        "warmup_count": 2,
        "state_layout": "libero_oft",
        "joint_names": ["finger_joint"],
        "use_wrist_image": False,  # the checkpoint says that it looks through two
        "use_joint_states": False,
        "max_age_s": 1.0,
        "camera_rate_hz": 10.0,
        "pairing_slop_s": 0.05,  # the wrist camera is a third of a period behind
    }
    meeting = meet({"camera_hz": 10.0}, **given)
    ending = "end_effector_pose has said nothing yet"
    lacks = meeting.rig.expect(lambda s: s.last_drop.endswith(ending))
    assert lacks.state == State.WAITING
    with posing(ros):
        running = meeting.rig.expect(State.RUNNING)
        chunk = meeting.rig.chunks.wait(lambda m: m.length == 8, timeout=10.0)
    assert running.decoding == "parallel"
    assert len(chunk.actions) == 8 * 7
    assert running.worker_restarts == 0


# Where images are


def subscribed(ros: RosPeer, topic: str) -> None:
    wait_until(lambda: ros.node.count_subscribers(topic) > 0, 30.0, f"a subscriber of {topic}")


@pytest.mark.parametrize(
    ("remapped", "wanted"),
    [
        ({}, "/image/compressed"),
        ({"image": "/cam/color"}, "/cam/color/compressed"),
        ({"image/compressed": "/cam/jpeg"}, "/cam/jpeg"),
        ({"image": "/cam/color", "image/compressed": "/cam/jpeg"}, "/cam/jpeg"),
    ],
)
def test_image_and_compressed_image_are_remapped_together(spawn_node, ros, remapped, wanted):
    spawn_node("policy", {"image_transport": "compressed"}, remappings=remapped)
    ros.bring_up("/policy")
    subscribed(ros, wanted)
    if wanted != "/image/compressed":
        assert ros.node.count_subscribers("/image/compressed") == 0


def test_a_camera_that_is_needed_and_not_given_is_refused_in_one_line(start_policy):
    rig = start_policy(policy="zero", use_wrist_image=True, **{"cameras.wrist.topic": ""})
    assert not rig.ros.change_state("/policy", "configure")
    status = rig.expect(lambda s: "refused" in s.reason)
    assert status.reason == (
        "refused: cameras.wrist.topic is empty, and use_wrist_image is on: name the camera's topic"
    )
