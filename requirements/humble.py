"""Set up .venv-humble for `make test-humble`: Python 3.10 and NumPy 1.26, which JetPack 6 and ROS 2
Humble have, and no ROS: there are no wheels of Humble's. Run it with a Python 3.10.

The versions are those of the lock file for 3.10 but for NumPy's. torch is left out (PyPI's brings
gigabytes of CUDA) unless --torch says what to ask pip for. Standard library only.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from pathlib import Path

import over_ros
from environment import Venv
from over_ros import SetupError, say
from sources import DEFAULT_ROS, EXTRAS, LAB, ROOT, digest, lab_files, lab_requirements, lock_file

VERSION = (3, 10)
NUMPY = "numpy==1.26.4"


def constraints(lock: str) -> list[str]:
    """A lock file's versions, with JetPack's NumPy; without hashes, which pip wants of all."""
    pins = re.findall(r"^(\S+==\S+)", lock, re.MULTILINE)
    return [pin for pin in pins if not pin.startswith(("numpy==", "ros-"))] + [NUMPY]


def install(venv: Venv, torch: list[str]) -> None:
    """What the tests without ROS need, and the checkout's package by a link."""
    setup, lock = ROOT / "setup.py", lock_file(DEFAULT_ROS, VERSION)
    wanted = [
        asked
        for asked in (*over_ros.requirements(setup, EXTRAS), *lab_requirements())
        if re.split(r"[\[<>=~;! ]", asked)[0] not in over_ros.MACHINES_OWN
    ]
    key = digest([setup, lock, Path(__file__).resolve(), *lab_files()], *torch)
    if venv.remembered("requirements") == key:
        return
    say("installing what the tests without ROS need, with NumPy 1.26 (a few minutes)")
    file = venv.folder / "constraints.txt"
    file.write_text("".join(f"{pin}\n" for pin in constraints(lock.read_text())))
    venv.pip("--quiet", "-c", str(file), "setuptools", "wheel", *wanted)
    if torch:
        venv.pip("--quiet", "-c", str(file), *torch)
    package = next(venv.folder.glob("lib/python3*/site-packages")) / "vla_ros"
    package.unlink(missing_ok=True)
    package.symlink_to(ROOT / "vla_ros")
    venv.pip("--quiet", "--no-deps", "--no-build-isolation", str(LAB))
    venv.remember("requirements", key)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--torch", type=shlex.split, default=[], help="what to ask pip for")
    args = parser.parse_args()
    try:
        if sys.version_info[:2] != VERSION:
            raise SetupError(f"run it with Python {VERSION[0]}.{VERSION[1]}: make test-humble")
        venv = Venv(args.venv.absolute(), "humble")
        venv.create()
        install(venv, args.torch)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
