"""References of LIBERO's own world: resting positions of every object, and an image of each suite.

`vla-ros libero probe --write DIR` writes both from a machine; ``probes/`` holds what it wrote under
LIBERO's MuJoCo, with EGL on a CPU: ``settled.json`` for every task, and a strip of small images
for each known set of assets, called by the set's hash. Objects rest alike with every set of assets,
images do not.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import PIL.Image
import PIL.ImageDraw

from vla_ros.core.files import read_json
from vla_ros.core.types import Floats, Image
from vla_ros.sim.env import AGENTVIEW, WRIST, Environment, SimError

FOLDER: Final = Path(__file__).with_name("probes")
TABLE: Final = "settled.json"
STATES: Final = (0, 1)  # the initial states of each task that the table has
#: one task of each suite whose first state's image is stored
IMAGED: Final = (
    "libero_spatial/5",
    "libero_object/0",
    "libero_goal/0",
    "libero_10/0",
    "libero_90/0",
)
SIDE: Final = 64  # px, of a stored image: edges that renderers draw otherwise are averaged
#: the benchmark's own set, to which an unknown one is compared
ORIGINAL: Final = "5e0fb470c55e"
_UNIT_M: Final = 1e-4

Positions = dict[str, tuple[float, float, float]]  # object → m


@dataclass(frozen=True, slots=True)
class TaskReference:
    """A task after the waiting steps: of each of ``STATES`` the objects' positions; the camera's
    image of the first, where one was asked for."""

    task: str
    positions: tuple[Positions, ...]
    image: Image | None


def observe(env: Environment, task: str, imaged: bool) -> TaskReference:
    """Reference of a task by its first initial states in ``env``. SimError."""
    positions, image = [], None
    for state in STATES:
        rendered = imaged and state == STATES[0]
        observation = env.reset(task, state, render=rendered)
        if rendered:
            image = observation.images[AGENTVIEW]
        poses = observation.poses
        objects = sorted(name for name in poses if name != "gripper")
        positions.append({name: poses[name].position for name in objects})
    return TaskReference(task, tuple(positions), image)


# Resting positions.


def read_table(folder: Path = FOLDER) -> dict[str, tuple[Positions, ...]]:
    """Positions of the first states by task. SimError: there is no table, or it is none."""
    path = folder / TABLE
    try:
        tasks = read_json(path)["tasks"]
        return {task: tuple(map(_positions, states)) for task, states in tasks.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SimError(f"cannot read {path}: {error}") from error


def _positions(stored: Mapping[str, Sequence[int]]) -> Positions:
    return {name: (x * _UNIT_M, y * _UNIT_M, z * _UNIT_M) for name, (x, y, z) in stored.items()}


def write_table(folder: Path, world: str, seen: Sequence[TaskReference]) -> None:
    """Put these tasks into the folder's table; what it has of others stays. OSError."""
    path = folder / TABLE
    tasks = read_json(path)["tasks"] if path.is_file() else {}
    for one in seen:
        tasks[one.task] = [
            {name: [round(value / _UNIT_M) for value in at] for name, at in positions.items()}
            for positions in one.positions
        ]
    compact = functools.partial(json.dumps, separators=(",", ":"))
    lines = ",\n".join(f'  "{task}": {compact(tasks[task])}' for task in sorted(tasks, key=_order))
    about = f'"world": {json.dumps(world)},\n "unit_m": {_UNIT_M},\n "states": {list(STATES)}'
    path.write_text(f'{{\n {about},\n "tasks": {{\n{lines}\n }}\n}}\n', encoding="utf-8")


def _order(task: str) -> tuple[str, int]:
    suite, index = task.split("/")
    return suite, int(index)


def farthest(seen: TaskReference, expected: Sequence[Positions]) -> tuple[float, str]:
    """Largest distance of an object from its reference, in mm, and its name."""
    apart = []
    for found, wanted in zip(seen.positions, expected, strict=True):
        for name in sorted(found.keys() | wanted.keys()):
            if name in found and name in wanted:
                off = np.linalg.norm(np.subtract(found[name], wanted[name]))
                apart.append((float(1e3 * off), name))
            else:
                apart.append((float("inf"), name))
    return max(apart, default=(0.0, ""))


