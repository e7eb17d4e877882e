"""Files that want to hang their reader or fill its memory, and a reader with limits of its own."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

GB = 1 << 30
#: Special files and one of gigabytes under a name of a file that is read.
SPECIAL: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a directory": Path.mkdir,
    "300 GB of nothing": lambda path: (path.touch(), os.truncate(path, 300 * GB)),
}


def laughs(count: int = 10, levels: int = 9) -> str:
    """YAML of a line a level, each of ``count`` times what the line before it means."""
    lines = ["a0: &a0 lol"]
    for level in range(1, levels + 1):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * count)}]")
    return "\n".join(lines) + "\n"


def bounded(
    program: str, *arguments: object, given: str = "", memory: int = 3 * GB, cpu_s: int = 60
) -> str:
    """What a Python program prints, ``given`` at its input, in a process that has so much memory
    (address space) and so many seconds of a processor, however busy the machine is.
    AssertionError: it did not end by itself, and well."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        input=given,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: _limit(memory, cpu_s),
        timeout=170,
    )
    assert done.returncode == 0, f"it ended with {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


def _limit(memory: int, cpu_s: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
