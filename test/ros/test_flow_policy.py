"""Flow policies in the graph: random weights, so the graph is judged and not the task."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: source a ROS 2 or use its wheels")
pytest.importorskip("torch", reason="torch is not installed: no flow policy here")

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sensor_msgs.msg import JointState

from support.hub_folders import by_data_set
from support.nodes import run_cli
from support.policy_client import PolicyRig
from support.processes import children
from support.timing import QUIET
from support.wait import wait_until
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.families.act import SMALL as ACT
from vla_ros.engine.families.lerobot import PRESETS
from vla_ros.engine.families.registry import write_folder
from vla_ros.engine.families.turbovla import SMALL as TURBOVLA
from vla_ros.engine.io.flow_config import FlowConfig
from vla_ros.engine.load import corrector_for
from vla_ros.engine.models.act import View
from vla_ros.engine.models.corrector import Corrector, save_corrector
from vla_ros.ros.bringup.environment import PROFILES, python_path
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import stamp_of

pytestmark = pytest.mark.ros
ONE_CAMERA = replace(PRESETS["smolvla-small"], cameras=("front",), state_dim=2)
TOO_FAR = 4.0  # rad: with the weights below more than a float32 holds
LOADING = 30.0  # s, for a worker to load and warm up on a busy machine
AGE = 1.0  # s: a chunk of ten at 20 Hz, and a slow machine


def write_fragile(folder: Path, config: FlowConfig = ONE_CAMERA) -> str:
    """A checkpoint that is whole and finite, and whose chunk is NaN where the first joint is
    further than 1 rad."""
    write_folder(folder, config, seed=1)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["model.state_proj.weight"][:, 0] = 3e38
    save_file(tensors, path)
    return str(folder)


class Arm:
    """A camera and two joints at 20 Hz, each frame's two messages of one stamp."""

    def __init__(self, rig: PolicyRig) -> None:
        self.first_joint = 0.0
        self._rig, self._done = rig, threading.Event()
        self._joints = rig.ros.publisher(JointState, "joint_states", qos.STATE)
        rig.ros.wait_for_subscriber(self._joints)
        self._thread = threading.Thread(target=self._move, daemon=True)
        self._thread.start()

    def _move(self) -> None:
        while not self._done.wait(0.05):
            frame = self._rig.frame()
            state = JointState(name=["a", "b"], position=[self.first_joint, 0.1])
            state.header.stamp = frame.header.stamp
            self._joints.publish(state)
            self._rig.show(frame)

    def stop(self) -> None:
        self._done.set()
        self._thread.join()


@pytest.fixture
def arms() -> Iterator[list[Arm]]:
    started: list[Arm] = []
    yield started
    for arm in started:
        arm.stop()


@pytest.mark.long
def test_nan_is_a_fault_and_a_lost_worker_a_hold(start_policy, tmp_path: Path, arms) -> None:
    """One graph: it acts; its worker is killed; its chunks are NaN; it is recovered."""
    rig: PolicyRig = start_policy(
        policy="vla", checkpoint=write_fragile(tmp_path / "it"), max_age_s=AGE, num_threads=1,
        action_scale=[0.05] * 3 + [0.5] * 3, warmup_count=1, detect_frozen=False,
    )  # fmt: skip
    rig.bring_up("reach the red cube")
    arms.append(Arm(rig))
    arm = arms[0]
    rig.expect(State.RUNNING, LOADING)
    rig.wait_for(CommandKind.POLICY)
    chunk = rig.chunks.wait()
    assert (chunk.length, chunk.decoding) == (10, "flow")

    rig.worker(signal.SIGKILL)
    rig.expect(lambda s: s.state == State.HOLD and "killed by SIGKILL" in s.reason)
    rig.runs_again(1, LOADING)
    rig.wait_for(CommandKind.POLICY, len(rig.commands))

    arm.first_joint = TOO_FAR
    fault = rig.expect(State.FAULT)
    assert "3 invalid actions" in fault.reason
    assert "not finite" in fault.reason
    assert {m.kind for m in rig.after(fault)} == {CommandKind.STOP}
    since = stamp_of(fault.header.stamp)  # NaN was never published
    assert not [c for c in rig.chunks.messages if stamp_of(c.header.stamp) > since]
    assert all(np.isfinite(c.actions).all() for c in rig.chunks.messages)

    arm.first_joint = 0.0
    rig.call("recover")
    rig.expect(State.RUNNING)
    rig.wait_for(CommandKind.POLICY, len(rig.commands))
    rig.check_commands(AGE)


