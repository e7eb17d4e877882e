"""The scripted expert solves every family of tasks, also when its observation is old or missing."""

from collections import deque

import numpy as np
import pytest

from vla_ros.core.types import Command, CommandKind, Pose
from vla_ros.sim.commands import environment_action
from vla_ros.sim.env import FINGERS
from vla_ros.sim.expert import Expert, MissingPose
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.tasks import GOALS, TASKS, CubePlacement, UnknownInstruction, placements

UPRIGHT = (0.0, 0.0, 0.0, 1.0)
DOWN = (1.0, 0.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def table():
    environment = EnvConfig(image_size=16)()
    yield environment
    environment.close()


def fingers(gap):
    """So far apart; where they are does not matter."""
    return {name: Pose((0.0, i * gap, 0.0), UPRIGHT) for i, name in enumerate(FINGERS)}


def names(family):
    return [task.name for task in TASKS if GOALS[task.name].family.value == family]


def solve(table, name, index, delay=0, drop=0.0, every=1, error=(0.0, 0.0, 0.0), side=0.0):
    """Steps to success, or 0. ``delay`` steps old, of which ``drop`` is lost; ``error``
    m is added to every action."""
    rng = np.random.default_rng(index)
    task = table.spec.task(name)
    seen = table.reset(name, index, seed=11, render=False)
    expert, gripper = Expert(task.instruction, side), 1.0
    shown = deque([seen.poses] * (delay + 1), maxlen=delay + 1)
    for number in range(task.max_steps):
        command = None
        if number % every == 0 and rng.random() >= drop:
            action = expert.act(shown[0])
            action[:3] = np.clip(action[:3] + error, -0.05, 0.05)
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
def test_it_bears_old_lost_and_rare_observation(table, family, trouble):
    tasks = names(family)
    solved = [solve(table, tasks[i % len(tasks)], 30 + i, **trouble) for i in range(6)]
    assert sum(map(bool, solved)) >= 5, solved


@pytest.mark.parametrize("family", ["reach", "push", "pick", "stack"])
def test_it_bears_a_constant_error_of_6_mm(table, family):
    """So does a policy that learned from it and is as far off."""
    rng, tasks = np.random.default_rng(0), names(family)
    errors = rng.uniform(-0.006, 0.006, (8, 3))
    solved = [solve(table, tasks[i % len(tasks)], i, error=e) for i, e in enumerate(errors)]
    assert all(solved), solved


@pytest.mark.parametrize("gap", [0.042, 0.050, 0.059])
def test_a_cube_that_is_held_across_is_lifted_as_it_is(gap):
    """A teacher that presses until it has turned teaches to wait for ever."""
    turned = (0.0, 0.0, np.sin(0.3), np.cos(0.3))  # 0.6 rad about the vertical
    lies, hand = (0.1, 0.05, 0.02), (0.101, 0.05, 0.022)
    poses = {"gripper": Pose(hand, DOWN), "blue_cube": Pose(lies, turned), **fingers(gap)}
    poses["red_cube"] = Pose((-0.1, 0.0, 0.02), UPRIGHT)
    action = Expert("put the blue cube on the red cube").act(poses)
    assert action[2] > 0.02 and action[6] == 0.0


@pytest.mark.parametrize("family", ["pick", "stack"])
def test_a_cube_with_others_right_beside_it_is_taken_where_the_fingers_have_room(family):
    """Across, or by two of its edges: before, a finger came down on another one in every second of
    these, and there it stayed."""
    table = EnvConfig(image_size=16, crowded=True)()
    tasks = names(family)
    solved = [solve(table, tasks[i % len(tasks)], i) for i in range(16)]
    table.close()
    assert sum(map(bool, solved)) >= 15, solved


def test_out_of_a_corner_of_two_others_a_cube_is_taken_by_two_of_its_edges(table, monkeypatch):
    """Both ways of its sides are blocked there: before, the hand stayed above."""

    def cornered(name, index, seed):
        placed = placements(name, index, seed)
        at = placed[GOALS[name].object]
        others = [other for other in placed if other != GOALS[name].object]
        for turn, other in enumerate(others[:2]):
            angle = at.yaw + (index + turn) * np.pi / 2
            x, y = at.x + 0.055 * np.cos(angle), at.y + 0.055 * np.sin(angle)
            placed[other] = CubePlacement(float(x), float(y), at.yaw)
        return placed

    monkeypatch.setattr(table, "_placements", cornered)
    solved = [solve(table, names("pick")[i % 4], i) for i in range(8)]
    assert sum(map(bool, solved)) >= 6, solved


@pytest.mark.parametrize("off", [-0.006, 0.0, 0.006])
def test_what_a_cube_lies_on_does_not_turn_the_hand(off):
    """Both ways are as good then, and an expert that wavers teaches to."""
    poses = {"gripper": Pose((0.1, 0.05, 0.16), DOWN), **fingers(0.08)}
    poses["red_cube"] = Pose((0.1, 0.05, 0.061), UPRIGHT)
    poses["green_cube"] = Pose((0.1 + off, 0.05 - off / 2, 0.021), UPRIGHT)
    poses["plate"] = Pose((0.1, 0.3, 0.0), UPRIGHT)
    action = Expert("pick up the red cube and put it on the plate").act(poses)
    assert np.abs(action[3:6]).max() < 1e-9


def test_it_tries_again_when_the_cube_is_taken_away(table):
    """The cube never comes along, and once it is moved 10 cm to the side."""
    poses = dict(table.reset("pick_red_cube", 0, render=False).poses)
    expert = Expert("pick up the red cube and put it on the plate")
    cube, gap, grasps = np.array(poses["red_cube"].position), 0.08, 0
    was_open = True
    for number in range(200):
        poses |= fingers(gap)
        action = expert.act(poses)
        grasps += was_open and action[6] == 0.0
        was_open = action[6] == 1.0
        gripper = np.array(poses["gripper"].position) + action[:3]
        near = np.linalg.norm(gripper - cube) < 0.03
        gap = min(0.08, gap + 0.01) if was_open else max(0.042 if near else 0.0, gap - 0.01)
        poses["gripper"] = Pose(tuple(gripper), DOWN)
        if number == 100:
            cube[1] += 0.1
        poses["red_cube"] = Pose(tuple(cube), UPRIGHT)
    assert grasps >= 3
    assert np.hypot(*(gripper - cube)[:2]) < 0.02  # and where the cube is now


def test_what_it_does_follows_from_what_it_sees(table):
    """Two experts, one of which saw nothing of the first half, do the same in the second."""
    seen = table.reset("stack_red_on_blue", 3, render=False)
    first, second = Expert("put the red cube on the blue cube"), None
    for number in range(40):
        action = first.act(seen.poses)
        if number >= 20:
            second = second or Expert("stack the red cube on the blue cube")
            assert np.array_equal(second.act(seen.poses), action)
        command = Command(CommandKind.POLICY, action, number, 0, 0, 0)
        step = table.step(environment_action(command, action[6], table.spec), render=False)
        seen = step.observation


def test_a_cube_that_was_pushed_far_enough_is_left_alone():
    poses = {
        "gripper": Pose((0.0, -0.05, 0.013), DOWN),
        "red_cube": Pose((0.0, 0.0, 0.021), UPRIGHT),
        **fingers(0.0),
    }
    expert = Expert("push the red cube to the right")
    assert expert.act(poses)[1] > 0
    poses["gripper"] = Pose((0.0, 0.03, 0.013), DOWN)
    poses["red_cube"] = Pose((0.0, 0.08, 0.021), UPRIGHT)
    assert np.array_equal(expert.act(poses)[:6], np.zeros(6))


def test_actions_are_within_bounds_and_physical():
    rng = np.random.default_rng(0)
    expert = Expert("put the red cube on the blue cube")
    for _ in range(200):
        poses = {
            name: Pose(tuple(rng.uniform(-1, 1, 3)), tuple(rng.normal(size=4)))
            for name in ("gripper", "red_cube", "blue_cube", *FINGERS)
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
        **fingers(0.08),
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
