"""Goals of the tabletop: what a sentence asks for, and the sentence of a goal.

The scripted expert reads sentences with :func:`parse_instruction`, so it needs nothing but
what a real policy gets; the tasks write theirs with :func:`instruction_of`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

COLOURS = ("red", "green", "blue", "yellow")
PLATE = "plate"


class Family(str, Enum):
    """Kinds of goal, from easy to hard."""

    REACH = "reach"  # the gripper comes to rest above the object
    PUSH = "push"  # the object moves left or right on the table; target: "left" or "right"
    PICK = "pick"  # the object lies on the plate
    STACK = "stack"  # the object lies on another cube; target: that cube


@dataclass(frozen=True, slots=True)
class Goal:
    """``object`` and ``target`` are names of ground-truth poses, or a side for PUSH."""

    family: Family
    object: str
    target: str = ""


class UnknownInstruction(ValueError):
    """The sentence asks for nothing that the tabletop can do."""


_ABILITIES = (
    "'move the gripper above the C cube', 'push the C cube to the left' or 'right', "
    "'pick up the C cube and put it on the plate', 'put the C cube on the D cube'; "
    f"colours C, D: {', '.join(COLOURS)}"
)
_NEGATIONS = {"not", "never", "don't", "dont", "without"}
_PUSH_VERBS = {"push", "slide", "shove", "move", "nudge"}
_ABOVE = {"above", "over"}
_ONTO = {"on", "onto", "stack", "atop"}


def cube(colour: str) -> str:
    """Name of the cube of that colour in the ground truth."""
    return f"{colour}_cube"


def instruction_of(goal: Goal) -> str:
    """The sentence that asks for ``goal``, as the tasks word it."""
    thing = goal.object.replace("_", " ")
    if goal.family is Family.REACH:
        return f"move the gripper above the {thing}"
    if goal.family is Family.PUSH:
        return f"push the {thing} to the {goal.target}"
    if goal.family is Family.PICK:
        return f"pick up the {thing} and put it on the plate"
    return f"put the {thing} on the {goal.target.replace('_', ' ')}"


def parse_instruction(text: str) -> Goal:
    """The goal that ``text`` asks for.

    It looks for key words, so other wordings of the same request are understood too.
    UnknownInstruction: it asks for something else; the message lists what can be asked for.
    """
    words = re.findall(r"[a-z']+", text.lower())
    goal = None if _NEGATIONS & set(words) else _match(words)
    if goal is None:
        raise UnknownInstruction(f"cannot do {text[:200]!r}; it can do {_ABILITIES}")
    return goal


def _match(words: list[str]) -> Goal | None:
    present = set(words)
    colours = [word for word in words if word in COLOURS]
    if len(colours) == 2 and colours[0] != colours[1]:
        if present & _ONTO and not present & {PLATE, "left", "right"}:
            return Goal(Family.STACK, cube(colours[0]), cube(colours[1]))
        return None
    if len(colours) != 1:
        return None
    thing = cube(colours[0])
    sides = present & {"left", "right"}
    if PLATE in present:
        return Goal(Family.PICK, thing, PLATE) if not sides else None
    if present & _ABOVE:
        return Goal(Family.REACH, thing) if not sides else None
    if present & _PUSH_VERBS and len(sides) == 1:
        return Goal(Family.PUSH, thing, sides.pop())
    return None
