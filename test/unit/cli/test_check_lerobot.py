"""`vla-ros check --policy lerobot`: a folder that LeRobot itself answers for, in its own Python."""

import argparse
import json

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: no vla policy here")
pytest.importorskip("rosbags", reason="rosbags is not installed")
pytest.importorskip("rclpy", reason="--robot reads the policy node's parameters")

from support.bags import START, STORE, Entry, T, header, image, task, write_bag
from support.lerobot import interpreter, make_checkpoints
from vla_ros.cli.check import _robot, _spec
from vla_ros.cli.main import main
from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Instruction, Timeline
from vla_ros.data.check.asking import Asker
from vla_ros.data.check.recording import record
from vla_ros.data.lerobot.dataset import ACTION, STATE, DatasetRow
from vla_ros.runtime.worker.asked import WorkerPolicy

ARM = ["shoulder_pan", "shoulder_lift", "elbow", "wrist_flex", "wrist_roll", "gripper"]
ROBOT = """\
policy:
  ros__parameters:
    camera_roles: [side]
    joint_names: {arm}
    action_names: {arm}
    gripper_names: [gripper]
    action_space: joint_position
    state_units: [deg, deg, deg, deg, deg, 0..100]
    action_units: [deg, deg, deg, deg, deg, 0..100]
    bounds_low: [-3.0, -3.0, -3.0, -3.0, -3.0]
    bounds_high: [3.0, 3.0, 3.0, 3.0, 3.0]
    action_rate_hz: 20.0
    num_threads: 1
"""


def joints(topic, stamp_ns, values):
    kind, none = "sensor_msgs/msg/JointState", np.zeros(0)
    content = STORE.types[kind](
        header=header(stamp_ns), name=ARM, position=values, velocity=none, effort=none
    )
    return Entry(topic, stamp_ns, kind, content)


def bag(path):
    """Forty rows of an arm that swings, seen by three cameras."""
    rng, entries = np.random.default_rng(0), [task(START - T // 2, "push the blue block")]
    for number in range(40):
        at, phase = START + number * T, 0.2 * number + np.arange(6)
        here = np.append(0.5 * np.sin(phase[:5]), 0.5)
        for topic in ("/image", "/wrist_image", "/side"):
            one = image(at, rng.integers(0, 256, (48, 64, 3), np.uint8))
            entries.append(Entry(topic, at, one.kind, one.content))
        entries += [joints("/joint_states", at, here), joints("/teleop", at + 1, here + 0.02)]
    return write_bag(path, entries)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lerobot_answers_as_our_own_engine_does(tmp_path, capsys):
    interpreter()
    folder = make_checkpoints(tmp_path, "act") / "act"
    robot = tmp_path / "robot.yaml"
    robot.write_text(ROBOT.format(arm=json.dumps(ARM)))
    words = [str(folder), str(bag(tmp_path / "bag")), "--robot", str(robot), "--fps", "20",
             "-r", "policy/action=/teleop", "--camera", "side=/side", "--frames", "4",
             "--budget", "5", "--json"]  # fmt: skip
    found = {}
    for policy in ("lerobot", "vla"):
        status = main(["check", *words, "--policy", policy])
        out = capsys.readouterr()
        assert out.out and status in (1, 2), out.err  # random weights do nothing that the data do
        found[policy] = json.loads(out.out.strip().splitlines()[-1])
    assert found["lerobot"]["calls"] > 8
    assert found["lerobot"]["error"] == pytest.approx(found["vla"]["error"], abs=2e-3)
    assert found["lerobot"]["rmse"] == pytest.approx(found["vla"]["rmse"], abs=2e-3)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_policy_of_two_observations_is_given_the_one_before(tmp_path):
    folder = make_checkpoints(tmp_path, "diffusion") / "diffusion"
    robot = tmp_path / "robot.yaml"
    robot.write_text(ROBOT.format(arm=json.dumps(ARM)).replace("    camera_roles: [side]\n", ""))
    args = argparse.Namespace(robot=robot, contract=None, checkpoint=str(folder), policy="lerobot",
                              device="cpu", dtype="float32", unnorm_key="",
                              num_threads=1)  # fmt: skip
    rng = np.random.default_rng(0)

    def rows():
        for _ in range(16):
            seen = {name: rng.integers(0, 256, (48, 64, 3), np.uint8) for name in ("main", "wrist")}
            yield DatasetRow(0, "push", seen, {ACTION: rng.normal(0, 0.3, 6),
                                               STATE: rng.normal(0, 0.3, 6)})  # fmt: skip

    roles = {"main": "main", "wrist": "wrist"}
    recording = record("rows", 20.0, rows(), 16, 4, ARM, ARM, roles, 4)
    policy, clock = WorkerPolicy(_spec(args, _robot(args)), SystemClock()), SystemClock()
    try:
        assert policy.info.observations == 2
        asker, row = Asker(policy, recording), recording.chosen[1]
        asked = asker.ask((), [row])[0]

        def answer(*backs):
            policy.reset(Instruction("push", 100 + len(backs)))
            for back in backs:
                seen = asker.observation((), row, back)
                timeline = Timeline(seen.received_steady_ns)
                found = policy.step(seen, timeline.mark("queue", timeline.end_ns), clock)
            return found.actions

        assert np.array_equal(asked, answer(1, 0))
        assert not np.array_equal(asked, answer(0))
    finally:
        policy.close()


def test_without_lerobot_it_is_a_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("VLA_ROS_LEROBOT_PYTHON", str(tmp_path / "none"))
    assert main(["check", str(tmp_path), "bag", "--policy", "lerobot"]) == 2
    assert "run `vla-ros lerobot setup`" in capsys.readouterr().err
