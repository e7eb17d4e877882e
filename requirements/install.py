"""Set up .venv: system libraries, locked packages, torch, then this package.

Standard library only; `make` runs it with any Python 3. Each step is skipped when what it
depends on has not changed, so a second run takes a moment. It never asks a question.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import over_ros
import weights
from environment import Venv
from over_ros import SetupError, say
from sources import DEFAULT_ROS, ROOT, ROS_EXTRAS, WHEEL_PYTHONS
from system_packages import install_compilers


def check_python() -> None:
    """Refuse at once what cannot work."""
    version = sys.version_info[:2]
    if version < (3, 10):
        raise SetupError(f"Python {version[0]}.{version[1]} is too old: use PYTHON=python3.11")
    if over_ros.sourced_ros():
        return
    others = [
        python for python in over_ros.ros_pythons() if python != f"python{version[0]}.{version[1]}"
    ]
    if others:
        raise SetupError(
            f"the sourced ROS 2 {os.environ.get('ROS_DISTRO', '')} is of {' and '.join(others)},"
            f" and this is Python {version[0]}.{version[1]}: make PYTHON={others[0]} ..."
        )
    wheels = version in WHEEL_PYTHONS and sys.implementation.name == "cpython"
    if not (wheels and sys.platform == "linux" and platform.machine() == "x86_64"):
        raise SetupError(
            f"there are no ROS 2 wheels for {platform.python_implementation()}"
            f" {version[0]}.{version[1]} on {sys.platform} {platform.machine()} (only CPython 3.10"
            " to 3.13 on x86_64 Linux): use one of those, as in `make PYTHON=python3.11 ...`, or"
            " install ROS 2, `source /opt/ros/DISTRO/setup.bash`, and run make again"
            " (a Jetson: docs/how-to/jetson.md)"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument(
        "--requirements-only", action="store_true", help="not the package itself (make dev)"
    )
    parser.add_argument(
        "--ros", choices=ROS_EXTRAS, default=DEFAULT_ROS, help="whose wheels (no ROS sourced)"
    )
    parser.add_argument("--libero", action="store_true", help="the LIBERO benchmark too")
    parser.add_argument("--launch", action="store_true", help="the real `ros2 launch`, for tests")
    parser.add_argument("--launch-pytest", action="store_true", help="its test framework too")
    parser.add_argument("--view", action="store_true", help="the page in the browser too")
    args = parser.parse_args()
    start = time.monotonic()
    try:
        check_python()
        weights.main()  # without them all but the studies works
        install_compilers()
        venv = Venv(args.venv.absolute(), args.ros)
        venv.create()
        venv.install_requirements()
        if args.libero:
            venv.install_libero()
        if args.launch:
            venv.install_launch()
        if args.launch_pytest:
            venv.install_launch_pytest()
        if args.view:
            venv.install_view()
        if not args.requirements_only:
            venv.install_package()
            venv.install_lab()
            venv.install_renderer()
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    if time.monotonic() - start > 5:
        say(f"set up in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
