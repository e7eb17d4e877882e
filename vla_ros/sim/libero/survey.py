"""What of LIBERO is installed, and what a task needs that a folder of assets lacks."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from vla_ros.sim.env import SimError
from vla_ros.sim.libero.suites import LiberoTask

#: what is installed without its dependencies (requirements/libero.txt) → its import
BENCHMARK: Final = {"hf-libero": "libero", "robosuite": "robosuite", "bddl": "bddl"}
#: what those import, as the extra `libero` of setup.py has it → its import
DEPENDENCIES: Final = {
    "mujoco": "mujoco",
    "scipy": "scipy",
    "numba": "numba",
    "opencv-python-headless": "cv2",
    "easydict": "easydict",
    "cloudpickle": "cloudpickle",
    "gymnasium": "gymnasium",
    "future": "future",
    "termcolor": "termcolor",
    "matplotlib": "matplotlib",
    "tqdm": "tqdm",
}
#: arenas that a task's file lists among its fixtures
_ARENAS: Final = {
    "table",
    "kitchen_table",
    "living_room_table",
    "study_table",
    "coffee_table",
    "floor",
}
_SECTION: Final = re.compile(r"\(:(?:objects|fixtures)\b(.*?)\)", re.DOTALL)
_CATEGORY: Final = re.compile(r"-\s+([^\s()]+)")


def missing_packages() -> tuple[str, ...]:
    """Packages that LIBERO imports and that are not installed, by their names for pip."""
    wanted = {**BENCHMARK, **DEPENDENCIES}
    return tuple(name for name, module in wanted.items() if not _found(module))


def _found(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def version(package: str) -> str:
    """As installed, or 'unknown'."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def categories(bddl: Path) -> frozenset[str]:
    """The kinds of object a task's BDDL file names. SimError: the file cannot be read."""
    try:
        text = bddl.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SimError(f"cannot read {bddl}: {error}") from error
    named = {kind for section in _SECTION.findall(text) for kind in _CATEGORY.findall(section)}
    return frozenset(named - _ARENAS)


def missing_objects(tasks: Iterable[LiberoTask], package: Path, assets: Path) -> tuple[str, ...]:
    """Kinds of object that the tasks need and the assets have no model of, sorted."""
    there = _models(assets)
    needed = {kind for task in tasks for kind in categories(task.bddl_file(package))}
    return tuple(sorted(needed - there))


@functools.cache
def _models(assets: Path) -> frozenset[str]:
    return frozenset(path.stem for path in assets.rglob("*.xml"))
