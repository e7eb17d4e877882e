"""Print the path of a CPython of one version: `find_python.py 3.10`. Status 1 where there is none.

On PATH, then among pyenv's and uv's, which are often installed and not on PATH; each candidate is
run, since pyenv leaves a name on PATH that only says that it is not chosen. Nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PROBE = (
    "import ensurepip, sys; print(sys.implementation.name, *sys.version_info[:2], sys.executable)"
)


def candidates(version: str) -> Iterator[str]:
    """Where that Python may be, best first."""
    name = f"python{version}"
    if found := shutil.which(name):
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")
    for folder in (pyenv / "versions", uv):
        yield from map(str, sorted(folder.glob(f"*/bin/{name}"), reverse=True))


def find_python(version: str) -> str:
    """The first that runs and can make environments; "" if none does."""
    for path in candidates(version):
        try:
            done = subprocess.run([path, "-c", PROBE], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout.split()[:3] == ["cpython", *version.split(".")]:
            return done.stdout.split(maxsplit=3)[3].strip()
    return ""


def main() -> int:
    found = find_python(sys.argv[1])
    if found:
        print(found)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
