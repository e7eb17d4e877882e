"""What instructions ask for."""

import pytest

from vla_ros.sim.tasks import (
    GOALS,
    TASKS,
    Family,
    Goal,
    UnknownInstruction,
    instruction_of,
    parse_instruction,
)


def test_every_task_means_what_its_sentence_says():
    assert len(TASKS) == 28
    for task in TASKS:
        assert parse_instruction(task.instruction) == GOALS[task.name]
        assert task.instruction == instruction_of(GOALS[task.name])


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("Place the RED cube on the plate.", Goal(Family.PICK, "red_cube", "plate")),
        ("slide the blue block leftwards, to the left", Goal(Family.PUSH, "blue_cube", "left")),
        ("stack green on yellow", Goal(Family.STACK, "green_cube", "yellow_cube")),
        ("hover over the yellow cube", Goal(Family.REACH, "yellow_cube")),
        ("move the green cube to the right", Goal(Family.PUSH, "green_cube", "right")),
    ],
)
def test_other_wordings(text, goal):
    assert parse_instruction(text) == goal


@pytest.mark.parametrize(
    "text",
    [
        "",
        "open the drawer",
        "pick up the purple cube and put it on the plate",
        "put the red cube on the purple cube",
        "put the red cube on the red cube",
        "put the red cube and the blue cube on the plate",
        "put the red cube to the left of the blue cube",
        "push the red cube",
        "push the red cube left and right",
        "do not push the red cube to the left",
    ],
)
def test_what_it_cannot_do_is_refused_with_a_list_of_what_it_can(text):
    with pytest.raises(UnknownInstruction) as error:
        parse_instruction(text)
    message = str(error.value)
    assert "\n" not in message
    for known in ("gripper above", "push the", "on the plate", "yellow"):
        assert known in message
