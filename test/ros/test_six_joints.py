"""A UR5e with a Robotiq gripper behind a folder of seven joint values, of SmolVLA, π0 or ACT:
degrees or radians, in the data's order, the gripper in any range; each value arrives where it
belongs."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
torch = pytest.importorskip("torch", reason="torch is not installed: no vla policy here")

from safetensors.torch import load_file, save_file
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray

from support.foreign_server import ForeignServer
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.engine.families import act, lerobot
from vla_ros.engine.families.registry import write_folder
from vla_ros.engine.models.act import View
from vla_ros.ros.common import qos

PRESETS = {**lerobot.PRESETS, **act.PRESETS}
ARM = [f"{n}_joint" for n in ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2",
                              "wrist_3")]  # fmt: skip
JOINTS = [*ARM, "finger_joint"]
HOME = np.array([0.0, -1.57, 1.57, -1.57, -1.57, 0.0])
GOAL = np.array([0.1, -1.4, 1.7, -1.7, -1.5, 0.2])  # rad
NODE = {
    "joint_names": JOINTS,
    "action_space": "joint_position",
    "gripper_names": ["finger_joint"],
    "outputs": ["positions"],
    "bounds_low": [-3.1] * 6,
    "bounds_high": [3.1] * 6,
    "velocity_limits": [1.0] * 6,
    "acceleration_limits": [10.0] * 6,
    "stale_action": "hold",
    "max_age_s": 5.0,
    "action_rate_hz": 20.0,
    "control_rate_hz": 20.0,
    "num_threads": 1,
    "warmup_count": 1,
}


def folder_that_says(
    path: Path, action: np.ndarray, ends: tuple[float, float], names=(), kind="smolvla"
) -> Path:
    """A folder whose every action is ``action``, in its data's units and order."""
    views = {"views": (View("observation.images.front", 48, 64),)} if kind == "act" else {}
    config = replace(PRESETS[f"{kind}-small"], action_dim=7, state_dim=7, cameras=("front",),
                     **views)  # fmt: skip
    write_folder(path, config, seed=4)
    low, high = np.abs(action) * -1.5 - 1.0, np.abs(action) * 1.5 + 1.0
    index = list(names).index("finger_joint.pos") if names else 6
    low[index], high[index] = ends
    for file in path.glob("policy_p*processor*.safetensors"):
        stored = load_file(file)
        told = {"mean": action, "std": np.full(7, 1e-9), "min": low, "max": high}
        stored |= {f"action.{n}": torch.tensor(v, dtype=torch.float32) for n, v in told.items()}
        save_file(stored, file)
    if names:
        (path / "meta").mkdir()
        feature = {"action": {"shape": [7], "names": {"motors": list(names)}}}
        (path / "meta" / "info.json").write_text(json.dumps({"fps": 20, "features": feature}))
    return path


class Arm:
    """An arm that is at once where it is told to be, and its camera."""

    def __init__(self, rig, names, home, finger):
        self.rig, self.names, self.at, self.finger = rig, names, np.array(home, float), finger
        self.told: list[list[float]] = []
        self.grippers: list[float] = []
        ros = rig.ros
        ros.node.create_subscription(Float64MultiArray, "policy/positions", self._go, 50)
        ros.node.create_subscription(
            Float64MultiArray, "policy/gripper_positions",
            lambda m: self.grippers.append(m.data[0]), 50,
        )  # fmt: skip
        self._image = ros.publisher(Image, "image", qos.IMAGE_PUB)
        self._wrist = ros.publisher(Image, "wrist_image", qos.IMAGE_PUB)
        self._joints = ros.publisher(JointState, "joint_states", qos.STATE)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _go(self, message):
        self.at = np.array(message.data)
        self.told.append(list(message.data))

    def _run(self):
        while not self._done.wait(0.05):
            stamp = self.rig.ros.node.get_clock().now().to_msg()
            pixels = np.random.default_rng().integers(0, 256, 48 * 64 * 3, np.uint8)
            for camera in (self._image, self._wrist):
                shown = Image(height=48, width=64, encoding="rgb8", step=64 * 3)
                shown.data, shown.header.stamp = pixels.tobytes(), stamp
                camera.publish(shown)
            read = JointState(name=self.names, position=[*self.at, self.finger])
            read.header.stamp = stamp
            self._joints.publish(read)

    def end(self):
        self._done.set()
        self._thread.join()


CASES = {
    "radians, 0 to 1": (GOAL, 0.25, (0.0, 1.0), {}, 0.25),
    "degrees, 0 to 100": (np.degrees(GOAL), 25.0, (0.0, 100.0),
                          {"action_units": ["deg"], "gripper": "0..100"}, 0.25),
    "radians, a Robotiq's 0 open to 0.8 closed": (GOAL, 0.2, (0.0, 0.8), {"gripper": "0.8..0"},
                                                  0.75),
}  # fmt: skip


_KINDS = ("smolvla", "pi0", "act")


