"""Build dist/: the sdist, and from its unpacked files the wheel, so that both are known to work.

`make dist` runs it with .venv's Python. Nothing of the checkout but the sources comes along: no
interfaces generated for another ROS 2, nothing of build/, none of the weights that only studies
need (a checkpoint without them says how to get them). The wheel holds compiled messages, so it is
for one CPython and one ROS 2 distro; the sdist is for any.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from over_ros import SetupError, say
from sources import ROOT, source_files
from weights import KEPT, SHIPPED

DESCRIPTION = ("MANIFEST.in", "LICENSE", "README.md", "CMakeLists.txt")


def copy_sources(folder: Path) -> None:
    """What the package is made of, as in a fresh clone."""
    studies = {SHIPPED / name for name in KEPT}
    sources = (path for path in source_files() if path not in studies)
    for path in (*sources, *(ROOT / name for name in DESCRIPTION)):
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)


def _run(step: str, command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise SetupError(f"{step} failed:\n{tail}")


def build_sdist(out: Path) -> Path:
    """The source archive, from the sources alone."""
    with tempfile.TemporaryDirectory(prefix="vla_ros_sdist_") as folder:
        sources = Path(folder, "sources")
        copy_sources(sources)
        command = [sys.executable, "setup.py", "--quiet", "sdist", "--formats=gztar"]
        _run("sdist", [*command, "--dist-dir", "made"], sources)
        (made,) = (sources / "made").glob("*.tar.gz")
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy2(made, out / made.name))


def build_wheel(sdist: Path, out: Path) -> Path:
    """The wheel, from the sdist alone; compiles the messages (a minute)."""
    with tempfile.TemporaryDirectory(prefix="vla_ros_wheel_") as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder)  # our own archive, made a moment ago
        (sources,) = (path for path in Path(folder).iterdir() if path.is_dir())
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
        command += ["--disable-pip-version-check", "--wheel-dir", "made", "."]
        _run("the wheel", command, sources)
        (made,) = (sources / "made").glob("*.whl")
        return Path(shutil.copy2(made, out / made.name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    args = parser.parse_args()
    try:
        say("building the sdist")
        sdist = build_sdist(args.out)
        say("building the wheel from it (compiles the messages)")
        wheel = build_wheel(sdist, args.out)
    except SetupError as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1
    for made in (sdist, wheel):
        print(
            f"{made.relative_to(Path.cwd()) if made.is_relative_to(Path.cwd()) else made}"
            f"  {made.stat().st_size / 1e6:.1f} MB"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
