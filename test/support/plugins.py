"""Packages, installed into a folder of their own and nowhere else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "example_policy"

#: for :func:`offer`, with the entry point ``late = late:Late``: inference lasts ``takes_s``
LATE = """
import time

import numpy as np

from vla_ros.core.types import Inference, PolicyInfo


class Late:
    info = PolicyInfo(name="late")

    def __init__(self, spec):
        self._takes_s = float(spec.options["takes_s"])

    def reset(self, instruction):
        pass

    def step(self, observation, timeline, clock):
        time.sleep(self._takes_s)
        action = np.array([[0.0] * 6 + [1.0]])
        return Inference(observation.stamp_ns, action, timeline.mark("decode", clock.steady_ns()))
"""


def install(package: Path, scratch: Path, *folders: str) -> Path:
    """pip install it; returns the folder that has to be on the path."""
    target = scratch / "site"
    source = scratch / "source"  # pip builds in the sources, which are the checkout's
    names = ("pyproject.toml", *(path.name for path in package.glob("*.py")), *folders)
    for name in names:
        copy = shutil.copytree if (package / name).is_dir() else shutil.copy2
        source.mkdir(parents=True, exist_ok=True)
        copy(package / name, source / name)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--target", str(target), str(source)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=120)
    return target


def offer(site: Path, name: str, body: str, *more: str) -> None:
    """A package without an installer: module NAME with this body, entry points ``more``."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{name}.py").write_text(body)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "\n".join(more or (f"{name} = {name}:make",))
    (info / "entry_points.txt").write_text(f"[vla_ros.policies]\n{lines}\n")