# Images of the main camera.

SAME: Final = 1.0  # levels of 255 that an image may differ in the mean, and is the same
SLIGHT: Final = 4.0  # and is one that another renderer drew
DARKER: Final = 8.0  # levels that the floor's image is darker, from MuJoCo 3.3.3 on
_FLOOR: Final = "libero_object/0"


@dataclass(frozen=True, slots=True)
class ImageDifference:
    """Difference of an image to the stored one, in levels of 255."""

    task: str
    mean: float
    most: float
    brighter: float  # of the whole image; below 0: darker


def small(image: Image) -> Image:
    """An image of ``SIDE`` pixels, each the mean of those it stands for."""
    shrunk = PIL.Image.fromarray(image).resize((SIDE, SIDE), PIL.Image.Resampling.BOX)
    return np.asarray(shrunk)


def read_images(digest: str, folder: Path = FOLDER) -> dict[str, Image]:
    """Images by task, of the set of assets of that hash; none where none are stored."""
    path = folder / f"{digest}.png"
    if not path.is_file():
        return {}
    try:
        with PIL.Image.open(path) as strip:
            pixels = np.asarray(strip.convert("RGB"))
        tiles = pixels.reshape(SIDE, len(IMAGED), SIDE, 3).swapaxes(0, 1)
    except (OSError, ValueError) as error:
        raise SimError(f"cannot read {path}: {error}") from error
    return dict(zip(IMAGED, tiles, strict=True))


def write_images(folder: Path, digest: str, seen: Sequence[TaskReference]) -> None:
    """Write the images side by side, where all are there. OSError."""
    images = {one.task: one.image for one in seen if one.image is not None}
    if set(images) == set(IMAGED):
        strip = np.concatenate([small(images[task]) for task in IMAGED], axis=1)
        PIL.Image.fromarray(strip).save(folder / f"{digest}.png", optimize=True)


def difference(seen: TaskReference, expected: Image) -> ImageDifference:
    """Difference of a task's image to the stored one."""
    assert seen.image is not None
    apart: Floats = small(seen.image).astype(np.float64) - expected
    size = np.abs(apart)
    return ImageDifference(seen.task, float(size.mean()), float(size.max()), float(apart.mean()))


def verdict(found: Sequence[ImageDifference], known: bool) -> tuple[bool, str]:
    """Verdict on images: whether they are right, and in words what they are. ``known``: the assets
    are a set whose own images are stored."""
    worst = max(found, key=lambda one: one.mean)
    if worst.mean <= SAME:
        return True, "the same images"
    if worst.mean <= SLIGHT:
        return True, "the renderer draws slightly otherwise"
    dark = [one for one in found if one.task == _FLOOR and one.brighter < -DARKER]
    others = [one for one in found if one not in dark]
    if dark and all(one.mean <= SLIGHT for one in others):
        return False, "the floor is darker: another version of MuJoCo"
    if not known:
        return False, "other assets than LIBERO's own"
    return False, "other images: another version of MuJoCo, or a renderer that fails"


# An image of every suite, for people.

_LABEL: Final = 20  # px above each column


def draw(env: Environment, tasks: Sequence[str], path: Path) -> None:
    """Draw the first state of each task in a column: its suite, the main camera, the wrist's.

    OSError, ValueError: the file cannot be written, or is of no kind of image.
    """
    columns = []
    for task in tasks:
        images = env.reset(task, STATES[0]).images
        both = np.concatenate([images[AGENTVIEW], images[WRIST]])
        column = PIL.Image.new("RGB", (both.shape[1], both.shape[0] + _LABEL), "white")
        column.paste(PIL.Image.fromarray(both), (0, _LABEL))
        PIL.ImageDraw.Draw(column).text((4, 3), task, fill="black", font_size=13)
        columns.append(np.asarray(column))
    PIL.Image.fromarray(np.concatenate(columns, axis=1)).save(path, quality=85, optimize=True)
