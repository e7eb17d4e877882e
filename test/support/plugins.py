"""Packages that offer a policy, installed into a folder of their own and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "example_policy"


def install(package: Path, scratch: Path) -> Path:
    """pip install it; returns the folder that has to be on the path."""
    target = scratch / "site"
    source = scratch / "source"  # pip builds in the sources, which are the documentation
    source.mkdir(parents=True)
    for file in package.iterdir():
        if file.is_file():
            (source / file.name).write_bytes(file.read_bytes())
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
