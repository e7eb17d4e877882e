"""The scripted expert solves every family of tasks, also when its evidence is old or missing."""

from collections import deque

import numpy as np
import pytest

from vla_ros.core import Command, CommandKind, Pose
from vla_ros.sim.commands import environment_action
from vla_ros.sim.expert import Expert, MissingPose
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.goals import UnknownInstruction
from vla_ros.sim.tasks import GOALS, TASKS

UPRIGHT = (0.0, 0.0, 0.0, 1.0)
DOWN = (1.0, 0.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def table():
    environment = EnvConfig(image_size=16)()
    yield environment
    environment.close()


def names(family):
    return [task.name for task in TASKS if GOALS[task.name].family.value == family]


def solve(table, name, index, delay=0, drop=0.0, every=1):
    """Steps to success, or 0. ``delay`` steps old evidence, of which ``drop`` is lost."""
    rng = np.random.default_rng(index)
    task = table.spec.task(name)
    seen = table.reset(name, index, seed=11, render=False)
    expert, gripper = Expert(task.instruction), 1.0
    shown = deque([seen.poses] * (delay + 1), maxlen=delay + 1)
    for number in range(task.max_steps):
        command = None
        if number % every == 0 and rng.random() >= drop:
            action = expert.act(shown[0])
            gripper = action[6]
            command = Command(CommandKind.POLICY, action, number, 0, 0, 0)
        step = table.step(environment_action(command, gripper, table.spec), render=False)
        shown.append(step.observation.poses)
        if step.done:
            return number + 1 if step.success else 0
    return 0


def test_it_picks_and_places(table):
    solved = [solve(table, names("pick")[i % 4], i) for i in range(20)]
    assert sum(map(bool, solved)) >= 19, solved


@pytest.mark.parametrize("family", ["reach", "push", "stack"])
def test_it_solves_the_other_families(table, family):
    tasks = names(family)
    solved = [solve(table, tasks[i % len(tasks)], i) for i in range(8)]
    assert sum(map(bool, solved)) >= 7, solved


@pytest.mark.parametrize(
    "trouble", [{"delay": 3}, {"drop": 0.3, "delay": 1}, {"every": 2}], ids=str
)
@pytest.mark.parametrize("family", ["push", "pick"])
def test_it_bears_old_lost_and_rare_evidence(table, family, trouble):
    tasks = names(family)
    assert all(solve(table, tasks[i], 30 + i, **trouble) for i in range(3))


def test_it_tries_again_when_the_cube_is_taken_away(table):
    """The cube slips at the moment it is lifted: teleported 10 cm to the side."""
    poses = dict(table.reset("pick_red_cube", 0, render=False).poses)
    expert = Expert("pick up the red cube and put it on the plate")
    cube = np.array(poses["red_cube"].position)
    descents, was_open = 0, True
    for number in range(200):
        action = expert.act(poses)
        if was_open and action[6] == 0.0:
            descents += 1
        was_open = action[6] == 1.0
        gripper = np.array(poses["gripper"].position) + action[:3]
        poses["gripper"] = Pose(tuple(gripper), DOWN)
        if number == 100:
            cube[1] += 0.1
        poses["red_cube"] = Pose(tuple(cube), UPRIGHT)
    assert descents >= 3  # the cube never comes along, so it grasps again and again
    assert np.hypot(*(gripper - cube)[:2]) < 0.02  # and where the cube is now


def test_actions_are_within_bounds_and_physical():
    rng = np.random.default_rng(0)
    expert = Expert("put the red cube on the blue cube")
    for _ in range(200):
        poses = {
            name: Pose(tuple(rng.uniform(-1, 1, 3)), tuple(rng.normal(size=4)))
            for name in ("gripper", "red_cube", "blue_cube")
        }
        action = expert.act(poses)
        assert action.shape == (7,)
        assert np.isfinite(action).all()
        assert np.abs(action[:3]).max() <= 0.05
        assert np.abs(action[3:6]).max() <= 0.5
        assert action[6] in (0.0, 1.0)


def test_reset_takes_on_another_task():
    poses = {
        "gripper": Pose((0.0, 0.0, 0.2), DOWN),
        "red_cube": Pose((0.2, 0.0, 0.02), UPRIGHT),
        "blue_cube": Pose((-0.2, 0.0, 0.02), UPRIGHT),
    }
    expert = Expert("move the gripper above the red cube")
    assert expert.act(poses)[0] > 0
    expert.reset("move the gripper above the blue cube")
    assert expert.act(poses)[0] < 0


def test_errors_say_what_is_missing():
    with pytest.raises(UnknownInstruction, match="cannot do 'sing'; it can do"):
        Expert("sing")
    expert = Expert("put the red cube on the blue cube")
    poses = {"gripper": Pose((0, 0, 0), DOWN), "red_cube": Pose((0, 0, 0), UPRIGHT)}
    with pytest.raises(MissingPose, match="no 'blue_cube'; it has: gripper, red_cube"):
        expert.act(poses)
