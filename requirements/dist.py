"""Build dist/: sdists, and from their unpacked files the wheels, so that both are known to work.

`make dist` runs it with .venv's Python. Nothing of the checkout but the sources comes along: no
interfaces generated for another ROS 2, nothing of build/, none of the weights that only studies
need (a checkpoint without them says how to get them). The wheel of vla_ros holds compiled messages,
so it is for one CPython and one ROS 2 distro; its sdist, and both of the lab, are for any.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from over_ros import SetupError, say
from sources import LAB, ROOT, lab_files, source_files
from weights import KEPT, SHIPPED

DESCRIPTION = ("MANIFEST.in", "LICENSE", "README.md", "CMakeLists.txt")


def copy_sources(folder: Path) -> None:
    """Copy the files of vla_ros, as in a fresh clone."""
    studies = {SHIPPED / name for name in KEPT}
    sources = (path for path in source_files() if path not in studies)
    _copy((*sources, *(ROOT / name for name in DESCRIPTION)), ROOT, folder)


def copy_lab(folder: Path) -> None:
    """Copy the files of the lab, without its tests."""
    _copy(lab_files(), LAB, folder)
    shutil.copy2(ROOT / "LICENSE", folder)


def _copy(paths: Iterable[Path], root: Path, folder: Path) -> None:
    for path in paths:
        target = folder / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)


def _run(step: str, command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise SetupError(f"{step} failed:\n{tail}")


def build_sdist(out: Path, copy: Callable[[Path], None] = copy_sources) -> Path:
    """The source archive of the files that ``copy`` brings, and of no others."""
    with tempfile.TemporaryDirectory(prefix="vla_ros_sdist_") as folder:
        sources = Path(folder, "sources")
        copy(sources)
        script = (
            ["setup.py"] if copy is copy_sources else ["-c", "import setuptools as s; s.setup()"]
        )
        command = [sys.executable, *script, "--quiet", "sdist", "--formats=gztar"]
        _run("sdist", [*command, "--dist-dir", "made"], sources)
        (made,) = (sources / "made").glob("*.tar.gz")
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy2(made, out / made.name))


def build_wheel(sdist: Path, out: Path) -> Path:
    """The wheel, from the sdist alone; vla_ros's compiles the messages (a minute)."""
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
        say("building the sdists")
        sdists = [build_sdist(args.out, copy) for copy in (copy_sources, copy_lab)]
        say("building the wheels from them (compiles the messages)")
        wheels = [build_wheel(sdist, args.out) for sdist in sdists]
    except SetupError as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1
    for made in (*sdists, *wheels):
        print(
            f"{made.relative_to(Path.cwd()) if made.is_relative_to(Path.cwd()) else made}"
            f"  {made.stat().st_size / 1e6:.1f} MB"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
