"""The paraphrases that training draws from: the one place where they are written.

The first of each family is the sentence of the tasks themselves. All are understood by
:func:`vla_ros.sim.goals.parse_instruction`, so the expert knows what each of them asks for.
"""

from __future__ import annotations

from vla_ros.sim.goals import PLATE, Family
from vla_ros.train.data.sentences import Asked, OwnSentence

_TEMPLATES: dict[Family, tuple[str, ...]] = {
    Family.REACH: (
        "move the gripper above the {thing} cube",
        "move above the {thing} cube",
        "go over the {thing} cube",
        "bring the gripper over the {thing} cube",
        "hover above the {thing} block",
        "place the hand above the {thing} cube",
    ),
    Family.PUSH: (
        "push the {thing} cube to the {target}",
        "slide the {thing} cube to the {target}",
        "move the {thing} cube to the {target}",
        "shove the {thing} cube {target}",
        "nudge the {thing} block towards the {target}",
        "push the {thing} block to the {target} side",
    ),
    Family.PICK: (
        "pick up the {thing} cube and put it on the plate",
        "put the {thing} cube on the plate",
        "place the {thing} cube on the plate",
        "lift the {thing} cube and place it on the plate",
        "move the {thing} block onto the plate",
        "grasp the {thing} cube and put it onto the plate",
    ),
    Family.STACK: (
        "put the {thing} cube on the {target} cube",
        "stack the {thing} cube on the {target} cube",
        "place the {thing} cube on top of the {target} cube",
        "pick up the {thing} cube and put it on the {target} cube",
        "put the {thing} block onto the {target} block",
        "lift the {thing} cube and stack it on the {target} one",
    ),
}


def wordings(goal: Asked) -> tuple[str, ...]:
    """Every sentence that training uses for ``goal``, the tasks' own first."""
    if isinstance(goal, OwnSentence):
        return (goal.text,)
    thing = goal.object.removesuffix("_cube")
    target = "" if goal.target == PLATE else goal.target.removesuffix("_cube")
    return tuple(text.format(thing=thing, target=target) for text in _TEMPLATES[goal.family])
