"""Probes of a world: is it the one that LIBERO's figures belong to?

Some versions of MuJoCo run LIBERO and are another world: objects come to rest elsewhere, or
textures are darker. A policy of images then fails for no fault of its own, while nothing breaks and
an expert of poses works as before. Each probe measures one figure that differs clearly; limits lie
between the measurements of both worlds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from vla_ros.core.types import Image
from vla_ros.sim.env import Environment
from vla_ros.sim.libero import expected
from vla_ros.sim.libero.expected import Positions, TaskReference
from vla_ros.sim.libero.suites import INITIAL_STATES, find, parse, position

BOWL_TASK: Final = "libero_spatial/5"  # the black bowl on the ramekin
BOWL_OFF_MM: Final = 20.0  # 14.5 in the right world, 37.2 from MuJoCo 3.4.0 on
BOWL_HIGH_MM: Final = 40.0  # 35.1 and 43.5
FLOOR_TASK: Final = "libero_object/0"
FLOOR_LEVEL: Final = 150.0  # 179 in the right world, 123 from MuJoCo 3.3.3 on
APART_MM: Final = 5.0  # of a thing to its place in the table
IMAGE_SIZE: Final = 256  # px, of an environment to probe
_NAMED: Final = 4  # most tasks that a line names


@dataclass(frozen=True, slots=True)
class Reading:
    """Result of a probe: ``right`` in the world of the published figures."""

    task: str
    right: bool
    found: str
    expected: str


def readings(
    env: Environment,
    tasks: Sequence[str],
    digest: str,
    states: Iterable[int] = range(INITIAL_STATES),
) -> Iterator[Reading]:
    """Every probe, one after the other; the environment must hold every suite. SimError.

    ``tasks``: those of ``expected.IMAGED`` that the assets have models for. ``digest``: the
    assets' hash.
    """
    seen: list[TaskReference] = []
    for task in tasks:  # each is built once
        if task == BOWL_TASK:
            yield bowl_on_ramekin(env, states)
        seen.append(expected.observe(env, task, imaged=True))
        image = seen[-1].image
        if task == FLOOR_TASK and image is not None:
            yield floor(image)
    yield rest("a task a suite", seen, expected.read_table())
    yield images(seen, digest)


def bowl_on_ramekin(env: Environment, states: Iterable[int] = range(INITIAL_STATES)) -> Reading:
    """Position of the bowl on the ramekin after the waiting steps, in the worst state."""
    task = env.spec.task(BOWL_TASK)
    goal = parse(task.instruction)
    offsets = []
    for state in states:
        poses = env.reset(task.name, state, render=False).poses
        bowl = np.array(poses[find(goal, poses)].position)
        offsets.append(bowl - position(goal.landmarks[0], poses))
    off = 1e3 * np.linalg.norm(np.array(offsets)[:, :2], axis=1)
    high = 1e3 * np.array(offsets)[:, 2]
    wrong = int(((off > BOWL_OFF_MM) | (high > BOWL_HIGH_MM)).sum())
    return Reading(
        task.name,
        wrong == 0,
        f"the bowl stands up to {off.max():.1f} mm off the ramekin's middle and"
        f" {high.max():.1f} mm high; wrong in {wrong} of {len(offsets)} initial states",
        f"at most {BOWL_OFF_MM:.0f} and {BOWL_HIGH_MM:.0f} mm",
    )


def floor(image: Image) -> Reading:
    """Brightness of the floor in front: the lowest eighth of the main camera's image."""
    level = float(image[-image.shape[0] // 8 :].mean())
    found = f"the floor's mean level is {level:.0f} of 255"
    return Reading(FLOOR_TASK, level > FLOOR_LEVEL, found, f"above {FLOOR_LEVEL:.0f}")


def rest(
    name: str, seen: Sequence[TaskReference], table: dict[str, tuple[Positions, ...]]
) -> Reading:
    """Resting positions against the table, in the first states of each task."""
    apart = [(*expected.farthest(one, table[one.task]), one.task) for one in seen]
    off = sorted((one for one in apart if one[0] > APART_MM), reverse=True)
    far = max((one[0] for one in apart), default=0.0)
    states = len(seen) * len(expected.STATES)
    found = f"things rest up to {far:.1f} mm from the table's places; {states} states"
    if off:
        named = ", ".join(f"{task} {thing} {mm:.1f} mm" for mm, thing, task in off[:_NAMED])
        more = f" and {len(off) - _NAMED} more" if len(off) > _NAMED else ""
        found += f", wrong in {len(off)} of {len(seen)} tasks: {named}{more}"
    return Reading(name, bool(seen) and not off, found, f"at most {APART_MM:.0f} mm")


def images(seen: Sequence[TaskReference], digest: str) -> Reading:
    """Images of the main camera against those of the set of assets, else of LIBERO's own."""
    stored = expected.read_images(digest)
    known = bool(stored)
    stored = stored or expected.read_images(expected.ORIGINAL)
    found = [expected.difference(one, stored[one.task]) for one in seen if one.image is not None]
    right, words = expected.verdict(found, known)
    mean, most = max(one.mean for one in found), max(one.most for one in found)
    text = f"{words}; they differ by up to {mean:.1f} levels of 255 in the mean, {most:.0f} at most"
    if not right:
        text += ": " + ", ".join(f"{one.task} {one.mean:.1f}" for one in found)
    return Reading("images", right, text, f"mean at most {expected.SLIGHT:.0f}")
