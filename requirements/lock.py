"""Write the lock file: every package that setup.py's extras need, with the hash of its file.

`make lock` runs it with the Python the file is for. It only asks the index (nothing is
installed), leaves torch and its CUDA packages out (requirements/torch.txt), and writes no
address of an index.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from install import EXTRAS, LOCK, ROOT, TORCH

NOT_LOCKED = re.compile(r"(torch|triton|nvidia-.*|cuda-.*|vla[-_]ros)$")
PINS = TORCH.with_name("pins.txt")
HEADER = """\
# Written by `make lock` from the extras in setup.py; do not edit. CPython 3.11, x86_64 Linux.
# torch and what its CUDA build needs are in torch.txt.
"""


def resolve() -> list[dict]:
    """What pip would install into an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        wanted = f"{ROOT}[{','.join(('ros', *EXTRAS))}]"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
        command += ["--quiet", "--no-build-isolation"]
        command += ["-c", str(TORCH), "-c", str(PINS), "--report", str(report)]
        command += [wanted, "setuptools", "wheel"]
        subprocess.run(command, check=True)
        return json.loads(report.read_text())["install"]


def main() -> int:
    lines = []
    for package in resolve():
        name = re.sub(r"[-_.]+", "-", package["metadata"]["name"]).lower()
        if NOT_LOCKED.fullmatch(name):
            continue
        sha256 = package["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name}=={package['metadata']['version']} --hash=sha256:{sha256}\n")
    LOCK.write_text(HEADER + "".join(sorted(lines)))
    print(f"{LOCK.relative_to(ROOT)}: {len(lines)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