@pytest.mark.parametrize(
    ("kind", "case"),
    [*zip(_KINDS, CASES, strict=True), *zip(_KINDS[1:], list(CASES)[2:0:-1], strict=True)],
)
def test_each_value_arrives_where_it_belongs(start_policy, tmp_path, kind, case):
    arm, gripper, ends, given, opening = CASES[case]
    folder = folder_that_says(tmp_path / "it", np.array([*arm, gripper]), ends, kind=kind)
    check(start_policy(**NODE, **given, policy="vla", checkpoint=str(folder)), opening)


def test_names_of_the_data_set_put_values_into_the_robot_s_order(start_policy, tmp_path):
    """The gripper first, then the arm from the wrist down: as meta/info.json has it."""
    names = [f"{name}.pos" for name in reversed(JOINTS)]
    said = np.array([0.25, *GOAL[::-1]])
    folder = folder_that_says(tmp_path / "it", said, (0.0, 1.0), names)
    rig = start_policy(**NODE, policy="vla", checkpoint=str(folder))
    check(rig, 0.25)
    rig.node.wait_for_log("meta/info.json and parameter action_space")


def check(rig, opening: float) -> None:
    """The arm comes to GOAL and the gripper opens so far."""
    rig.bring_up("pick up the mug")
    arm = Arm(rig, JOINTS, HOME, 0.5)
    try:
        rig.expect(State.RUNNING, 30.0)
        rig.commands.wait(lambda m: m.kind == CommandKind.POLICY, 30.0)
        command = rig.commands.wait(
            lambda m: m.kind == CommandKind.POLICY and np.allclose(m.action[:6], GOAL, atol=1e-4),
            30.0,
        )
    finally:
        arm.end()
    assert list(command.names) == JOINTS
    assert command.action[6] == pytest.approx(opening, abs=1e-5)
    assert np.abs(np.array(arm.told[-1]) - GOAL).max() < 1e-3
    assert arm.grippers[-1] == pytest.approx(opening, abs=1e-5)


# DROID: a server that says joint velocities, and 1 for closed.

PANDA = [f"panda_joint{i}" for i in range(1, 8)]
DROID = {
    "policy": "remote",
    "policy_options": ["names=droid"],
    "joint_names": [*PANDA, "finger"],
    "action_space": "joint_delta",
    "gripper_names": ["finger"],
    "outputs": ["positions"],
    "joint_delta_from": "measured",
    "bounds_low": [-0.2] * 7,
    "bounds_high": [0.2] * 7,
    "velocity_limits": [3.0] * 7,
    "acceleration_limits": [30.0] * 7,
    "control_rate_hz": 15.0,
    "camera_rate_hz": 15.0,
    "max_age_s": 5.0,
}
FRANKA = [0.0, -0.785, 0.0, -2.356, 0.0, 1.571, 0.785]


def test_droid_s_server_that_says_stand_still_and_close_is_obeyed(start_policy):
    """And one that says half a unit of joint 1 turns it by 0.1 rad a fifteenth of a second."""
    said = np.zeros((10, 8))
    said[:, 7] = 1.0
    with ForeignServer(lambda message: {"actions": said}) as server:
        rig = start_policy(**DROID, checkpoint=server.url)
        rig.bring_up("pick up the marker")
        arm = Arm(rig, [*PANDA, "finger"], FRANKA, 1.0)
        try:
            rig.expect(State.RUNNING, 30.0)
            rig.commands.wait(lambda m: m.kind == CommandKind.POLICY and m.action[7] == 0.0, 30.0)
            count = len(arm.told)
            rig.commands.wait(lambda m: len(arm.told) > count + 20, 30.0)
            assert np.abs(np.array(arm.told) - FRANKA).max() < 1e-9, "it stands still"
            assert arm.grippers[-1] == 0.0, "closed"
            seen = server.seen[-1]["observation/gripper_position"]
            assert seen == pytest.approx([0.0]), "open is 0 to DROID"
            said[:, 0] = 0.5
            moved = rig.commands.wait(
                lambda m: m.kind == CommandKind.POLICY and m.action[0] > 0.05, 30.0
            )
            assert moved.action[0] == pytest.approx(0.1, abs=1e-6)
            assert list(moved.units) == ["rad"] * 7 + ["1"]
        finally:
            arm.end()


def test_droid_s_velocities_are_not_run_as_positions(start_policy):
    with ForeignServer(lambda message: {"actions": np.zeros((10, 8))}) as server:
        given = {"action_space": "joint_position", "stale_action": "hold", "joint_delta_from": ""}
        bounds = {"bounds_low": [-2.9] * 7, "bounds_high": [2.9] * 7}
        rig = start_policy(**DROID | given | bounds, checkpoint=server.url)
        assert not rig.ros.change_state("/policy", "configure")
        said = "action_space is joint_position, the policy's actions are joint_delta"
        status = rig.expect(lambda s: said in s.reason)
        assert status.state == State.UNCONFIGURED
