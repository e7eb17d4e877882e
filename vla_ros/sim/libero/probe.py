"""Whether this is the world that LIBERO's figures belong to: two probes of it.

Some versions of MuJoCo run LIBERO and are another world: objects come to rest elsewhere, or
textures are darker. A policy that looks at pictures then fails for no fault of its own, while
nothing breaks and an expert that reads poses sees no difference. Each probe measures one thing
that is told apart with room to spare; limits lie between what was measured in both worlds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from vla_ros.sim.env import AGENTVIEW, Environment
from vla_ros.sim.libero.suites import INITIAL_STATES, find, parse, position

BOWL_TASK: Final = "libero_spatial/5"  # the black bowl on the ramekin
BOWL_OFF_MM: Final = 20.0  # 14.5 in the right world, 37.2 from MuJoCo 3.4.0 on
BOWL_HIGH_MM: Final = 40.0  # 35.1 and 43.5
FLOOR_TASK: Final = "libero_object/0"
FLOOR_LEVEL: Final = 150.0  # 179 in the right world, 123 from MuJoCo 3.3.3 on
IMAGE_SIZE: Final = 256  # px, of an environment to probe


@dataclass(frozen=True, slots=True)
class Reading:
    """What a probe found: ``right`` where it is the world of the published figures."""

    task: str
    right: bool
    found: str
    expected: str


def readings(env: Environment, states: Iterable[int] = range(INITIAL_STATES)) -> Iterator[Reading]:
    """Every probe, one after the other; the environment must hold every suite. SimError."""
    yield bowl_on_ramekin(env, states)
    yield floor(env)


def bowl_on_ramekin(env: Environment, states: Iterable[int] = range(INITIAL_STATES)) -> Reading:
    """Where the bowl stands after the waiting steps, seen from the ramekin: the worst state."""
    task = env.spec.task(BOWL_TASK)
    goal = parse(task.instruction)
    places = []
    for state in states:
        poses = env.reset(task.name, state, render=False).poses
        bowl = np.array(poses[find(goal, poses)].position)
        places.append(bowl - position(goal.landmarks[0], poses))
    off = 1e3 * np.linalg.norm(np.array(places)[:, :2], axis=1)
    high = 1e3 * np.array(places)[:, 2]
    wrong = int(((off > BOWL_OFF_MM) | (high > BOWL_HIGH_MM)).sum())
    return Reading(
        task.name,
        wrong == 0,
        f"the bowl stands up to {off.max():.1f} mm off the ramekin's middle and"
        f" {high.max():.1f} mm high; wrong in {wrong} of {len(places)} initial states",
        f"at most {BOWL_OFF_MM:.0f} and {BOWL_HIGH_MM:.0f} mm",
    )


def floor(env: Environment) -> Reading:
    """How bright the floor in front is: the lowest eighth of the main camera's picture."""
    task = env.spec.task(FLOOR_TASK)
    image = env.reset(task.name, 0).images[AGENTVIEW]
    level = float(image[-image.shape[0] // 8 :].mean())
    found = f"the floor's mean level is {level:.0f} of 255"
    return Reading(task.name, level > FLOOR_LEVEL, found, f"above {FLOOR_LEVEL:.0f}")
