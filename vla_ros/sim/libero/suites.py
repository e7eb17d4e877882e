"""LIBERO's suites and tasks: names, instructions, step limits. Needs only the package's files.

A task is called `libero_object/3`, its suite and its index in it, or by the name of its BDDL
file, or, where the environment holds one suite, just `3`.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from vla_ros.core.files import BadFile, read_text
from vla_ros.core.types import Floats, Pose
from vla_ros.sim.env import SimError, Task
from vla_ros.sim.libero.files import find_pro

#: suite → most control steps of an episode, those that wait not counted. OpenVLA's evaluation
#: (experiments/robot/libero/run_libero_eval.py) takes them from the longest demonstrations.
STEP_LIMITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "libero_spatial": 220,
        "libero_object": 280,
        "libero_goal": 300,
        "libero_10": 520,
        "libero_90": 400,
    }
)
SUITES: Final = tuple(STEP_LIMITS)
PERTURBATIONS: Final = ("swap", "object", "lan", "task")
#: LIBERO-PRO's (:mod:`vla_ros.sim.libero.pro`): the tasks of a suite, perturbed in one way
PRO_SUITES: Final = tuple(
    f"libero_{base}_{how}" for base in ("spatial", "object", "goal", "10") for how in PERTURBATIONS
)
INITIAL_STATES: Final = 50  # of every task

NOT_INSTALLED: Final = "LIBERO is not installed: run `make libero` in the checkout"
_TASK_MAP: Final = "benchmark/libero_suite_task_map.py"
_SCENE: Final = re.compile(r"^[A-Z_]+_SCENE\d+_")
_LANGUAGE: Final = re.compile(r"\(:language\s+([^()]*)\)")


@dataclass(frozen=True, slots=True)
class LiberoTask:
    """One task of the benchmark; ``name`` is that of its BDDL and initial-state files.

    ``pro``: folder of LIBERO-PRO's files, and ``language`` the instruction, of a perturbed task.
    """

    suite: str
    index: int
    name: str
    pro: Path | None = None
    language: str = ""

    @property
    def key(self) -> str:
        """Suite and index, such as `libero_object/3`."""
        return f"{self.suite}/{self.index}"

    @property
    def instruction(self) -> str:
        """The benchmark's ``task.language``: the file's name in words.

        It differs from the instruction in the BDDL file; evaluations use this one, but for a
        perturbed task, whose file keeps the name of the task that it was.
        """
        return self.language or _SCENE.sub("", self.name).replace("_", " ")

    def bddl_file(self, package: Path) -> Path:
        return (self.pro or package) / "bddl_files" / self.suite / f"{self.name}.bddl"

    def states_file(self, package: Path) -> Path:
        """The fixed initial states; read them with :func:`environment.load_states`."""
        name = f"{self.name}.pruned_init{'.npz' if self.pro else ''}"
        return (self.pro or package) / "init_files" / self.suite / name

    def as_task(self, one_suite: bool) -> Task:
        """The task in the protocol's type."""
        aliases = (self.name, str(self.index)) if one_suite else (self.name,)
        limit = STEP_LIMITS[base_of(self.suite)]
        return Task(self.key, self.instruction, INITIAL_STATES, limit, aliases)


def base_of(suite: str) -> str:
    """The suite that LIBERO-PRO's ``suite`` perturbs; another one's is itself."""
    return suite.rpartition("_")[0] if suite in PRO_SUITES else suite


def check_suite(suite: str) -> None:
    """Raise SimError unless it is a suite; '' is every suite of LIBERO itself."""
    if suite and suite not in (*SUITES, *PRO_SUITES):
        raise SimError(
            f"libero has no suite '{suite}'; there are: {', '.join(SUITES)}, and LIBERO-PRO's"
            f" libero_{{spatial,object,goal,10}}_{{{','.join(PERTURBATIONS)}}}"
        )


def find_package() -> Path:
    """The folder libero/libero of the installed package, without importing it (that would
    ask questions). SimError, with how to install it: there is none."""
    spec = importlib.util.find_spec("libero")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        package = Path(folder) / "libero"
        if (package / _TASK_MAP).is_file():
            return package
    raise SimError(NOT_INSTALLED)


def tasks_of(suite: str, package: Path) -> tuple[LiberoTask, ...]:
    """The tasks of a suite in the benchmark's order; of every suite where ``suite`` is '' (but
    LIBERO-PRO's). SimError: there is no such suite, or LIBERO-PRO's files are missing."""
    check_suite(suite)
    names = _task_map(package / _TASK_MAP)
    if suite in PRO_SUITES:
        return _perturbed(suite, names[base_of(suite)])
    return tuple(
        LiberoTask(wanted, index, name)
        for wanted in ((suite,) if suite else SUITES)
        for index, name in enumerate(names[wanted])
    )


def _perturbed(suite: str, names: tuple[str, ...]) -> tuple[LiberoTask, ...]:
    """LIBERO-PRO keeps the order and the files' names of the suite that it perturbs."""
    folder = find_pro()
    found = []
    for index, name in enumerate(names):
        bare = LiberoTask(suite, index, name, folder)
        found.append(replace(bare, language=language_of(bare.bddl_file(folder))))
    return tuple(found)


