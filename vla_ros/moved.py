"""Names of modules before the rooms: they import for one release, with one warning each.

Plug-ins and scripts import these; what was the package's own business is not here. To be deleted
with the release after next.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

#: old name -> new name, below ``vla_ros``.
MOVED = {
    "action_space": "core.action_space",
    "bringup": "ros.bringup",
    "bringup.environment": "ros.bringup.environment",
    "bringup.graph_file": "ros.bringup.graph_file",
    "bringup.yaml_files": "ros.bringup.graph_file",
    "errors": "core.errors",
    "resources": "core.resources",
    "rotation": "core.rotation",
    "timing": "core.clock",
}


class MovedFinder:
    """Finds a module under its old name: the very module that the new name imports."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, old = name.partition(".")
        # No base class of importlib.abc: every process would pay for its import.
        known = package == "vla_ros" and old in MOVED
        return ModuleSpec(name, self) if known else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = "vla_ros." + MOVED[spec.name.partition(".")[2]]
        warnings.warn(f"{spec.name} is now {new}", DeprecationWarning, stacklevel=2)
        module = import_module(new)
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # the import system wrote the old name's over it


def install() -> None:
    """Let old names be found. First of all: `bringup.environment` is also a file of ros.bringup."""
    if not any(isinstance(finder, MovedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedFinder())