def test_a_checkpoint_that_does_not_fit_is_refused_at_configure(start_policy, tmp_path) -> None:
    """Of another width, with what is wanted and what is offered; with a NaN among its weights."""
    wide = tmp_path / "wide"
    write_folder(wide, replace(ONE_CAMERA, action_dim=6), seed=1)
    rig: PolicyRig = start_policy(policy="vla", checkpoint=str(wide), warmup_count=1)
    assert not rig.ros.change_state("/policy", "configure", timeout=LOADING)
    reason = rig.expect(lambda s: "refused" in s.reason).reason
    assert "the policy's actions have 6 numbers, those of the parameters 7" in reason
    assert "joint_0 [rad]" in reason and "gripper [1]" in reason

    damaged = tmp_path / "damaged"
    write_folder(damaged, ONE_CAMERA, seed=1)
    tensors = load_file(damaged / "model.safetensors")
    tensors["model.action_out_proj.weight"][0, 0] = float("nan")
    save_file(tensors, damaged / "model.safetensors")
    for file in damaged.iterdir():  # the same node finds another checkpoint in the place
        (wide / file.name).write_bytes(file.read_bytes())
    assert not rig.ros.change_state("/policy", "configure", timeout=LOADING)
    reason = rig.expect(lambda s: "action_out_proj" in s.reason).reason
    assert "action_out_proj.weight holds NaN or infinity" in reason


@pytest.mark.long
def test_a_folder_as_smolvla_base_lies_on_the_hub(start_policy, tmp_path: Path, arms) -> None:
    """Statistics by data set and none of the state: refused in the line that says what to give,
    and with that it answers."""
    folder = tmp_path / "it"
    write_folder(folder, ONE_CAMERA, seed=1)
    by_data_set(without_state=True)(folder)
    said = {"policy": "vla", "checkpoint": str(folder), "num_threads": 1, "max_age_s": AGE,
            "action_scale": [0.05] * 3 + [0.5] * 3, "detect_frozen": False}  # fmt: skip
    rig: PolicyRig = start_policy(**said)
    for more, line in (
        ({}, "it has: so100, so100-blue, so100-red"),
        ({"unnorm_key": "so100"}, "state_normalization identity says so"),
    ):
        for name, value in more.items():
            assert rig.ros.set_parameter("/policy", name, value)[0]
        assert not rig.ros.change_state("/policy", "configure", timeout=LOADING)
        rig.expect(lambda s, line=line: line in s.reason)
    identity = ["state_normalization=identity"]
    assert rig.ros.set_parameter("/policy", "engine_options", identity)[0]
    rig.bring_up("reach the red cube")
    arms.append(Arm(rig))
    rig.expect(State.RUNNING, LOADING)
    rig.wait_for(CommandKind.POLICY)
    assert rig.chunks.wait().decoding == "flow"


