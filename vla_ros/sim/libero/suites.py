"""LIBERO's suites and tasks: names, sentences, step limits. Needs only the package's files.

A task is called `libero_object/3`, its suite and its place in it, or by the name of its BDDL
file, or, where the environment holds one suite, just `3`.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from vla_ros.sim.env import SimError, Task

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
INITIAL_STATES: Final = 50  # of every task

NOT_INSTALLED: Final = "LIBERO is not installed: run `make libero` in the checkout"
_TASK_MAP: Final = "benchmark/libero_suite_task_map.py"
_SCENE: Final = re.compile(r"^[A-Z_]+_SCENE\d+_")


@dataclass(frozen=True, slots=True)
class LiberoTask:
    """One task of the benchmark; ``name`` is that of its BDDL and initial-state files."""

    suite: str
    index: int
    name: str

    @property
    def key(self) -> str:
        """Suite and index, such as `libero_object/3`."""
        return f"{self.suite}/{self.index}"

    @property
    def instruction(self) -> str:
        """What the benchmark calls ``task.language``: the file's name in words.

        It differs from the sentence in the BDDL file; evaluations use this one.
        """
        return _SCENE.sub("", self.name).replace("_", " ")

    def bddl_file(self, package: Path) -> Path:
        return package / "bddl_files" / self.suite / f"{self.name}.bddl"

    def states_file(self, package: Path) -> Path:
        """The fixed initial states; read them with :func:`arrays.load_states`."""
        return package / "init_files" / self.suite / f"{self.name}.pruned_init"

    def as_task(self, one_suite: bool) -> Task:
        """The same in the words of the protocol."""
        aliases = (self.name, str(self.index)) if one_suite else (self.name,)
        limit = STEP_LIMITS[self.suite]
        return Task(self.key, self.instruction, INITIAL_STATES, limit, aliases)


def find_package() -> Path:
    """The folder libero/libero of the installed package, without importing it (that would
    ask questions). SimError says how to install it."""
    spec = importlib.util.find_spec("libero")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        package = Path(place) / "libero"
        if (package / _TASK_MAP).is_file():
            return package
    raise SimError(NOT_INSTALLED)


def tasks_of(suite: str, package: Path) -> tuple[LiberoTask, ...]:
    """The tasks of a suite in the benchmark's order; of every suite where ``suite`` is ''."""
    if suite and suite not in SUITES:
        raise SimError(f"LIBERO has no suite '{suite}'; it has: {', '.join(SUITES)}")
    names = _task_map(package / _TASK_MAP)
    return tuple(
        LiberoTask(wanted, index, name)
        for wanted in ((suite,) if suite else SUITES)
        for index, name in enumerate(names[wanted])
    )


@functools.cache
def _task_map(path: Path) -> Mapping[str, tuple[str, ...]]:
    """The dictionary that the package keeps in a Python file, read without running it."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        value = next(node.value for node in tree.body if isinstance(node, ast.Assign))
        lists = ast.literal_eval(value)
        return {suite: tuple(map(str, lists[suite])) for suite in SUITES}
    except (OSError, SyntaxError, ValueError, StopIteration, KeyError, TypeError) as error:
        raise SimError(f"{path} is not LIBERO's list of tasks: {error}") from error
