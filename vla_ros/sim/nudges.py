"""A thing that is moved while the hand is on its way to it: who goes by old evidence misses it.

Like an initial state a nudge is a function of (task, index, seed), so every policy meets the same.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np

from vla_ros.sim.goals import Family
from vla_ros.sim.tasks import GOALS, CubePlacement, allowed, placements

_STEPS: Final = (4, 16)  # control steps after which it comes: most hands are still under way
_DIRECTIONS: Final = 16


@dataclass(frozen=True, slots=True)
class Nudge:
    """After ``step`` control steps the cube of the task lies ``by`` (m, x and y) from where it
    lay."""

    step: int
    cube: str
    by: tuple[float, float]


def nudge_of(name: str, index: int, seed: int, metres: float) -> Nudge | None:
    """The nudge of an initial state; None without one: it is 0 m, or there is no room for it."""
    if not metres:
        return None
    rng = np.random.default_rng([seed, zlib.crc32(name.encode()), index, 1])
    step, goal = int(rng.integers(*_STEPS)), GOALS[name]
    placed = placements(name, index, seed)
    at = placed[goal.object]
    # Aside only, of a cube that is to be pushed: along the way nobody could tell it from a push.
    turns = np.array((0, _DIRECTIONS // 2)) if goal.family is Family.PUSH else _DIRECTIONS
    for turn in rng.permutation(turns):
        angle = 2 * np.pi * turn / _DIRECTIONS
        x, y = metres * float(np.cos(angle)), metres * float(np.sin(angle))
        if allowed(goal, placed | {goal.object: CubePlacement(at.x + x, at.y + y, at.yaw)}):
            return Nudge(step, goal.object, (x, y))
    return None