SINGLE_PASS = {
    "turbovla": (replace(TURBOVLA, cameras=TURBOVLA.cameras[:1], state_dim=2), "async"),
    # as LeRobot runs one whose config has a temporal_ensemble_coeff
    "act": (
        replace(
            ACT, cameras=("front",), views=(View("observation.images.front", 6, 8),), state_dim=2
        ),
        "ensemble",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SINGLE_PASS)
def test_a_policy_without_a_solver_drives_the_robot(
    name: str, start_policy, tmp_path: Path, arms
) -> None:
    """Its chunks become commands, in the units of its statistics."""
    small, execution = SINGLE_PASS[name]
    write_folder(tmp_path / "it", small, seed=1)
    rig: PolicyRig = start_policy(
        policy="vla", checkpoint=str(tmp_path / "it"), max_age_s=AGE, num_threads=1,
        action_scale=[0.05] * 3 + [0.5] * 3, detect_frozen=False, execution=execution,
    )  # fmt: skip
    rig.bring_up("reach the red cube")
    arms.append(Arm(rig))
    rig.expect(State.RUNNING, LOADING)
    rig.wait_for(CommandKind.POLICY)
    chunk = rig.chunks.wait()
    assert (chunk.length, chunk.decoding) == (small.horizon, "flow")
    actions = np.asarray(chunk.actions).reshape(small.horizon, 7)
    assert np.isfinite(actions).all()
    assert np.abs(actions[:, :6]).max() > 0
    rig.check_commands(AGE)


@pytest.mark.long
def test_a_flow_policy_runs_in_the_graph_and_replays_identically(tmp_path: Path) -> None:
    """Nothing is said of its state or its wrist: the graph knows what its checkpoint needs."""
    pytest.importorskip("mujoco", reason="mujoco is not installed: the demo needs the simulation")
    names = ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE", *PROFILES)
    env = {key: value for key, value in os.environ.items() if key not in names}
    env["PYTHONPATH"] = python_path(env)
    seen = []
    for number in range(2):
        film = tmp_path / f"{number}.gif"
        words = ("--checkpoint", "random:smolvla-small", "--task", "reach_red_cube",
                 "--mode", "lockstep", "--gif", str(film), "--json")  # fmt: skip
        code, out, err = run_cli("demo", *words, env=env, timeout=150.0)
        assert code == 0, err
        result = json.loads(out.splitlines()[-1])
        assert result["graph_ok"] is True
        assert result["decoding"] == "flow"
        assert result["actions"] >= result["steps"] > 0
        assert result["stale_published"] == result["worker_restarts"] == 0
        assert {"preprocess", "vision", "prefill", "decode"} <= set(result["stages_ms"])
        seen.append(film.read_bytes())
    assert seen[0] == seen[1]


@pytest.mark.timing
def test_a_late_chunk_begins_behind_what_was_executed_and_continues_it(
    start_policy, tmp_path: Path, arms
) -> None:
    late, period = 3, 50_000_000
    write_folder(tmp_path / "it", ONE_CAMERA, seed=1)
    rig: PolicyRig = start_policy(
        policy="vla", checkpoint=str(tmp_path / "it"), execution="rtc", replan_interval=4,
        delay_frames=late, max_age_s=3.0, num_threads=1, action_scale=[0.001] * 6,
        detect_frozen=False,
    )  # fmt: skip
    rig.bring_up("reach the red cube")
    arms.append(Arm(rig))
    wait_until(lambda: len(rig.chunks) >= 8, 40.0, lambda: rig.status.last.reason)
    arms[0].stop()
    acted = [m for m in rig.commands.messages if m.kind == CommandKind.POLICY]
    assert acted[0].chunk_index == 0, "the robot stood still"
    begun = 0
    for before, after in pairwise(acted):
        published, observed = stamp_of(after.header.stamp), stamp_of(after.observation_stamp)
        due = observed + after.chunk_index * period
        assert after.staleness_s == pytest.approx((published - due) / 1e9, abs=1e-6)
        if before.observation_stamp == after.observation_stamp:
            continue
        executed = sum(observed <= stamp_of(m.header.stamp) < published for m in acted)
        # The delay is one of frames: a busy machine leaves out control ticks between them.
        assert after.chunk_index == executed >= (late if QUIET else 1)
        begun += 1
    assert begun >= 3
    first, *others = rig.chunks.messages
    assert stamp_of(first.previous_stamp) == 0
    there = {stamp_of(m.observation_stamp) for m in rig.chunks.messages}
    continued = [m for m in others if stamp_of(m.previous_stamp)]
    assert len(continued) >= 3
    assert {stamp_of(m.previous_stamp) for m in continued} <= there
    assert all(m.previous_index >= 4 - 1 and m.delay_steps >= 1 for m in continued)


@pytest.mark.long
def test_each_action_is_corrected_by_a_newer_frame_in_a_second_worker(
    start_policy, tmp_path: Path, arms
) -> None:
    """The corrector adds the same to every action, so that a corrected command tells itself apart
    from its chunk's action. It is killed: actions go on without, then with it again."""
    folder = tmp_path / "it"
    write_folder(folder, ONE_CAMERA, seed=1)
    corrector = Corrector(corrector_for(load_engine(EngineOptions(str(folder))).policy))
    corrector.out.bias = torch.nn.Parameter(torch.full((7,), 0.5))
    save_corrector(folder, corrector)
    rig: PolicyRig = start_policy(
        policy="vla", checkpoint=str(folder), execution="corrected", replan_interval=8,
        delay_frames=2, max_age_s=3.0, num_threads=1, action_scale=[0.001] * 6,
        detect_frozen=False,
    )  # fmt: skip
    rig.bring_up("reach the red cube")
    arms.append(Arm(rig))

    def corrected() -> list:
        return [m for m in rig.commands.messages if stamp_of(m.correction_stamp)]

    wait_until(lambda: len(corrected()) >= 20, 2 * LOADING, lambda: rig.status.last.reason)
    said = rig.chunks.messages
    chunks = {stamp_of(m.observation_stamp): np.reshape(m.actions, (-1, 7)) for m in said}
    for message in corrected():
        observed, by = stamp_of(message.observation_stamp), stamp_of(message.correction_stamp)
        assert message.kind == CommandKind.POLICY
        assert observed < by <= stamp_of(message.latest_observation_stamp)
        assert stamp_of(message.valid_until) == observed + 3 * 10**9, "the age is its chunk's"
        if observed in chunks:
            added = np.asarray(message.action) - chunks[observed][message.chunk_index]
            assert np.abs(added[:6]).min() > 1e-5
    (second,) = set(children(rig.node.pid)) - {rig.status.last.worker_pid}
    os.kill(second, signal.SIGKILL)
    rig.node.wait_for_log("corrector lost: ", LOADING)
    assert rig.status.last.state == State.RUNNING
    after = len(rig.commands)
    rig.wait_for(CommandKind.POLICY, after)
    rig.node.wait_for_log("corrector is back", LOADING)
    before = len(corrected())
    wait_until(lambda: len(corrected()) > before, LOADING, lambda: rig.status.last.reason)
    assert rig.status.last.state == State.RUNNING
    rig.check_commands(3.0)
