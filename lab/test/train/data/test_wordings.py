import pytest

from vla_ros.sim.tasks import COLORS, PLATE, Family, Goal, cube, instruction_of, parse_instruction
from vla_ros_lab.train.frames import wordings

CUBES = [cube(color) for color in COLORS]
GOALS = [
    *(Goal(Family.REACH, thing) for thing in CUBES),
    *(Goal(Family.PUSH, thing, side) for thing in CUBES for side in ("left", "right")),
    *(Goal(Family.PICK, thing, PLATE) for thing in CUBES),
    *(Goal(Family.STACK, a, b) for a in CUBES for b in CUBES if a != b),
]


@pytest.mark.parametrize("goal", GOALS, ids=instruction_of)
def test_the_expert_understands_every_wording(goal):
    said = wordings(goal)
    assert len(set(said)) == len(said) >= 5
    assert said[0] == instruction_of(goal)
    assert {parse_instruction(text) for text in said} == {goal}


def test_no_sentence_asks_for_two_things():
    everything = [text for goal in GOALS for text in wordings(goal)]
    assert len(set(everything)) == len(everything)
