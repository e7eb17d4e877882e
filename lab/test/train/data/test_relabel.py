"""What the expert would do for other instructions: it must be what it does when told them."""

import numpy as np
import pytest

from vla_ros.sim.expert import Expert
from vla_ros.sim.tasks import GOALS, Family, Goal, instruction_of
from vla_ros_lab.train.collect import INSTRUCTIONS, labels
from vla_ros_lab.train.units import scales, to_environment

pytest.importorskip("mujoco")

from vla_ros_lab.train.collect import shared_environment

PICK = Goal(Family.PICK, "red_cube", "plate")
STACK = Goal(Family.STACK, "red_cube", "blue_cube")


@pytest.fixture(scope="module")
def environment():
    return shared_environment(False)


def column(every, goal):
    return every[INSTRUCTIONS.index(instruction_of(goal))]


def test_it_is_what_an_expert_does_that_is_told_it(environment):
    scale = scales(environment.spec)
    seen = environment.reset("pick_red_cube", 3, render=False)
    expert = Expert(instruction_of(PICK))
    for _ in range(3):
        every = labels(seen.poses, scale)
        assert every.shape == (len(GOALS), 7) and np.abs(every).max() <= 1.0
        for goal in GOALS.values():
            told = to_environment(Expert(instruction_of(goal)).act(seen.poses), scale)
            assert np.array_equal(column(every, goal), told)
        for _ in range(15):
            action = to_environment(expert.act(seen.poses), scale)
            seen = environment.step(action, render=False).observation


def test_with_the_cube_in_the_hand_another_place_for_it_is_a_change_of_way(environment):
    scale = scales(environment.spec)
    seen = environment.reset("pick_red_cube", 3, render=False)
    expert = Expert(instruction_of(PICK))
    while seen.poses["red_cube"].position[2] < 0.14:  # lifted as high as the plate needs it
        action = to_environment(expert.act(seen.poses), scale)
        seen = environment.step(action, render=False).observation
    every = labels(seen.poses, scale)
    own, other = column(every, PICK), column(every, STACK)
    assert own[6] == other[6] == 1.0  # still closed
    to_plate = np.array(seen.poses["plate"].position) - seen.poses["gripper"].position
    assert own[:2] @ to_plate[:2] > 0
    assert other[2] > own[2]  # onto a cube it goes higher
    assert column(every, Goal(Family.PICK, "green_cube", "plate"))[6] == -1.0  # lets go
