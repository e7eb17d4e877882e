"""What LIBERO's own world shows, stored: where every object rests, and an image of each suite.

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

from vla_ros.core.types import Floats, Image
from vla_ros.sim.env import AGENTVIEW, WRIST, Environment, SimError

FOLDER: Final = Path(__file__).with_name("probes")
TABLE: Final = "settled.json"
STATES: Final = (0, 1)  # the initial states of each task that the table has
#: one task of each suite whose first state's image is stored
PICTURED: Final = (
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

Places = dict[str, tuple[float, float, float]]  # thing → where it is, in m


@dataclass(frozen=True, slots=True)
class TaskReference:
    """A task after the waiting steps: of each of ``STATES`` the things' places; an image of the
    first, as the camera has it, where one was asked for."""

    task: str
    places: tuple[Places, ...]
    image: Image | None


def look(env: Environment, task: str, picture: bool) -> TaskReference:
    """Set up a task's first initial states. SimError."""
    places, image = [], None
    for state in STATES:
        shown = picture and state == STATES[0]
        observation = env.reset(task, state, render=shown)
        if shown:
            image = observation.images[AGENTVIEW]
        poses = observation.poses
        places.append({name: poses[name].position for name in sorted(poses) if name != "gripper"})
    return TaskReference(task, tuple(places), image)


# Where objects rest.


def read_table(folder: Path = FOLDER) -> dict[str, tuple[Places, ...]]:
    """Task → places of its first states. SimError: there is none, or it is none."""
    path = folder / TABLE
    try:
        tasks = json.loads(path.read_text(encoding="utf-8"))["tasks"]
        return {task: tuple(map(_places, states)) for task, states in tasks.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SimError(f"cannot read {path}: {error}") from error


def _places(stored: Mapping[str, Sequence[int]]) -> Places:
    return {name: (x * _UNIT_M, y * _UNIT_M, z * _UNIT_M) for name, (x, y, z) in stored.items()}


def write_table(folder: Path, world: str, seen: Sequence[TaskReference]) -> None:
    """Put these tasks into the folder's table; what it has of others stays. OSError."""
    path = folder / TABLE
    tasks = json.loads(path.read_text(encoding="utf-8"))["tasks"] if path.is_file() else {}
    for one in seen:
        tasks[one.task] = [
            {name: [round(value / _UNIT_M) for value in place] for name, place in places.items()}
            for places in one.places
        ]
    compact = functools.partial(json.dumps, separators=(",", ":"))
    lines = ",\n".join(f'  "{task}": {compact(tasks[task])}' for task in sorted(tasks, key=_order))
    about = f'"world": {json.dumps(world)},\n "unit_m": {_UNIT_M},\n "states": {list(STATES)}'
    path.write_text(f'{{\n {about},\n "tasks": {{\n{lines}\n }}\n}}\n', encoding="utf-8")


def _order(task: str) -> tuple[str, int]:
    suite, index = task.split("/")
    return suite, int(index)


def farthest(seen: TaskReference, expected: Sequence[Places]) -> tuple[float, str]:
    """How far the thing that is farthest from its place is from it, in mm, and its name."""
    apart = []
    for found, wanted in zip(seen.places, expected, strict=True):
        for name in sorted(found.keys() | wanted.keys()):
            if name in found and name in wanted:
                off = np.linalg.norm(np.subtract(found[name], wanted[name]))
                apart.append((float(1e3 * off), name))
            else:
                apart.append((float("inf"), name))
    return max(apart, default=(0.0, ""))


# What the main camera shows.

SAME: Final = 1.0  # levels of 255 that an image may differ in the mean, and is the same
SLIGHT: Final = 4.0  # and is one that another renderer drew
DARKER: Final = 8.0  # levels that the floor's image is darker, from MuJoCo 3.3.3 on
_FLOOR: Final = "libero_object/0"


@dataclass(frozen=True, slots=True)
class ImageDifference:
    """Of an image to the stored one, in levels of 255."""

    task: str
    mean: float
    most: float
    brighter: float  # of the whole image; below 0: darker


def small(image: Image) -> Image:
    """An image of ``SIDE`` pixels, each the mean of those it stands for."""
    shrunk = PIL.Image.fromarray(image).resize((SIDE, SIDE), PIL.Image.Resampling.BOX)
    return np.asarray(shrunk)


def read_pictures(digest: str, folder: Path = FOLDER) -> dict[str, Image]:
    """Task → image, of the set of assets of that hash; nothing where none are stored."""
    path = folder / f"{digest}.png"
    if not path.is_file():
        return {}
    try:
        with PIL.Image.open(path) as strip:
            pixels = np.asarray(strip.convert("RGB"))
        tiles = pixels.reshape(SIDE, len(PICTURED), SIDE, 3).swapaxes(0, 1)
    except (OSError, ValueError) as error:
        raise SimError(f"cannot read {path}: {error}") from error
    return dict(zip(PICTURED, tiles, strict=True))


def write_pictures(folder: Path, digest: str, seen: Sequence[TaskReference]) -> None:
    """A strip of the images, one after the other, where all are there. OSError."""
    images = {one.task: one.image for one in seen if one.image is not None}
    if set(images) == set(PICTURED):
        strip = np.concatenate([small(images[task]) for task in PICTURED], axis=1)
        PIL.Image.fromarray(strip).save(folder / f"{digest}.png", optimize=True)


def difference(seen: TaskReference, expected: Image) -> ImageDifference:
    """Of what was seen to the stored image."""
    assert seen.image is not None
    apart: Floats = small(seen.image).astype(np.float64) - expected
    size = np.abs(apart)
    return ImageDifference(seen.task, float(size.mean()), float(size.max()), float(apart.mean()))


def verdict(found: Sequence[ImageDifference], known: bool) -> tuple[bool, str]:
    """Whether these are the right images, and in words what they are. ``known``: the assets are
    a set whose own images are stored."""
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
    """The first state of each task in a column: its suite, the main camera, the wrist's.

    OSError, ValueError: the file cannot be written, or is of no kind of image.
    """
    columns = []
    for task in tasks:
        images = env.reset(task, STATES[0]).images
        shown = np.concatenate([images[AGENTVIEW], images[WRIST]])
        column = PIL.Image.new("RGB", (shown.shape[1], shown.shape[0] + _LABEL), "white")
        column.paste(PIL.Image.fromarray(shown), (0, _LABEL))
        PIL.ImageDraw.Draw(column).text((4, 3), task, fill="black", font_size=13)
        columns.append(np.asarray(column))
    PIL.Image.fromarray(np.concatenate(columns, axis=1)).save(path, quality=85, optimize=True)
