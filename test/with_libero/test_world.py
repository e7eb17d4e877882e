"""LIBERO behind our protocol is LIBERO: to the last bit, and the same every time."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vla_ros.core.types import Pose
from vla_ros.sim.env import AGENTVIEW, WRIST, SimError
from vla_ros.sim.libero.assets import find_assets, write_config
from vla_ros.sim.libero.files import cache_folder
from vla_ros.sim.libero.suites import SUITES, find_package, tasks_of

PLAIN_LOOP = Path(__file__).with_name("plain_loop.py")
SIZE = 64


def some_actions(episodes, steps):
    """Arbitrary motion, the gripper closing and opening."""
    rng = np.random.default_rng(7)
    actions = np.clip(rng.normal(0, 0.5, (episodes, steps, 7)), -1, 1)
    actions[..., 6] = np.sign(actions[..., 6])
    return actions


def same(first, second):
    """Whether two observations are the same to the last bit."""
    return (
        set(first.images) == set(second.images)
        and all(np.array_equal(first.images[name], second.images[name]) for name in first.images)
        and np.array_equal(first.joint_positions, second.joint_positions)
        and np.array_equal(first.eef_pos, second.eef_pos)
        and np.array_equal(first.eef_quat, second.eef_quat)
        and first.poses == second.poses
    )


def run(env, task, initial_state, actions, seed=0):
    steps = [env.reset(task, initial_state, seed)]
    return [*steps, *(env.step(action).observation for action in actions)]


@pytest.fixture(scope="module")
def spatial(start):
    return start("libero_spatial", SIZE)


@pytest.mark.long
def test_it_sees_and_does_what_the_plain_benchmark_does(spatial, tmp_path):
    """Task 4 draws furniture and how far a drawer is open; episode 1 depends on episode 0."""
    package = find_package()
    task = tasks_of("libero_spatial", package)[4]
    actions = some_actions(2, 6)
    np.save(tmp_path / "actions.npy", actions)
    assets = find_assets(package)
    write_config(tmp_path / "config.yaml", package, assets)
    environ = {
        **os.environ,
        "LIBERO_CONFIG_PATH": str(tmp_path),
        "NUMBA_CACHE_DIR": str(cache_folder() / "numba"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    words = (task.bddl_file(package), task.states_file(package), assets, SIZE, len(actions))
    words = (*words, tmp_path / "actions.npy", tmp_path / "seen.npz")
    program = [sys.executable, str(PLAIN_LOOP), *map(str, words)]
    subprocess.run(program, env=environ, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    seen = np.load(tmp_path / "seen.npz")
    for episode in (1, 0):  # in the other order than there
        for number, ours in enumerate(run(spatial, "4", episode, actions[episode])):
            theirs = {key: seen[key][episode, number] for key in seen.files}
            # Our image is upright; the published policies' is its mirror image.
            assert np.array_equal(ours.images[AGENTVIEW], theirs["agentview_image"][::-1])
            assert np.array_equal(ours.images[WRIST], theirs["robot0_eye_in_hand_image"][::-1])
            openvla = theirs["agentview_image"][::-1, ::-1]
            assert np.array_equal(ours.images[AGENTVIEW][:, ::-1], openvla)
            assert np.array_equal(ours.eef_pos, theirs["robot0_eef_pos"])
            assert np.array_equal(ours.eef_quat, theirs["robot0_eef_quat"])
            assert np.array_equal(ours.gripper_qpos, theirs["robot0_gripper_qpos"])
            assert np.array_equal(ours.joint_positions[:7], theirs["robot0_joint_pos"])


@pytest.mark.long
def test_two_processes_and_two_resets_give_the_same_bits(spatial, start):
    actions = some_actions(3, 8)
    first = run(spatial, "4", 3, actions[0])
    run(spatial, "4", 7, actions[1])  # what happens in between leaves no trace
    again = run(spatial, "4", 3, actions[0])
    elsewhere = run(start("libero_spatial", SIZE), "4", 3, actions[0])
    assert all(map(same, first, again))
    assert all(map(same, first, elsewhere))
    assert not same(first[0], first[-1])


def test_another_seed_places_furniture_elsewhere(spatial):
    first, other = spatial.reset("4", 0, seed=0), spatial.reset("4", 0, seed=1)
    assert first.poses["wooden_cabinet_1"] != other.poses["wooden_cabinet_1"]
    assert first.poses["plate_1"].position == pytest.approx(
        other.poses["plate_1"].position, abs=0.01
    )


def test_looking_changes_nothing_but_the_images(spatial):
    actions = some_actions(1, 6)[0]
    seen = run(spatial, "4", 0, actions)
    assert spatial.reset("4", 0, render=False).images == {}
    for action in actions[:-1]:
        assert spatial.step(action, render=False).observation.images == {}
    assert same(spatial.step(actions[-1]).observation, seen[-1])


def test_what_an_observation_holds(spatial):
    seen = spatial.reset("4", 0)
    assert {name: image.shape for name, image in seen.images.items()} == {
        AGENTVIEW: (SIZE, SIZE, 3),
        WRIST: (SIZE, SIZE, 3),
    }
    assert seen.images[AGENTVIEW].std() > 20 and seen.images[AGENTVIEW].flags.c_contiguous
    assert len(seen.joint_names) == len(seen.joint_positions) == 9
    assert {"gripper", "akita_black_bowl_1", "plate_1", "wooden_cabinet_1"} <= set(seen.poses)
    gripper = seen.poses["gripper"]
    assert isinstance(gripper, Pose)
    assert gripper.position == pytest.approx(seen.eef_pos, abs=2e-3)
    assert abs(gripper.quaternion[0]) == pytest.approx(1.0, abs=0.01)  # it points down
    assert seen.gripper_qpos[0] > 0.035  # open


def test_every_task_of_every_suite_is_offered(start):
    spec = start("").spec
    assert [task.name for task in spec.tasks if task.name.startswith("libero_goal/")] == [
        f"libero_goal/{index}" for index in range(10)
    ]
    counts = {suite: sum(t.name.startswith(f"{suite}/") for t in spec.tasks) for suite in SUITES}
    assert counts == {s: 90 if s == "libero_90" else 10 for s in SUITES}
    assert all(task.initial_states == 50 and task.instruction for task in spec.tasks)
    task = spec.task("KITCHEN_SCENE3_turn_on_the_stove_and_put_the_moka_pot_on_it")
    assert (task.name, task.max_steps) == ("libero_10/2", 520)
    assert (spec.control_rate_hz, spec.position_scale, spec.rotation_scale) == (20.0, 0.05, 0.5)


def test_a_task_without_models_is_refused_in_one_line(start):
    env = start("libero_90", 16)
    try:
        env.reset("libero_90/40", 0, render=False)
    except SimError as error:
        needed = "white_bowl, wooden_two_layer_shelf: run `vla-ros libero setup"
        assert f"libero_90/40: the assets have no model of {needed}" in str(error)
        assert env.alive
    else:
        assert not env.spec.note  # the true assets have all of them
