"""Origin of figures: version, commit and machine, each one line."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path

from vla_ros.core.resources import share, version

_CODE = (".", ":(exclude)benchmarks")  # results are no code


def commit() -> str:
    """The commit of the checkout that runs, and whether it was changed; "" outside of one."""
    try:
        root = share()
        top = _git(root, "rev-parse", "--show-toplevel")
        if Path(top).resolve() != root.resolve():
            return ""  # installed inside somebody else's checkout
        found = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", *_CODE)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{found}, with uncommitted changes" if changed else found


@cache
def code() -> str:
    """Version of the package, with its commit where there is one.

    Looked up once, before a command writes anything: what it keeps in its own checkout does not
    change the code that ran.
    """
    found = commit()
    return f"vla_ros {version()}" + (f", commit {found}" if found else "")


def processor() -> str:
    """The name of the processor, as Linux knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def machine(device: str = "cpu") -> str:
    """This machine: processor, CPUs it may use, the GPU when one is used, system, Python."""
    parts = [processor(), f"{len(os.sched_getaffinity(0))} CPUs"]
    if device.startswith("cuda"):
        import torch

        if torch.cuda.is_available():
            parts.append(torch.cuda.get_device_name(torch.device(device)))
    system = f"{platform.system()} {platform.release()}"
    return ", ".join([*parts, system, f"Python {platform.python_version()}"])


def _git(folder: Path, *command: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *command], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
