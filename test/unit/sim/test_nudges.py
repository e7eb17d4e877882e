"""A cube that is moved while the hand is on its way to it."""

from dataclasses import replace

import numpy as np
import pytest

from unit.sim.test_expert import solve
from vla_ros.sim.env import SimError
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.tabletop import nudge_of
from vla_ros.sim.tasks import GOALS, TASKS, allowed, placements

STILL = np.array([0, 0, 0, 0, 0, 0, -1.0])
FAR = 0.05


@pytest.fixture(scope="module")
def nudged():
    environment = EnvConfig(image_size=16, nudge_m=FAR)()
    yield environment
    environment.close()


def test_where_a_cube_is_moved_it_may_lie():
    found = 0
    for task in TASKS:
        for index in range(10):
            nudge = nudge_of(task.name, index, 7, FAR)
            assert nudge == nudge_of(task.name, index, 7, FAR), "every policy meets the same"
            if nudge is None:
                continue
            found += 1
            goal, placed = GOALS[task.name], placements(task.name, index, 7)
            assert nudge.cube == goal.object and np.hypot(*nudge.by) == pytest.approx(FAR)
            at = placed[nudge.cube]
            moved = replace(at, x=at.x + nudge.by[0], y=at.y + nudge.by[1])
            assert allowed(goal, placed | {nudge.cube: moved})
    assert found > 200, "there is room nearly always"
    assert nudge_of("reach_red_cube", 0, 7, 0.0) is None


@pytest.mark.parametrize("name", ["reach_red_cube", "push_blue_cube_left"])
def test_it_moves_once_and_then_lies_still(nudged, name):
    nudge = nudge_of(name, 1, 7, FAR)
    nudged.reset(name, 1, seed=7, render=False)
    seen = []
    for _ in range(nudge.step + 3):
        step = nudged.step(STILL, render=False)
        seen.append(np.array(step.observation.poses[nudge.cube].position[:2]))
    moved = np.linalg.norm(np.diff(seen, axis=0), axis=1)
    assert moved.argmax() == nudge.step - 2
    assert moved.max() == pytest.approx(FAR, abs=1e-3) and np.sort(moved)[-2] < 1e-3
    assert not step.success, "a nudge is no push"


def test_the_expert_sees_it_and_goes_after_it(nudged):
    names = ["reach_red_cube", "push_blue_cube_left", "pick_green_cube", "stack_red_on_blue"]
    assert all(solve(nudged, name, index) for name in names for index in (0, 1))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"name": "libero", "nudge_m": 0.02}, "libero nudges nothing"),
        ({"nudge_m": 0.5}, "give 0 to 0.1 m"),
        ({"nudge_m": -0.1}, "give 0 to 0.1 m"),
    ],
)
def test_what_cannot_be_is_one_line(how, said):
    with pytest.raises(SimError, match=said):
        EnvConfig(**how)
