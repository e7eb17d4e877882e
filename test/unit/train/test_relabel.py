"""What the expert would do for other sentences: it must be what it does when told them."""

import numpy as np
import pytest

from vla_ros.sim.expert import Expert
from vla_ros.sim.goals import Family, Goal, instruction_of
from vla_ros.sim.tasks import GOALS
from vla_ros.train.relabel import INSTRUCTIONS, labels
from vla_ros.train.units import scales, to_environment

pytest.importorskip("mujoco")

from vla_ros.train.rollout import shared_environment

PICK = Goal(Family.PICK, "red_cube", "plate")
STACK = Goal(Family.STACK, "red_cube", "blue_cube")


@pytest.fixture(scope="module")
def environment():
    return shared_environment(False)


def column(every, goal):
    return every[INSTRUCTIONS.index(instruction_of(goal))]


def test_at_the_start_it_is_what_a_new_expert_does(environment):
    seen = environment.reset("pick_red_cube", 3, render=False)
    scale = scales(environment.spec)
    every = labels(Expert(instruction_of(PICK)), seen.poses, scale)
    assert every.shape == (len(GOALS), 7) and np.abs(every).max() <= 1.0
    for goal in GOALS.values():
        told = to_environment(Expert(instruction_of(goal)).act(seen.poses), scale)
        assert np.array_equal(column(every, goal), told)


def test_it_leaves_the_expert_as_it_was(environment):
    scale = scales(environment.spec)
    seen = environment.reset("pick_red_cube", 3, render=False)
    watched, alone = Expert(instruction_of(PICK)), Expert(instruction_of(PICK))
    for _ in range(60):
        labels(watched, seen.poses, scale)
        action = watched.act(seen.poses)
        assert np.array_equal(action, alone.act(seen.poses))
        seen = environment.step(to_environment(action, scale), render=False).observation


def test_with_the_cube_in_the_hand_another_place_for_it_is_a_change_of_way(environment):
    scale = scales(environment.spec)
    seen = environment.reset("pick_red_cube", 3, render=False)
    expert = Expert(instruction_of(PICK))
    while expert.waypoint < 3:  # lifted, on its way
        action = to_environment(expert.act(seen.poses), scale)
        seen = environment.step(action, render=False).observation
    every = labels(expert, seen.poses, scale)
    own, other = column(every, PICK), column(every, STACK)
    assert own[6] == other[6] == 1.0  # still closed
    to_blue = np.array(seen.poses["blue_cube"].position) - seen.poses["gripper"].position
    assert other[:2] @ to_blue[:2] > 0
    assert column(every, Goal(Family.PICK, "green_cube", "plate"))[6] == -1.0  # lets go
