"""The expert for many tables at once, and the model of the table that it is led over."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_ros.core.types import Pose
from vla_ros.sim.expert import advise
from vla_ros.sim.tasks import GOALS
from vla_ros_lab.train.ahead import advise_many, futures, move_on, tables_of
from vla_ros_lab.train.demonstrations import BODIES
from vla_ros_lab.train.units import to_environment, to_values

SCALE = np.array([0.05] * 3 + [0.5] * 3)
EVERY = tuple(GOALS.values())


def poses_of(rng, near=False):
    """A table [BODIES, 7]; ``near``: the hand about a cube, the cubes about each other."""
    poses = np.zeros((len(BODIES), 7))
    spread = 0.03 if near else 0.2
    poses[:, :3] = rng.uniform(-spread, spread, (len(BODIES), 3)) + np.array([0, 0, 0.03])
    poses[:, 3:] = rng.normal(0, 0.1, (len(BODIES), 4)) + np.array([0, 0, 0, 1])
    hand, left, right = (BODIES.index(n) for n in ("gripper", "finger_left", "finger_right"))
    poses[hand, 3:] = rng.normal(0, 0.1, 4) + np.array([1, 0, 0, 0])
    poses[left] = poses[right] = poses[hand]
    poses[left, 1] += rng.choice([0.0, 0.041, 0.06, 0.08])
    poses[:, 3:] /= np.linalg.norm(poses[:, 3:], axis=1, keepdims=True)
    return poses.astype(np.float32)


def named(poses):
    return {
        name: Pose(tuple(map(float, row[:3])), tuple(map(float, row[3:])))
        for name, row in zip(BODIES, poses, strict=True)
    }


def still(count):
    return np.zeros((count, 2, 7), np.float32)


@given(st.integers(0, 2**31), st.booleans(), st.sampled_from((-1.0, 0.0, 1.0)))
@settings(max_examples=40, deadline=None)
def test_many_at_once_do_what_the_expert_does(seed, near, side):
    poses = poses_of(np.random.default_rng(seed), near)
    many = np.repeat(poses[None], len(EVERY), 0)
    swing = np.full(len(EVERY), side)
    got = advise_many(tables_of(many, still(len(EVERY)), EVERY, SCALE, swing))
    wanted = np.stack([advise(goal, named(poses), side) for goal in EVERY])
    np.testing.assert_allclose(got, wanted, atol=1e-9)


def test_the_first_of_what_lies_ahead_is_the_experts_action():
    rng = np.random.default_rng(1)
    poses = np.stack([poses_of(rng) for _ in EVERY])
    chunk = futures(poses, still(len(EVERY)), EVERY, SCALE, 4)
    assert chunk.shape == (len(EVERY), 4, 7) and chunk.dtype == np.float32
    first = [advise(goal, named(p)) for goal, p in zip(EVERY, poses, strict=True)]
    np.testing.assert_allclose(
        chunk[:, 0], to_values(to_environment(np.stack(first), SCALE)), atol=1e-6
    )
    assert np.abs(chunk[:, 1] - chunk[:, 0]).max() > 0.01  # it goes on


def test_what_was_commanded_before_still_moves_the_hand():
    poses = poses_of(np.random.default_rng(2))[None]
    before = still(1)
    before[:, 0, 0] = 1.0
    rest, moving = (tables_of(poses, b, EVERY[:1], SCALE) for b in (still(1), before))
    for tables in (rest, moving):
        move_on(tables, np.array([[0, 0, 0, 0, 0, 0, 1.0]]), SCALE)
    assert moving.grip[0, 0] - rest.grip[0, 0] == pytest.approx(0.105 * 0.05)


def at_a_cube(offset, gap, goal):
    """The tables of one state: the hand ``offset`` m from the goal's cube."""
    poses = poses_of(np.random.default_rng(3))
    hand, left, right = (BODIES.index(n) for n in ("gripper", "finger_left", "finger_right"))
    cube = BODIES.index(goal.object)
    poses[cube, :3], poses[cube, 3:] = (0.05, 0.0, 0.021), (0, 0, 0, 1)
    poses[hand, :3], poses[hand, 3:] = poses[cube, :3] + np.array(offset), (1, 0, 0, 0)
    poses[left] = poses[right] = poses[hand]
    poses[left, 1] += gap
    return tables_of(poses[None], still(1), [goal], SCALE)


def test_fingers_close_on_a_cube_and_carry_it():
    tables = at_a_cube((0, 0, 0), 0.08, GOALS["pick_red_cube"])
    start = tables.thing.copy()
    lift = np.array([[0, 0, 0.05, 0, 0, 0, 0.0]])
    for _ in range(6):
        move_on(tables, lift * (tables.gap[0] < 0.05), SCALE)
    assert tables.gap[0] == pytest.approx(0.041, abs=0.002)
    assert tables.thing[0, 2] > start[0, 2] + 0.01
    np.testing.assert_allclose(tables.thing[0, 2] - start[0, 2], tables.grip[0, 2] - 0.021)
    held = tables.thing.copy()
    for _ in range(4):
        move_on(tables, np.array([[0, 0, 0.05, 0, 0, 0, 1.0]]), SCALE)
    assert tables.gap[0] > 0.07
    assert tables.thing[0, 2] < held[0, 2] + 0.01  # let go, it does not follow


def test_closed_fingers_push_a_cube_along():
    tables = at_a_cube((0, -0.05, -0.008), 0.0, GOALS["push_red_cube_right"])
    start = tables.thing[0].copy()
    for _ in range(8):
        move_on(tables, np.array([[0, 0.05, 0, 0, 0, 0, 0.0]]), SCALE)
    assert tables.thing[0, 1] > start[1] + 0.02
    assert tables.thing[0, 1] - tables.grip[0, 1] == pytest.approx(0.034)
    assert (tables.thing[0, [0, 2]] == start[[0, 2]]).all()


@pytest.mark.parametrize("task", ["pick_red_cube", "reach_blue_cube", "push_green_cube_left"])
def test_it_is_near_to_what_the_simulation_does(task):
    """The expert's episode, undisturbed: 8 actions ahead the model errs by little."""
    pytest.importorskip("mujoco", exc_type=ImportError)
    from vla_ros.sim.tabletop import Tabletop
    from vla_ros_lab.train.collect import poses_of as rows_of

    world = Tabletop(image_size=16, wrist=False)
    try:
        goal, seen = GOALS[task], world.reset(task, 0, 1_900_000, render=False)
        poses, actions = [], []
        for _ in range(40):
            poses.append(rows_of(seen.poses))
            actions.append(to_environment(advise(goal, seen.poses), SCALE))
            step = world.step(actions[-1], render=False)
            seen = step.observation
            if step.done:
                break
    finally:
        world.close()
    done = SimpleNamespace(poses=np.float32(poses), actions=np.float32(actions))
    count = len(done.actions) - 8
    before = np.stack([np.roll(done.actions, n, 0) for n in (1, 2)], 1)
    before[0], before[1, 1] = 0, 0
    chunk = futures(done.poses[:count], before[:count], [goal] * count, SCALE, 8)
    wanted = np.stack([to_values(done.actions[n : n + 8]) for n in range(count)])
    wrong = np.abs(chunk - wanted)
    assert wrong[:, 0].max() < 1e-3
    assert wrong[..., :6].mean() < 0.06 and wrong[..., 6].mean() < 0.1
    repeated = np.abs(wanted[:, :1] - wanted)[..., :6].mean()
    assert wrong[..., :6].mean() < 0.6 * repeated  # and much better than the first, repeated
