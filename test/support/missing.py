"""Python processes in which some packages are not to be found, as where they are not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from vla_ros.ros.bringup.environment import python_path

#: What `pip install .[lab]` brings, and the lab itself.
LAB = ("vla_ros_lab", "h5py", "matplotlib")
SITE = """\
import importlib.metadata
import sys

every = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **which: [
    point for point in every(**which) if point.value.partition(".")[0] not in {names!r}
]

class Missing:
    names = {names!r}

    def find_spec(self, name, path=None, target=None):
        if any(name == gone or name.startswith(gone + ".") for gone in self.names):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def without(
    folder: Path, names: Iterable[str], env: dict[str, str] | None = None
) -> dict[str, str]:
    """An environment whose Python processes, and theirs, find none of the packages ``names``.

    ``folder`` gets the file that does it: Python imports sitecustomize at its start.
    """
    (folder / "sitecustomize.py").write_text(SITE.format(names=tuple(names)), encoding="utf-8")
    env = dict(os.environ if env is None else env)
    return {**env, "PYTHONPATH": os.pathsep.join([str(folder), python_path(env)])}


def import_without(folder: Path, modules: Iterable[str], names: Iterable[str]) -> None:
    """Import ``modules`` in a process that has none of ``names``; AssertionError if one fails."""
    code = "\n".join(f"import {module}" for module in modules)
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=without(folder, names), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
