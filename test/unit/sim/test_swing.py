"""An expert with two ways to the same place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.sim.test_expert import names, solve, table  # noqa: F401
from vla_ros.sim.expert import HOME, Expert, around

SIDES = (-1.0, 1.0)


def walk(place, side, steps=60, start=HOME):
    """The way from above of a hand that goes at most 12 mm a step."""
    hand = np.array([start])
    seen = [hand[0]]
    for _ in range(steps):
        way = around(hand, np.array([place]), np.array([side])) - hand
        far = np.linalg.norm(way)
        hand = hand + way * min(1.0, 0.012 / max(far, 1e-9))
        seen.append(hand[0])
    return np.array(seen)


@given(st.floats(0.1, 0.3), st.floats(-np.pi, np.pi), st.sampled_from(SIDES))
def test_both_ways_end_where_they_shall_and_lie_on_their_sides(far, angle, side):
    along = np.array([np.cos(angle), np.sin(angle)])
    left = np.array([-along[1], along[0]])
    seen = walk(HOME + far * along, side) - HOME
    np.testing.assert_allclose(seen[-1], far * along, atol=1e-6)
    aside = side * (seen @ left)
    assert aside.min() > -1e-9, "it never changes its mind"
    assert 0.015 < aside.max() < 0.061


def test_where_the_hand_is_says_which_way_is_under_way():
    place = np.array([HOME[0] + 0.2, HOME[1]])
    for where in SIDES:
        hand = np.array([[HOME[0] + 0.05, where * 0.03]])
        one, other = (around(hand, place[None], np.array([side])) for side in SIDES)
        np.testing.assert_array_equal(one, other)
        assert np.sign(one[0, 1]) == where


def test_home_is_where_an_episode_begins(table):  # noqa: F811
    seen = table.reset("reach_red_cube", 0, seed=11, render=False)
    np.testing.assert_allclose(seen.poses["gripper"].position[:2], HOME, atol=2e-3)


@pytest.mark.parametrize("family", ["reach", "push", "pick", "stack"])
def test_it_solves_its_tasks_either_way(table, family):  # noqa: F811
    tasks = names(family)
    solved = [solve(table, tasks[i % len(tasks)], i, side=SIDES[i % 2]) for i in range(8)]
    assert sum(map(bool, solved)) >= 7, solved


def test_it_takes_the_side_that_it_is_told(table):  # noqa: F811
    seen = table.reset("reach_red_cube", 0, seed=11, render=False)
    cube = np.array(seen.poses["red_cube"].position[:2]) - HOME
    left = np.array([-cube[1], cube[0]])
    said = [Expert("move the gripper above the red cube", s).act(seen.poses) for s in SIDES]
    assert said[0][:2] @ left < 0 < said[1][:2] @ left
