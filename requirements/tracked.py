"""Whether what git tracks stays small: no file over 500 kB but shipped weights, 48 MB in all; and
that none holds an unsolved merge.

`make check` runs it; standard library only. Reports and episodes are made by the commands of
benchmarks/README.md, and the weights of studies are brought back by weights.py.
"""

from __future__ import annotations

import subprocess
import sys

from sources import ROOT

FILE = 500_000  # bytes
ALL = 48_000_000
WEIGHTS = "vla_ros/shipped/", ".safetensors"


def sizes() -> dict[str, int] | None:
    """The size of each tracked file that is there, in bytes. None: this is no clone."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    paths = {name: ROOT / name for name in listed.split("\0") if name}
    return {name: path.lstat().st_size for name, path in paths.items() if path.exists()}


def problems(files: dict[str, int]) -> list[str]:
    """What is too large, a line each."""
    folder, ending = WEIGHTS
    large = {
        name: size
        for name, size in files.items()
        if size > FILE and not (name.startswith(folder) and name.endswith(ending))
    }
    found = [f"{name} has {size / 1e3:.0f} kB, more than 500" for name, size in large.items()]
    total = sum(files.values())
    return found + (
        [f"all files have {total / 1e6:.1f} MB, more than {ALL / 1e6:.0f}"] if total > ALL else []
    )


def unmerged() -> list[str]:
    """Files with git's marks of a conflict, a line each."""
    command = ["git", "-C", str(ROOT), "grep", "-lE", "^(<{7}|>{7}) "]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return [f"{name} holds an unsolved merge" for name in listed.splitlines()]


def main() -> int:
    files = sizes()
    if files is None:
        print("tracked files: no git clone, not checked")
        return 0
    found = problems(files) + unmerged()
    for line in found:
        print(f"tracked files: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
