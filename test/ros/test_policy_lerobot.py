"""A LeRobot checkpoint behind the policy node: three cameras and joints in, joint positions out."""

from __future__ import annotations

import threading

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from sensor_msgs.msg import Image, JointState

from support.lerobot import interpreter, make_checkpoints
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.common import qos

ARM = ["shoulder_pan", "shoulder_lift", "elbow", "wrist_flex", "wrist_roll", "gripper"]
NODE = {
    "policy": "lerobot",
    "camera_roles": ["side"],
    "cameras.side.topic": "side/picture",
    "joint_names": ARM,
    "state_units": ["deg", "deg", "deg", "deg", "deg", "0..100"],
    "action_units": ["deg", "deg", "deg", "deg", "deg", "0..100"],
    "action_space": "joint_position",
    "gripper_names": ["gripper"],
    "bounds_low": [-0.5] * 5,
    "bounds_high": [0.5] * 5,
    "stale_action": "hold",
    "max_age_s": 5.0,
    "num_threads": 1,
    "warmup_count": 1,
}


@pytest.mark.slow
def test_a_lerobot_checkpoint_runs_in_the_node(start_policy, tmp_path):
    python = interpreter()
    folder = make_checkpoints(tmp_path, "act") / "act"
    rig = start_policy(**NODE, worker_python=python, checkpoint=str(folder))
    rig.bring_up("push the blue block")
    rig.node.wait_for_log("main is observation.images.top [48, 64]")
    done = threading.Event()
    sensors = [
        (rig.ros.publisher(Image, "image", qos.IMAGE_PUB), image),
        (rig.ros.publisher(Image, "wrist_image", qos.IMAGE_PUB), image),
        (rig.ros.publisher(Image, "side/picture", qos.IMAGE_PUB), image),
        (rig.ros.publisher(JointState, "joint_states", qos.STATE), joints),
    ]

    def move() -> None:
        while not done.wait(0.05):
            stamp = rig.ros.node.get_clock().now().to_msg()
            for publisher, make in sensors:
                message = make()
                message.header.stamp = stamp
                publisher.publish(message)

    robot = threading.Thread(target=move, daemon=True)
    robot.start()
    try:
        status = rig.expect(State.RUNNING, 30.0)
        command = rig.commands.wait(lambda m: m.kind == CommandKind.POLICY, 30.0)
    finally:
        done.set()
        robot.join()
    assert (status.policy, status.decoding, status.chunk_length) == ("lerobot", "act", 5)
    assert list(command.names) == ARM
    assert command.chunk_length == 5
    action = np.array(command.action)
    assert action.shape == (6,)
    assert action[:5].any()
    assert 0.0 <= action[5] <= 1.0


def image() -> Image:
    noise = np.random.default_rng().integers(0, 256, 48 * 64 * 3, np.uint8)
    message = Image(height=48, width=64, encoding="rgb8", step=64 * 3)
    message.data.frombytes(noise.tobytes())
    return message


def joints() -> JointState:
    return JointState(name=ARM, position=[0.0, 0.1, -0.1, 0.0, 0.0, 0.5])
