"""Write lock files: all packages that setup.py's extras and the lab need, with their hashes.

`make lock` writes the one of .venv's Python; `make lock PYTHONS="3.10 3.12"` those of others,
which need not be installed. It only asks the index (nothing is installed), leaves torch and its
CUDA packages out (requirements/torch.txt), and writes no address of an index. uv does the
resolving: it reads the index's metadata, where pip downloads whole packages.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename
from sources import (
    DEFAULT_ROS,
    EXTRAS,
    PINS,
    ROOT,
    ROS_EXTRAS,
    TORCH,
    lab_requirements,
    lock_file,
)

try:
    import tomllib
except ImportError:  # Python 3.10
    sys.exit("lock: this needs Python 3.11 or newer to run; it writes the files of any Python")

NOT_LOCKED = re.compile(r"(torch|triton|nvidia-.*|cuda-.*|vla[-_]ros)$")
HEADER = """\
# Written by `make lock` from the extras in setup.py; do not edit. ROS 2 {ros}, CPython {version},
# x86_64 Linux. torch and what its CUDA build needs are in torch.txt.
"""
SECTION = re.compile(r"\[(?P<extra>[^:\]]*):?(?P<marker>[^\]]*)\]")
GLIBC = range(45, 4, -1)  # minor versions of glibc 2 that a wheel may be built for
Version = tuple[int, int]


def requirements(requires_txt: str, extras: tuple[str, ...]) -> list[str]:
    """What a package and some of its extras ask for, from its egg-info's requires.txt."""
    wanted, marker, found = True, "", []
    for line in filter(None, map(str.strip, requires_txt.splitlines())):
        if section := SECTION.fullmatch(line):
            wanted = section["extra"] in ("", *extras)
            marker = section["marker"]
        elif wanted:
            found.append(f"{line}; {marker}" if marker else line)
    return found


def asked_for(ros: str) -> list[str]:
    """setup.py's requirements, from a run of it (it is a program, not a list), and the lab's."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", folder]
        subprocess.run(command, check=True, cwd=ROOT)
        (requires,) = Path(folder).glob("*.egg-info/requires.txt")
        asked = requirements(requires.read_text(), (ROS_EXTRAS[ros], *EXTRAS))
        return [*asked, *lab_requirements()]


def usable_tags(version: Version) -> set[Tag]:
    """Wheels that a CPython on x86_64 Linux with glibc can install."""
    old = ("manylinux2014", "manylinux2010", "manylinux1", "linux")
    platforms = [f"{name}_x86_64" for name in (*(f"manylinux_2_{n}" for n in GLIBC), *old)]
    interpreter = f"cp{version[0]}{version[1]}"
    return {
        *cpython_tags(version, platforms=platforms),
        *compatible_tags(version, interpreter=interpreter, platforms=platforms),
    }


def hashes(package: dict, tags: set[Tag]) -> list[str]:
    """sha256 of the wheels that fit; of the source where there is none."""
    wheels = package.get("wheels", [])
    fitting = [w for w in wheels if parse_wheel_filename(name_of(w))[3] & tags]
    if not fitting and "sdist" in package:
        fitting = [package["sdist"]]
    if not fitting:
        raise SystemExit(
            f"lock: {package['name']} {package['version']} has no file for this Python"
        )
    return sorted({file["hashes"]["sha256"] for file in fitting})


def name_of(file: dict) -> str:
    return file.get("name") or file["url"].rsplit("/", 1)[-1]


def resolve(version: Version, wanted: list[str]) -> list[dict]:
    """What an empty environment of one Python would get: pylock.toml's packages (PEP 751)."""
    with tempfile.TemporaryDirectory() as folder:
        asked, lock = Path(folder, "requirements.in"), Path(folder, "pylock.toml")
        asked.write_text("\n".join([*wanted, "setuptools", "wheel"]))
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", str(asked)]
        command += ["--python-version", f"{version[0]}.{version[1]}", "-o", str(lock)]
        command += ["--python-platform", "x86_64-manylinux_2_28"]
        command += ["-c", str(TORCH), "-c", str(PINS)]
        certificates = os.environ.get("PIP_CERT")  # uv reads none of pip's settings
        env = {**os.environ, **({"SSL_CERT_FILE": certificates} if certificates else {})}
        subprocess.run(command, check=True, env=env)
        return tomllib.loads(lock.read_text())["packages"]


def lines(version: Version, packages: list[dict]) -> Iterator[str]:
    """One line a package, as pip's --require-hashes reads it."""
    tags = usable_tags(version)
    for package in sorted(packages, key=lambda package: package["name"]):
        if NOT_LOCKED.fullmatch(package["name"]):
            continue
        wanted = " ".join(f"--hash=sha256:{sha256}" for sha256 in hashes(package, tags))
        yield f"{package['name']}=={package['version']} {wanted}\n"


def parse_version(text: str) -> Version:
    """ "3.10" and "python3.10" → (3, 10)."""
    if not (found := re.fullmatch(r"(?:python)?(3)\.(\d+)", text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no Python: say 3.10 or python3.10")
    return int(found[1]), int(found[2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="*", type=parse_version, metavar="PYTHON")
    parser.add_argument("--ros", choices=ROS_EXTRAS, default=DEFAULT_ROS)
    args = parser.parse_args()
    wanted = asked_for(args.ros)
    for version in args.pythons or [sys.version_info[:2]]:
        path = lock_file(args.ros, version)
        header = HEADER.format(ros=args.ros.capitalize(), version=f"{version[0]}.{version[1]}")
        body = list(lines(version, resolve(version, wanted)))
        path.write_text(header + "".join(body))
        print(f"{path.relative_to(ROOT)}: {len(body)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
