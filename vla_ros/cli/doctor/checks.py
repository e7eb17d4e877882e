"""What a check of `vla-ros doctor` is, and the checks of the machine itself.

Each looks at one thing and returns one line. What could crash or hang (rclpy, torch, OpenGL) is
tried in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import Enum

from vla_ros.bringup.environment import SAFE_PATH, defaults
from vla_ros.resources import config_path


class Level(Enum):
    """How bad it is. FAIL: the graph or the demo cannot run."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Check:
    """What was found, and what to do about it where that is anything."""

    name: str
    level: Level
    found: str
    advice: str = ""


def ok(name: str, found: str) -> Check:
    return Check(name, Level.OK, found)


def warn(name: str, found: str, advice: str) -> Check:
    return Check(name, Level.WARN, found, advice)


def fail(name: str, found: str, advice: str) -> Check:
    return Check(name, Level.FAIL, found, advice)


def line(check: Check) -> str:
    """The check as a user reads it, with the advice in a line of its own."""
    text = f"{check.level.value:<5} {check.name:<11} {check.found}"
    return f"{text}\n      {'':<11} -> {check.advice}" if check.advice else text


def try_python(code: str, timeout_s: float = 60.0) -> tuple[bool, str]:
    """Run code in a fresh Python with a graph's environment: (it worked, its last line)."""
    env = {**os.environ, **defaults(os.environ)}
    try:
        done = subprocess.run(
            [sys.executable, "-c", SAFE_PATH + code],
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return False, f"no end within {timeout_s:g} s"
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode < 0:
        return False, f"crashed with signal {-done.returncode}"
    return done.returncode == 0, lines[-1].strip() if lines else ""


def python() -> Check:
    return ok("Python", f"{platform.python_version()}, {sys.executable}")


def simulation() -> Check:
    """The tabletop can be rendered without a window."""
    if importlib.util.find_spec("mujoco") is None:
        return warn("simulation", "mujoco is missing", "pip install '.[sim]'")
    code = (
        "import time\n"
        "from vla_ros.sim.gl import choose_renderer\n"
        "backend = choose_renderer()\n"
        "from vla_ros.sim.factory import EnvConfig\n"
        "env = EnvConfig(image_size=128)()\n"
        "env.reset(env.spec.tasks[0].name, 0)\n"
        "start = time.perf_counter()\n"
        "for _ in range(5):\n"
        "    env.step([0.0] * 7)\n"
        "ms = (time.perf_counter() - start) * 200\n"
        "import mujoco\n"
        "print(f'mujoco {mujoco.__version__}, {backend}, {ms:.0f} ms a step with two images')"
    )
    good, text = try_python(code)
    if not good:
        advice = "off-screen OpenGL: sudo apt-get install libosmesa6, or a GPU driver with EGL"
        return fail("simulation", text, advice)
    return ok("simulation", text)


def clock() -> Check:
    """Stamps of other machines can be compared with ours; this one keeps its own time well."""
    late = []
    for _ in range(100):
        start = time.perf_counter()
        time.sleep(0.002)
        late.append((time.perf_counter() - start - 0.002) * 1e3)
    worst = sorted(late)[98]
    text = f"wake-ups {worst:.1f} ms late (p99)"
    if worst > 5.0:
        advice = "commands will jitter: free the processor, or use a real-time kernel"
        return warn("clock", text, advice)
    if shutil.which("timedatectl"):
        command = ["timedatectl", "show", "-p", "NTPSynchronized", "--value"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
        if said == "no":
            advice = "cameras on other machines need it: set up chrony or systemd-timesyncd"
            return warn("clock", f"{text}; not synchronised with other machines", advice)
        if said == "yes":
            text += "; synchronised (NTP)"
    return ok("clock", text)


def files() -> Check:
    """The files that are not Python came along."""
    try:
        folder = config_path("fastdds_shm.xml").parent
    except FileNotFoundError as error:
        return fail("files", str(error), "install with pip install . (not -e), or use a checkout")
    return ok("files", f"{folder}: {len(list(folder.glob('*.yaml')))} parameter files")
