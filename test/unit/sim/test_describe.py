"""docs/reference/tasks.md is what the code says, and what it says of success is what is judged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vla_ros.sim import describe, tasks
from vla_ros.sim.scene import CUBE_HALF
from vla_ros.sim.tasks import GOALS, TASKS, Family, TableState, satisfied

PAGE = Path(__file__).parents[3] / "docs/reference/tasks.md"


def test_the_page_is_what_the_code_says():
    assert PAGE.read_text(encoding="utf-8") == describe.document(), (
        "python -m vla_ros.sim.describe > docs/reference/tasks.md"
    )


def test_every_task_stands_once_with_its_sentence():
    text = describe.document()
    for task in TASKS:
        assert text.count(f"| `{task.name}` | {task.instruction} |") == 1


@pytest.mark.parametrize("family", list(Family))
def test_each_family_is_told_how_it_is_judged(family):
    assert describe.solved_when(family)
    limits = {task.max_steps for task in TASKS if GOALS[task.name].family is family}
    assert len(limits) == 1 and f"at most {limits.pop()} actions" in describe.table(family)
    assert describe.table(family).count("\n| `") == sum(g.family is family for g in GOALS.values())


@pytest.mark.parametrize(("inside", "solved"), [(0.9, True), (1.1, False)])
def test_the_radii_of_the_page_are_those_of_the_judge(inside, solved):
    """A cube just inside of the distance that the page names, and just outside."""
    low, _ = tasks.REACH_HEIGHT
    still = {
        "red_cube": np.array([0.0, 0.0, CUBE_HALF]),
        "blue_cube": np.array([0.1, 0.1, CUBE_HALF]),
    }
    gripper = still["red_cube"] + [inside * tasks.REACH_RADIUS, 0.0, low + 0.01]
    reach = TableState(gripper, still, still, frozenset())
    assert satisfied(GOALS["reach_red_cube"], reach) is solved
    on_top = still["blue_cube"] + [inside * tasks.STACK_RADIUS, 0.0, 2 * CUBE_HALF]
    stack = TableState(gripper, {**still, "red_cube": on_top}, still, frozenset())
    assert satisfied(GOALS["stack_red_on_blue"], stack) is solved
    assert not satisfied(
        GOALS["stack_red_on_blue"],
        TableState(gripper, stack.cubes, still, frozenset({"red_cube"})),
    )