def language_of(bddl: Path) -> str:
    """Instruction of a perturbed task: that in the BDDL file, whose name is the original task's.
    SimError: it cannot be read."""
    try:
        found = _LANGUAGE.search(read_text(bddl))
    except (OSError, BadFile) as error:
        raise SimError(f"cannot read {bddl}: {error}") from error
    if found is None or not found[1].split():
        raise SimError(f"{bddl} has no instruction (:language ...)")
    return " ".join(found[1].split())


@functools.cache
def _task_map(path: Path) -> Mapping[str, tuple[str, ...]]:
    """The dictionary that the package keeps in a Python file, read without running it."""
    try:
        tree = ast.parse(read_text(path))
        value = next(node.value for node in tree.body if isinstance(node, ast.Assign))
        lists = ast.literal_eval(value)
        return {suite: tuple(map(str, lists[suite])) for suite in SUITES}
    except (OSError, SyntaxError, ValueError, StopIteration, KeyError, TypeError) as error:
        raise SimError(f"{path} is not LIBERO's list of tasks: {error}") from error


# Goals of libero_object and libero_spatial, in the names of the poses.
#
# LIBERO numbers its objects, ``plate_1``; a goal names kinds, ``plate``, and :func:`find` looks for
# the object that is meant, by its position if there are several. LIBERO-PRO's instructions are
# nearly the same: "Pick the akita black bowl on the cookies box and ...".


_KINDS = {
    "black bowl": "akita_black_bowl",
    "ramekin": "glazed_rim_porcelain_ramekin",
    "cookie box": "cookies",
    "cookies box": "cookies",
    "stove": "flat_stove",
    "cabinet": "wooden_cabinet",
}
_PICK_AND_PLACE = re.compile(
    r"pick (?:up )?the (?P<object>.+) and place it (?:in|on) the (?P<target>\w+)"
)
_WHERES = (
    (r"between the (.+) and the (.+)", "between"),
    (r"next to the (.+)", "near"),
    (r"on the top of the (.+)", "near"),
    (r"on the (.+)", "near"),
    (r"in the top (?:drawer|layer) of the (.+)", "inside"),
    (r"from table center", "center"),
)


class UnknownInstruction(ValueError):
    """The instruction asks for nothing that the expert for LIBERO can do."""


class MissingThing(ValueError):
    """The ground truth lacks an object that the instruction names."""


class ObjectChoice(str, Enum):
    """Choice among several objects of one kind."""

    ANY = "any"  # there is one only
    BETWEEN = "between"  # two landmarks
    NEAR = "near"  # next to or on a landmark
    INSIDE = "inside"  # in a drawer of a landmark, so not on top of it
    CENTRE = "center"  # of the table


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal: the ``object`` that is ``where`` among ``landmarks``, in or on the ``target``.
    Kinds."""

    object: str
    target: str
    where: ObjectChoice = ObjectChoice.ANY
    landmarks: tuple[str, ...] = ()


def parse(text: str) -> Goal:
    """The goal of an instruction. UnknownInstruction: it is none of the two suites'."""
    found = _PICK_AND_PLACE.fullmatch(" ".join(text.lower().split()).rstrip("."))
    if found is None:
        raise UnknownInstruction(
            f"cannot do {text[:200]!r}; in LIBERO the expert can do"
            " 'pick up the X and place it in the basket' or 'on the plate'"
        )
    phrase, target = found["object"], _kind(found["target"])
    for pattern, where in _WHERES:
        located = re.fullmatch(rf"(.+) {pattern}", phrase)
        if located is not None:
            thing, *landmarks = located.groups()
            return Goal(_kind(thing), target, ObjectChoice(where), tuple(map(_kind, landmarks)))
    return Goal(_kind(phrase), target)


def _kind(words: str) -> str:
    return _KINDS.get(words, words.replace(" ", "_"))


def find(goal: Goal, poses: Mapping[str, Pose]) -> str:
    """Name of the object that ``goal`` means among ``poses``; MissingThing if there is none."""
    names = _named(goal.object, poses)
    if len(names) == 1:
        return names[0]
    if goal.where is ObjectChoice.ANY:
        raise MissingThing(f"there are {', '.join(names)}: the instruction must say which one")
    if goal.where is ObjectChoice.INSIDE:
        return min(names, key=lambda name: poses[name].position[2])
    reference = np.zeros(2)
    if goal.landmarks:
        reference = np.mean([position(one, poses)[:2] for one in goal.landmarks], axis=0)
    return min(names, key=lambda name: float(np.linalg.norm(poses[name].position[:2] - reference)))


def position(kind: str, poses: Mapping[str, Pose]) -> Floats:
    """Position [3] of the first object of that kind; MissingThing if there is none."""
    return np.array(poses[_named(kind, poses)[0]].position)


def _named(kind: str, poses: Mapping[str, Pose]) -> list[str]:
    """Names of the objects of that kind; where there are none, of those that LIBERO-PRO's `_object`
    has instead: red_basket for basket, black_bowl for akita_black_bowl."""
    kinds = {name: name.rpartition("_")[0] for name in poses}
    names = sorted(name for name, of in kinds.items() if of == kind)
    if not names:
        names = sorted(name for name, of in kinds.items() if _alike(of, kind))
    if not names:
        known = ", ".join(poses) or "nothing"
        raise MissingThing(f"the ground truth has no {kind}; it has: {known}")
    return names


def _alike(one: str, other: str) -> bool:
    """True if one is the other with a word more in front."""
    shorter, longer = sorted((one, other), key=len)
    return bool(shorter) and longer.endswith(f"_{shorter}")
