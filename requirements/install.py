"""Set up .venv: system libraries, locked packages, torch, then this package.

Standard library only; `make` runs it with any Python 3. Each step is skipped when what it
depends on has not changed, so a second run takes a moment. It never asks a question.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable
from pathlib import Path

import over_ros
from over_ros import SetupError

ROOT = Path(__file__).resolve().parent.parent
TORCH = ROOT / "requirements" / "torch.txt"
PINS = ROOT / "requirements" / "pins.txt"
LIBERO = ROOT / "requirements" / "libero.txt"
WHEEL_PYTHONS = [(3, 10), (3, 11), (3, 12), (3, 13)]  # CPythons with ROS 2 wheels
EXTRAS = ("model", "sim", "replay", "train", "plots", "dev")
ROS_EXTRAS = {"kilted": "ros", "jazzy": "ros-jazzy"}  # distro: the extra with its wheels
DEFAULT_ROS = "kilted"
SOURCES = ("vla_ros", "msg", "srv", "action", "launch", "config")
SOURCE_FILES = ("setup.py", "setup.cfg", "pyproject.toml", "package.xml", "rosidl_build.py")
GENERATED = ("vla_ros/msg/", "vla_ros/srv/", "vla_ros/action/")


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def lock_file(ros: str, version: tuple[int, int]) -> Path:
    """Where the locked packages of one distro and one CPython are, whether written or not."""
    distro = "" if ros == DEFAULT_ROS else f"{ros}-"
    return ROOT / "requirements" / f"lock-{distro}cp{version[0]}{version[1]}-linux-x86_64.txt"


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


def missing_system_packages() -> dict[str, tuple[str, ...]]:
    """What is missing → Debian packages that give it."""
    missing: dict[str, tuple[str, ...]] = {}
    if shutil.which("g++") is None:
        missing["a C++ compiler"] = ("g++",)
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        missing["the headers of Python"] = ("python3-dev",)
    if importlib.util.find_spec("ensurepip") is None:
        missing["the venv module"] = ("python3-venv",)
    return missing


def install_system_packages(missing: dict[str, tuple[str, ...]]) -> str:
    """apt-get what is missing where that needs no password; returns what to say if it is not."""
    names = sorted({name for packages in missing.values() for name in packages})
    line = f"missing: {', '.join(missing)}; run: sudo apt-get install {' '.join(names)}"
    apt = shutil.which("apt-get")
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    allowed = not sudo or (
        shutil.which("sudo") is not None
        and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0
    )
    if apt and allowed:
        say(f"apt-get install {' '.join(names)}")
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        options = ["-qq", "-o", "Dpkg::Use-Pty=0"]
        subprocess.run([*sudo, apt, "update", *options], env=quiet, stdin=subprocess.DEVNULL)
        install = [*sudo, apt, "install", "-y", "--no-install-recommends", *options, *names]
        subprocess.run(install, env=quiet, stdin=subprocess.DEVNULL)
    return line


def install_compilers() -> None:
    """What building the package needs."""
    missing = missing_system_packages()
    if not missing:
        return
    line = install_system_packages(missing)
    if missing_system_packages():
        raise SetupError(line)


def digest(paths: Iterable[Path], *more: str) -> str:
    """One name for the contents of many files."""
    total = hashlib.sha256("\0".join(more).encode())
    for path in sorted(paths):
        total.update(f"\0{path.relative_to(ROOT)}\0".encode())
        total.update(path.read_bytes())
    return total.hexdigest()


def _extra(name: str) -> list[str]:
    """The packages of one extra in setup.py, read without running it."""
    for node in ast.walk(ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == name:
                    return list(ast.literal_eval(value))
    raise SetupError(f"setup.py has no extra {name!r}")


def source_files() -> list[Path]:
    """Everything the installed package is made of."""
    found = [ROOT / name for name in SOURCE_FILES]
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            built = name.startswith(GENERATED) or path.suffix in (".so", ".pyc")
            if path.is_file() and not built:
                found.append(path)
    return found


class Venv:
    """The virtual environment; remembers in files what was installed into it."""

    def __init__(self, folder: Path, ros: str = DEFAULT_ROS) -> None:
        self.folder = folder
        self.ros = ros
        self.python = folder / "bin" / "python"

    def create(self) -> None:
        """Make it, where it is missing or of another Python."""
        wanted = f"{sys.version} {over_ros.sourced_ros()}"
        if self.ros != DEFAULT_ROS:
            wanted += f" {self.ros}"
        if self.python.exists() and self._remembered("python") in ("", wanted):
            return
        say(f"creating {self.folder.name} with Python {platform.python_version()}")
        shutil.rmtree(self.folder, ignore_errors=True)
        system = ["--system-site-packages"] if over_ros.sourced_ros() else []
        subprocess.run([sys.executable, "-m", "venv", *system, str(self.folder)], check=True)
        self._remember("python", wanted)

    def install_requirements(self) -> None:
        """Locked packages, then torch: the CPU wheel where that is all the index has."""
        lock = lock_file(self.ros, sys.version_info[:2])
        locked = not over_ros.sourced_ros() and lock.is_file()
        over = over_ros.constraints(TORCH) if over_ros.sourced_ros() else []
        key = digest([TORCH, lock if locked else ROOT / "setup.py"], str(locked), *over)
        if self._remembered("requirements") == key:
            return
        if locked:
            say(f"installing the packages of {lock.relative_to(ROOT)} (a few minutes)")
            self.pip("--require-hashes", "-r", str(lock))
            say("installing torch")
            self.pip("-r", str(TORCH))
        elif over_ros.sourced_ros():
            self._install_over_ros()
        else:
            extras = ",".join((ROS_EXTRAS[self.ros], *EXTRAS))
            say(f"no lock file for this Python: installing what setup.py asks for [{extras}]")
            self.pip("-c", str(TORCH), "setuptools", "wheel")
            self.pip("-c", str(TORCH), f"{ROOT}[{extras}]")
        self._remember("requirements", key)

    def _install_over_ros(self) -> None:
        """What the sourced ROS 2 and this Python lack; the machine's own torch stays."""
        kept = over_ros.constraints(TORCH)
        say(f"ROS 2 {os.environ['ROS_DISTRO']} is sourced; kept as they are: {', '.join(kept)}")
        own = {name for name in over_ros.MACHINES_OWN if over_ros.found_version(name)}
        wanted = [
            r
            for r in over_ros.requirements(ROOT / "setup.py", EXTRAS)
            if re.split(r"[\[<>=~;! ]", r)[0] not in own
        ]
        file = self.folder / "constraints.txt"
        file.write_text("".join(f"{line}\n" for line in kept))
        self.pip("-c", str(file), "setuptools", "wheel", *wanted)

    def install_package(self) -> None:
        """vla_ros itself, with its messages, launch files and parameters."""
        if over_ros.sourced_ros() and over_ros.sourced_workspace():
            say("vla_ros is that of the sourced workspace")
            return
        if over_ros.sourced_ros() and os.environ["ROS_DISTRO"] == "humble":
            raise SetupError(
                "ROS 2 Humble translates messages with CMake alone: put this folder into a"
                " workspace, `colcon build`, `source install/setup.bash`, and run make again"
            )
        key = digest(source_files(), self._remembered("requirements"))
        if self._remembered("package") == key:
            return
        say("installing vla_ros (compiles its messages the first time)")
        for stale in (ROOT / "build").glob("lib*/**/*.py"):
            stale.unlink()  # setuptools would install modules that are gone from the sources
        self.pip("--quiet", "--no-deps", "--no-build-isolation", "--force-reinstall", str(ROOT))
        self._remember("package", key)

    def install_libero(self) -> None:
        """The LIBERO benchmark, without what its packages ask for and never import."""
        wanted = _extra("libero")
        key = digest([LIBERO, TORCH, PINS], self._remembered("python"), *wanted)
        if self._remembered("libero") == key:
            return
        say("installing LIBERO (a few minutes, 1.3 GB on disk)")
        self.pip("-c", str(TORCH), "-c", str(PINS), *wanted)
        self.pip("--no-deps", "-r", str(LIBERO))
        self._remember("libero", key)

    def install_view(self) -> None:
        """The page in the browser."""
        wanted = _extra("view")
        key = digest([TORCH, PINS], self._remembered("python"), *wanted)
        if self._remembered("view") == key:
            return
        say("installing viser, for --view")
        self.pip("-c", str(TORCH), "-c", str(PINS), *wanted)
        self._remember("view", key)

    def install_renderer(self) -> None:
        """Off-screen OpenGL for the simulation: tried out, since a library alone proves nothing."""
        probe = "from vla_ros.sim.gl import choose_renderer; choose_renderer()"

        def renders() -> bool:
            command = [str(self.python), "-c", probe]
            return subprocess.run(command, cwd="/", capture_output=True).returncode == 0

        if self._remembered("renderer") == "works":
            return
        if not renders():
            line = install_system_packages({"off-screen OpenGL": ("libosmesa6",)})
            if not renders():
                say(f"warning: the simulation cannot render yet; {line}")
                return
        self._remember("renderer", "works")

    def pip(self, *words: str) -> None:
        """pip install, in this environment and no other."""
        env = {k: v for k, v in os.environ.items() if k != "_ROS_WHEELS_BOOTSTRAP_COMPLETE"}
        command = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check", *words]
        if subprocess.run(command, env=env, cwd=ROOT, stdin=subprocess.DEVNULL).returncode:
            raise SetupError(f"pip failed; to see it alone: {' '.join(command)}")

    def _remembered(self, what: str) -> str:
        path = self.folder / f".vla_ros_{what}"
        return path.read_text() if path.is_file() else ""

    def _remember(self, what: str, value: str) -> None:
        (self.folder / f".vla_ros_{what}").write_text(value)


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
    parser.add_argument("--view", action="store_true", help="the page in the browser too")
    args = parser.parse_args()
    start = time.monotonic()
    try:
        check_python()
        install_compilers()
        venv = Venv(args.venv.absolute(), args.ros)
        venv.create()
        venv.install_requirements()
        if args.libero:
            venv.install_libero()
        if args.view:
            venv.install_view()
        if not args.requirements_only:
            venv.install_package()
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
