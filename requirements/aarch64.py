"""Set up build/aarch64 for `make test-arm`: Debian of ARM in a folder, run by QEMU, with PyPI's
aarch64 wheels in the lock file's versions, and torch. No ROS: there are no wheels of it for ARM.

Needs root on Debian or Ubuntu with debootstrap and qemu-user-static. Wheels are unpacked by this
machine's own pip, since QEMU takes ten times as long. Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from over_ros import SetupError, say
from sources import DEFAULT_ROS, ROOT, digest, lock_file
from tracked import sizes

RELEASE, VERSION = "bookworm", (3, 11)  # Debian's, and its Python
FOLDER = ROOT / "build" / "aarch64"
SITE = FOLDER / "opt" / "site-packages"
SOURCE = FOLDER / "src"
TORCH = "torch==2.10.0"  # PyPI's last for ARM that does without CUDA's libraries
PLATFORMS = ("manylinux2014_aarch64", *(f"manylinux_2_{n}_aarch64" for n in range(17, 37)))
#: without a wheel for ARM, or of no use without ROS and a screen
LEFT_OUT = ("ros-", "empy", "mypy", "ruff", "import-linter", "grimp", "viser", "rerun-sdk")


def debian() -> None:
    """Debian's smallest system of arm64, with its Python."""
    if (FOLDER / "usr" / "bin" / "python3.11").exists():
        return
    missing = [n for n in ("debootstrap", "qemu-aarch64-static") if shutil.which(n) is None]
    if missing or os.geteuid():
        raise SetupError(
            "an emulated ARM needs root, debootstrap and qemu-user-static:"
            " apt-get install debootstrap qemu-user-static"
        )
    say("setting up Debian of arm64 in build/aarch64 (some minutes)")
    packages = "python3,python3-distutils,python3-pip,ca-certificates,libgomp1,make"
    command = ["debootstrap", "--arch=arm64", "--variant=minbase", f"--include={packages}", RELEASE]
    subprocess.run([*command, str(FOLDER)], check=True)
    beside = FOLDER / "usr" / "lib" / "python3" / "dist-packages" / "beside.pth"
    beside.write_text("/opt/site-packages\n")


def pins(lock: str) -> list[str]:
    """A lock file's versions that have wheels for ARM, and torch's."""
    found = re.findall(r"^(\S+==\S+)", lock, re.MULTILINE)
    return [*(pin for pin in found if not pin.startswith(LEFT_OUT)), TORCH]


def wheels() -> None:
    """The wheels, unpacked; what has none is named and left out."""
    lock = lock_file(DEFAULT_ROS, VERSION)
    key, done = digest([lock, Path(__file__).resolve()]), SITE / ".installed"
    if done.exists() and done.read_text() == key:
        return
    say("unpacking PyPI's wheels for ARM (a few minutes)")
    shutil.rmtree(SITE, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--only-binary=:all:")
    platforms = [o for name in PLATFORMS for o in ("--platform", name)]
    command = [*pip, "--target", str(SITE), *platforms, "--python-version", "3.11"]
    without = [pin for pin in pins(lock.read_text()) if subprocess.run([*command, pin]).returncode]
    if without:
        say(f"no wheel for ARM, left out: {', '.join(without)}")
    for package, place in (("vla_ros", "/src/vla_ros"), ("vla_ros_lab", "/src/lab/vla_ros_lab")):
        (SITE / package).symlink_to(place)
    done.write_text(key)


def sources() -> None:
    """What git tracks here, as it stands."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for path in sizes() or ():
        target = SOURCE / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target, follow_symlinks=False)


def main() -> int:
    try:
        debian()
        wheels()
        sources()
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
