"""The robots of config/robots/, each before a stub of its driver: topics, joint names and messages
as the driver's own sources have them, a small random policy of the kind that the page names."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("torch", reason="torch is not installed: no vla policy here")

from geometry_msgs.msg import TwistStamped
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from support import built_messages
from support.motion_listener import MotionListener
from support.nodes import Program
from support.policy_client import PolicyRig
from support.ros import RosPeer
from support.wait import wait_until
from vla_ros.core.clock import SECOND
from vla_ros.core.resources import config_path
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.engine.families import act, lerobot
from vla_ros.engine.families.registry import write_folder
from vla_ros.ros.common import qos

CONTROLLER = Path(built_messages.__file__).with_name("gripper_controller.py")
#: Not the robot's: a busy machine is slow, and a test does not wait for a person's ~/resume.
TEST = {"policy": "vla", "max_age_s": 5.0, "num_threads": 1, "warmup_count": 1, "hold_latch_s": 0.0}


@dataclass
class Driver:
    """What a driver offers. ``states``: topic, joint names in the driver's own order, where they
    are, and its rate in Hz. ``takes``: topic, kind of message, and of a controller its joints.
    ``gripper``: the action that it takes goals on."""

    cameras: tuple[str, ...]
    states: tuple[tuple[str, tuple[str, ...], tuple[float, ...], float], ...]
    takes: tuple[tuple[str, type, tuple[str, ...]], ...]
    make: Callable[[Path], None]
    gripper: str = ""
    more: dict[str, Any] = field(default_factory=dict)


UR = ("shoulder_pan_joint", "shoulder_lift_joint", "elbow_joint", "wrist_1_joint", "wrist_2_joint",
      "wrist_3_joint")  # fmt: skip
UR_HOME = (0.0, -1.57, 1.57, -1.57, -1.57, 0.0)
KNUCKLE = "robotiq_85_left_knuckle_joint"
SO = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
VX = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate")
# one broadcaster for both arms of koch.xacro
KOCH = tuple(f"{arm}_joint{joint}" for arm in ("leader", "follower")
             for joint in (1, 2, 3, 4, 5, "_gripper"))  # fmt: skip
# xs_sdk: the motors, then the fingers; joint_states of robot_utils.py have them so
XS = (*VX, "gripper", "left_finger", "right_finger")
XS_HOME = (0.0, -0.96, 1.16, 0.0, -0.3, 0.0, 1.0, 0.05, -0.05)


def flow(preset: str, width: int, cameras: tuple[str, ...]) -> Callable[[Path], None]:
    config = replace(
        lerobot.PRESETS[preset], action_dim=width, state_dim=width, action_width=width + 2,
        state_width=width + 2, cameras=cameras,
    )  # fmt: skip
    return lambda folder: write_folder(folder, config, 3)


def small_act(width: int) -> Callable[[Path], None]:
    config = replace(
        act.SMALL, action_dim=width, state_dim=width, cameras=("front",), views=act.SMALL.views[:1]
    )
    return lambda folder: write_folder(folder, config, 3)


DRIVERS = {
    "so101": Driver(
        ("/static_camera/image_raw", "/follower/image_raw"),
        (("/follower/joint_states", SO, (0.0, 0.0, 0.0, 0.0, 0.0, 0.5), 50.0),),
        (("/follower/forward_controller/commands", Float64MultiArray, SO),),
        flow("smolvla-small", 6, ("front", "wrist")),
    ),
    "ur5e": Driver(
        ("/camera/camera/color/image_raw",),
        (
            # joint_state_broadcaster sorts nothing: the order of its interfaces, elbow among them
            ("/joint_states", (UR[2], UR[1], UR[0], *UR[3:]),
             (UR_HOME[2], UR_HOME[1], UR_HOME[0], *UR_HOME[3:]), 100.0),
            ("/joint_states", (KNUCKLE,), (0.1,), 50.0),
        ),
        (("/scaled_joint_trajectory_controller/joint_trajectory", JointTrajectory, UR),),
        small_act(7),
        gripper="/robotiq_gripper_controller/gripper_cmd",
    ),
    "franka": Driver(
        ("/camera/camera/color/image_raw",),
        (),
        (("/servo_node/delta_twist_cmds", TwistStamped, ()),),
        lambda folder: None,
        gripper="/franka_gripper/gripper_action",
        more={"checkpoint": "random:small"},
    ),
    "koch": Driver(
        ("/front/image_raw",),
        (("/joint_states", KOCH, (0.5,) * 6 + (0.0,) * 6, 80.0),),
        (("/joint_trajectory_controller/joint_trajectory", JointTrajectory, KOCH[6:]),),
        small_act(6),
    ),
    "aloha": Driver(
        tuple(f"/cam_{name}/camera/color/image_rect_raw"
              for name in ("high", "left_wrist", "right_wrist")),
        tuple((f"/follower_{side}/joint_states", XS, XS_HOME, 50.0) for side in ("left", "right")),
        tuple((f"/follower_{side}/{what}_controller/joint_trajectory", JointTrajectory, joints)
              for side in ("left", "right")
              for what, joints in (("arm", VX), ("gripper", ("left_finger",)))),
        flow("pi0-small", 14, ("cam_high", "cam_left_wrist", "cam_right_wrist")),
    ),
}  # fmt: skip


class Stub:
    """A driver in this process: publishes what it measures at its rates, stays where it is, keeps
    the commands that it is given by topic."""

    def __init__(self, ros: RosPeer, driver: Driver) -> None:
        self.given: dict[str, list[Any]] = {}
        for topic, kind, _ in driver.takes:
            heard = self.given[topic] = []
            ros.node.create_subscription(kind, topic, heard.append, qos.copy(qos.ACTION, 1000))
        self._ros, self._done = ros, threading.Event()
        cameras = [ros.publisher(Image, topic, qos.IMAGE_PUB) for topic in driver.cameras]
        threads = [threading.Thread(target=self._every, args=(20.0, self._shows(cameras)))]
        for topic, names, at, rate in driver.states:
            joints = ros.publisher(JointState, topic, qos.STATE)
            says = self._says(joints, names, at)
            threads.append(threading.Thread(target=self._every, args=(rate, says)))
        self._threads = threads
        for thread in threads:
            thread.start()

    def _every(self, rate: float, act: Callable[[], None]) -> None:
        while not self._done.wait(1.0 / rate):
            act()

    def _stamp(self) -> Any:
        return self._ros.node.get_clock().now().to_msg()

    def _shows(self, cameras: list[Any]) -> Callable[[], None]:
        numbers = np.random.default_rng(0)

        def show() -> None:
            image = Image(height=96, width=96, encoding="rgb8", step=96 * 3)
            image.data = numbers.integers(0, 256, 96 * 96 * 3, np.uint8).tobytes()
            image.header.stamp = self._stamp()
            for camera in cameras:
                camera.publish(image)

        return show

    def _says(self, joints: Any, names: tuple[str, ...], at: tuple[float, ...]) -> Any:
        def say() -> None:
            message = JointState(name=list(names), position=list(at))
            message.header.stamp = self._stamp()
            joints.publish(message)

        return say

    def end(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def stub(ros: RosPeer) -> Iterator[Callable[[Driver], Stub]]:
    made: list[Stub] = []

    def start(driver: Driver) -> Stub:
        made.append(Stub(ros, driver))
        return made[-1]

    yield start
    for one in made:
        one.end()


@pytest.fixture(scope="module")
def python_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    try:
        folder = built_messages.where("control_msgs", tmp_path_factory.mktemp("control_msgs"))
    except LookupError as missing:
        pytest.skip(str(missing))
    return os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH", ""))))


def stands(given: list[Any]) -> bool:
    """True where the last that a driver was given lets the robot stand."""
    last = given[-1]
    if isinstance(last, TwistStamped):
        parts = (last.twist.linear, last.twist.angular)
        return not any(getattr(part, axis) for part in parts for axis in "xyz")
    if isinstance(last, JointTrajectory):
        return not any(last.points[-1].velocities)
    return list(last.data) == list(given[-2].data)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", DRIVERS)
def test_a_robot_file_drives_its_driver(
    name: str, ros: RosPeer, ros_domain: int, spawn_node: Callable[..., Program],
    ros_env: dict[str, str], stub: Callable[[Driver], Stub], tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    driver, file = DRIVERS[name], config_path(f"robots/{name}.yaml")
    messages = {"PYTHONPATH": request.getfixturevalue("python_path")} if driver.gripper else {}
    content = yaml.safe_load(file.read_text())
    remappings = content["remappings"]["ros__parameters"]
    driver.make(tmp_path / "checkpoint")
    started: list[Program] = []
    node = spawn_node(
        "policy",
        {**TEST, "checkpoint": str(tmp_path / "checkpoint"), **driver.more},
        files=[config_path("policy.yaml"), file],
        remappings=remappings,
        extra_env=messages,
    )
    controller = None
    if driver.gripper:
        words = [sys.executable, str(CONTROLLER), driver.gripper, "GripperCommand", "succeed"]
        controller = Program("controller", words, {**ros_env, **messages})
        started.append(controller)
    joints = remappings.get("joint_states", "joint_states").lstrip("/")
    listener = MotionListener(ros_domain, "/policy", remappings, joints=joints)
    try:
        rig = PolicyRig(ros, node, ros_env, started)
        robot = stub(driver)
        rig.bring_up("pick up the mug")
        rig.expect(State.RUNNING, 60.0)
        rig.wait_for(CommandKind.POLICY, timeout=60.0)
        for topic, _, joints in driver.takes:
            wait_until(lambda topic=topic: len(robot.given[topic]) > 3, 30.0, topic)
            first = robot.given[topic][0]
            if isinstance(first, JointTrajectory):
                assert tuple(first.joint_names) == joints
                assert len(first.points[0].positions) == len(joints)
            elif isinstance(first, Float64MultiArray):
                assert len(first.data) == len(joints)
            else:
                assert first.header.frame_id == content["/**/policy"]["ros__parameters"]["frame_id"]
        if controller is not None:
            controller.wait_for_log("goal ")
            low, high = sorted(content["/**/policy"]["ros__parameters"]["gripper_range"])
            goal = next(line for line in controller.log.splitlines() if line.startswith("goal "))
            assert low <= float(goal.split()[2]) <= high
        begin = len(rig.commands)
        rig.call("stop")
        rig.wait_for(CommandKind.STOP, begin)
        quiet = lambda: time.monotonic_ns() - rig.commands.times[-1] > 1.5 * SECOND  # noqa: E731
        wait_until(quiet, 30.0, "the end of commands, silence_after_s after the stop")
        for topic, _, _ in driver.takes:
            assert stands(robot.given[topic]), f"{topic} moves on: {robot.given[topic][-2:]}"
    finally:
        broken = listener.leave()
        for program in started:
            program.kill()
    assert not broken, "\n".join(["the motion broke promises:", *broken])
    assert any(kind == "POLICY" for _, kind in listener.judge.judged), listener.judge.judged
