"""The tabletop environment: LIBERO's interface, and the same every time."""

import numpy as np
import pytest

from vla_ros.sim.env import RefusedAction, UnknownTask
from vla_ros.sim.factory import EnvConfig

OPEN, CLOSE = -1.0, 1.0


@pytest.fixture(scope="module")
def table():
    environment = EnvConfig(image_size=48)()
    yield environment
    environment.close()


def same(first, second):
    numbers = ("joint_positions", "eef_pos", "eef_quat", "gripper_qpos")
    return (
        first.poses == second.poses
        and first.joint_names == second.joint_names
        and all(np.array_equal(getattr(first, n), getattr(second, n)) for n in numbers)
        and first.images.keys() == second.images.keys()
        and all(np.array_equal(first.images[n], second.images[n]) for n in first.images)
    )


def all_same(first, second):
    return len(first) == len(second) and all(map(same, first, second))


def play(environment, actions, task="pick_red_cube", index=2):
    seen = [environment.reset(task, index)]
    seen += [environment.step(action).observation for action in actions]
    return seen


def test_the_same_actions_show_the_same_bit_for_bit(table):
    actions = np.random.default_rng(0).uniform(-1, 1, (12, 7))
    first = play(table, actions)
    play(table, actions[::-1], "stack_red_on_blue", 5)  # whatever happened before
    assert all_same(first, play(table, actions))
    fresh = EnvConfig(image_size=48)()
    assert all_same(first, play(fresh, actions))
    fresh.close()


def test_rendering_changes_nothing_else(table):
    first = play(table, [[0.3, 0, 0, 0, 0, 0, CLOSE]] * 4)[-1]
    table.reset("pick_red_cube", 2, render=False)
    for _ in range(4):
        blind = table.step([0.3, 0, 0, 0, 0, 0, CLOSE], render=False).observation
    assert blind.images == {}
    assert blind.poses == first.poses


def test_what_it_shows(table):
    seen = table.reset("reach_green_cube", 0)
    assert set(seen.images) == {"agentview", "wrist"} == set(table.spec.cameras)
    for image in seen.images.values():
        assert image.shape == (48, 48, 3)
        assert image.dtype == np.uint8
        assert image.flags.c_contiguous
    assert len(seen.joint_names) == len(seen.joint_positions) == 9
    assert set(seen.poses) == {
        "gripper", "finger_left", "finger_right", "plate",
        "red_cube", "green_cube", "blue_cube", "yellow_cube",
    }  # fmt: skip
    assert seen.poses["gripper"].position == pytest.approx(seen.eef_pos)
    assert np.linalg.norm(seen.eef_quat) == pytest.approx(1.0)


def test_the_image_is_upright_and_rgb(table):
    """Sky above table; the plate, at larger y, on the right; the red cube where it lies is red."""
    seen = table.reset("pick_red_cube", 1)
    image = seen.images["agentview"].astype(int)
    assert image[:4].mean() < 0.5 * image[-12:].mean()
    whitish = (image.min(axis=2) > 200)[20:]
    assert whitish.any()
    assert np.nonzero(whitish)[1].mean() > 24
    assert ((image[..., 0] > 2 * image[..., 1]) & (image[..., 0] > 2 * image[..., 2])).any()


def test_cameras_can_be_left_out():
    environment = EnvConfig(image_size=32, wrist=False)()
    assert set(environment.reset("pick_red_cube", 0).images) == {"agentview"}
    environment.close()


@pytest.mark.parametrize(("axis", "sign"), [(0, 1), (1, -1), (2, 1)])
def test_an_action_moves_the_gripper_its_way(table, axis, sign):
    start = table.reset("pick_red_cube", 0, render=False).eef_pos
    action = np.zeros(7)
    action[axis], action[6] = sign * 0.5, OPEN
    for _ in range(8):
        now = table.step(action, render=False).observation.eef_pos
    moved = now - start
    assert sign * moved[axis] > 0.04
    assert np.abs(np.delete(moved, axis)).max() < 0.008


def test_standing_still_is_standing_still(table):
    start = table.reset("pick_red_cube", 0, render=False)
    for _ in range(40):
        now = table.step([0, 0, 0, 0, 0, 0, OPEN], render=False).observation
    assert now.eef_pos == pytest.approx(start.eef_pos, abs=2e-3)


def test_the_gripper_obeys(table):
    table.reset("pick_red_cube", 0, render=False)
    for _ in range(10):
        closed = table.step([0, 0, 0, 0, 0, 0, CLOSE], render=False).observation.gripper_qpos
    for _ in range(10):
        opened = table.step([0, 0, 0, 0, 0, 0, OPEN], render=False).observation.gripper_qpos
    assert np.abs(closed).max() < 0.002
    assert np.abs(opened).min() > 0.038


def test_actions_are_clipped(table):
    big = play(table, [[9, 0, 0, 0, 0, 0, OPEN]])[-1]
    one = play(table, [[1, 0, 0, 0, 0, 0, OPEN]])[-1]
    assert same(big, one)


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ([0.0] * 6, "shape"),
        ([[0.0] * 7], "shape"),
        ([0, 0, 0, np.nan, 0, 0, 0], "not finite"),
        ([np.inf, 0, 0, 0, 0, 0, 0], "not finite"),
        (["a"] * 7, "not a list of numbers"),
        (None, "shape|numbers|finite"),
    ],
)
def test_a_bad_action_is_refused_and_nothing_moves(table, action, why):
    still = [0, 0, 0, 0, 0, 0, OPEN]
    expected = play(table, [still])[-1]
    table.reset("pick_red_cube", 2)
    with pytest.raises(RefusedAction, match=why):
        table.step(action)
    assert same(table.step(still).observation, expected)


def test_no_step_before_the_reset():
    environment = EnvConfig(image_size=32)()
    with pytest.raises(RefusedAction, match="reset before the next step"):
        environment.step([0] * 7)
    environment.close()


def test_no_step_after_the_end(table):
    from vla_ros.sim.expert import Expert

    seen = table.reset("reach_red_cube", 0, render=False)
    expert = Expert(table.spec.task("reach_red_cube").instruction)
    for _ in range(120):
        action = expert.act(seen.poses) / [0.05, 0.05, 0.05, 0.5, 0.5, 0.5, 1]
        step = table.step(action, render=False)
        seen = step.observation
        if step.done:
            break
    assert step.success
    with pytest.raises(RefusedAction, match="episode has ended"):
        table.step([0] * 7)


def test_unknown_tasks_and_states_name_the_valid_ones(table):
    with pytest.raises(UnknownTask, match=r"pick_red_cube.*reach_yellow_cube"):
        table.reset("fly", 0)
    with pytest.raises(UnknownTask, match="no initial state 50; it has 0 to 49"):
        table.reset("pick_red_cube", 50)
