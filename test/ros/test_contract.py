"""A robot that Rosetta's contract describes, with topics, names and units of its own: the graph
runs by the contract alone."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: source a ROS 2 or use its wheels")
pytest.importorskip("torch", reason="torch is not installed: no flow policy here")

import numpy as np
import yaml
from PIL import Image as Pillow
from sensor_msgs.msg import CompressedImage, JointState
from std_msgs.msg import String

from support.contracts import JOINTS, so_101
from support.nodes import Program
from support.ros import RosPeer
from support.wait import wait_until
from vla_ros.engine.families.lerobot import PRESETS
from vla_ros.engine.families.registry import write_folder
from vla_ros.msg import PolicyStatus
from vla_ros.ros.bringup.contract import read_contract
from vla_ros.ros.common import qos

pytestmark = pytest.mark.ros
CAMERAS = ("/front_camera", "/top_camera", "/wrist_camera")
REST = {name: 0.1 * index for index, name in enumerate(JOINTS)}  # rad


class ForeignRobot:
    """Three compressed cameras and joint states, whose names come backwards and with another."""

    def __init__(self, ros: RosPeer) -> None:
        self._node, self._done = ros.node, threading.Event()
        self._images = [
            ros.publisher(CompressedImage, f"{name}/image_raw/compressed", qos.STATE)
            for name in CAMERAS
        ]
        self._joints = ros.publisher(JointState, "/follower_arm/joint_states", qos.STATE)
        packed = io.BytesIO()
        noise = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
        Pillow.fromarray(noise).save(packed, "JPEG")
        self._photo = packed.getvalue()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> ForeignRobot:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._done.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        names = [*reversed(JOINTS), "other"]
        while not self._done.wait(1 / 30):
            now = self._node.get_clock().now().to_msg()
            state = JointState(name=names, position=[REST.get(name, 9.0) for name in names])
            state.header.stamp = now
            self._joints.publish(state)
            for publisher in self._images:
                image = CompressedImage(format="jpeg", data=self._photo)
                image.header.stamp = now
                publisher.publish(image)


def test_a_foreign_contract_is_a_running_graph(
    spawn_node: Callable[..., Program], ros: RosPeer, tmp_path: Path
) -> None:
    path = tmp_path / "so_101.yaml"
    path.write_text(yaml.safe_dump(so_101()), encoding="utf-8")
    contract = read_contract(path)
    config = replace(
        PRESETS["smolvla-small"],
        cameras=("right", "top", "wrist.right"),
        action_dim=6,
        state_dim=6,
    )
    write_folder(tmp_path / "policy", config, seed=5)
    own = {
        "policy": "vla",
        "checkpoint": str(tmp_path / "policy"),
        "max_age_s": 2.0,
        "velocity_limits": [1.0] * 6,
        "warmup_count": 1,
        "detect_frozen": False,  # these cameras show one photo
    }
    node = spawn_node(
        "policy", {**contract.parameters, **own}, remappings=dict(contract.remappings)
    )
    commands = ros.inbox(JointState, "/leader_arm/joint_states", qos.ACTION)
    status = ros.inbox(PolicyStatus, "policy/status", qos.LATCHED)
    task = ros.publisher(String, "/task_prompt", qos.LATCHED)
    with ForeignRobot(ros):
        ros.bring_up("/policy")
        task.publish(String(data="put the cube in the box"))
        wait_until(
            lambda: len(commands) > 10,
            60.0,
            lambda: f"commands of joints, not {status.last.reason if len(status) else 'nothing'}",
        )
        assert ros.change_state("/policy", "deactivate")
    for camera in ("image", "wrist_image", "top_image"):
        assert f"{camera}: images are brought to 512x512 (height x width)" in node.log
    said = list(commands.messages)
    assert {tuple(message.name) for message in said} == {JOINTS}
    first = np.array(said[0].position)
    assert np.abs(first - [REST[name] for name in JOINTS]).max() < 0.1, "from where it stands"
    moved = np.abs(np.diff([message.position for message in said], axis=0))
    assert 0 < moved.max() <= 1.0 / 30 + 1e-6, "at the contract's rate, under the robot's limits"
