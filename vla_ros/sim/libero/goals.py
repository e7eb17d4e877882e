"""What a sentence of libero_object and libero_spatial asks for, in the names of the poses.

LIBERO numbers its things, ``plate_1``; a goal names kinds, ``plate``, and :func:`find` looks
for the thing that is meant, by where it lies if there are several.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from vla_ros.core import Floats, Pose

_KINDS = {
    "black bowl": "akita_black_bowl",
    "ramekin": "glazed_rim_porcelain_ramekin",
    "cookie box": "cookies",
    "stove": "flat_stove",
}
_SENTENCE = re.compile(r"pick up the (?P<object>.+) and place it (?:in|on) the (?P<target>\w+)")
_WHERES = (
    (r"between the (.+) and the (.+)", "between"),
    (r"next to the (.+)", "near"),
    (r"on the (.+)", "near"),
    (r"in the top drawer of the (.+)", "inside"),
    (r"from table center", "centre"),
)


class UnknownInstruction(ValueError):
    """The sentence asks for nothing that the expert for LIBERO can do."""


class MissingThing(ValueError):
    """The ground truth lacks a thing that the instruction names."""


class Where(str, Enum):
    """Which of several things of one kind is meant."""

    ANY = "any"  # there is one only
    BETWEEN = "between"  # two landmarks
    NEAR = "near"  # next to or on a landmark
    INSIDE = "inside"  # in a drawer of a landmark, so not on top of it
    CENTRE = "centre"  # of the table


@dataclass(frozen=True, slots=True)
class Goal:
    """Put the ``object`` that is ``where`` among ``landmarks`` in or on the ``target``. Kinds."""

    object: str
    target: str
    where: Where = Where.ANY
    landmarks: tuple[str, ...] = ()


def parse(text: str) -> Goal:
    """The goal of a sentence. UnknownInstruction: it is none of the two suites'."""
    found = _SENTENCE.fullmatch(" ".join(text.lower().split()).rstrip("."))
    if found is None:
        raise UnknownInstruction(
            f"cannot do {text[:200]!r}; in LIBERO the expert can do"
            " 'pick up the X and place it in the basket' or 'on the plate'"
        )
    phrase, target = found["object"], _kind(found["target"])
    for pattern, where in _WHERES:
        said = re.fullmatch(rf"(.+) {pattern}", phrase)
        if said is not None:
            thing, *landmarks = said.groups()
            return Goal(_kind(thing), target, Where(where), tuple(map(_kind, landmarks)))
    return Goal(_kind(phrase), target)


def _kind(words: str) -> str:
    return _KINDS.get(words, words.replace(" ", "_"))


def find(goal: Goal, poses: Mapping[str, Pose]) -> str:
    """Name of the object that ``goal`` means among ``poses``; MissingThing if there is none."""
    names = _named(goal.object, poses)
    if len(names) == 1:
        return names[0]
    if goal.where is Where.ANY:
        raise MissingThing(f"there are {', '.join(names)}: the instruction must say which one")
    if goal.where is Where.INSIDE:
        return min(names, key=lambda name: poses[name].position[2])
    reference = np.zeros(2)
    if goal.landmarks:
        reference = np.mean([position(one, poses)[:2] for one in goal.landmarks], axis=0)
    return min(names, key=lambda name: float(np.linalg.norm(poses[name].position[:2] - reference)))


def position(kind: str, poses: Mapping[str, Pose]) -> Floats:
    """Position [3] of the first thing of that kind; MissingThing if there is none."""
    return np.array(poses[_named(kind, poses)[0]].position)


def _named(kind: str, poses: Mapping[str, Pose]) -> list[str]:
    names = sorted(name for name in poses if re.fullmatch(rf"{re.escape(kind)}_\d+", name))
    if not names:
        known = ", ".join(poses) or "nothing"
        raise MissingThing(f"the ground truth has no {kind}; it has: {known}")
    return names
