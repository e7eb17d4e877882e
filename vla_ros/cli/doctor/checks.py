"""The checks of `vla-ros doctor`. Each looks at one thing and returns one line.

What could crash or hang (rclpy, torch, OpenGL) is tried in a process of its own.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import Enum
from xml.etree import ElementTree

from vla_ros.bringup import shared_memory
from vla_ros.bringup.environment import SAFE_PATH, defaults
from vla_ros.resources import config_path

ROS_PYTHONS = ((3, 10), (3, 13))  # first and last CPython with ROS 2 wheels


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


def ros() -> Check:
    """Where ROS 2 comes from."""
    if "ROS_DISTRO" in os.environ:
        return ok("ROS 2", f"{os.environ['ROS_DISTRO']}, sourced")
    try:
        return ok("ROS 2", f"wheels, rclpy {importlib.metadata.version('ros-rclpy')}")
    except importlib.metadata.PackageNotFoundError:
        pass
    here = sys.version_info[:2]
    if platform.machine() == "x86_64" and ROS_PYTHONS[0] <= here <= ROS_PYTHONS[1]:
        advice = "pip install '.[ros]', or source a ROS 2 install"
    else:
        advice = "no wheels for this Python and machine: source /opt/ros/<distro>/setup.bash"
    return fail("ROS 2", "neither wheels nor a sourced install", advice)


def rclpy() -> Check:
    """A node can be made."""
    code = (
        "import rclpy; rclpy.init(); n = rclpy.create_node('vla_ros_doctor');"
        "print(rclpy.get_rmw_implementation_identifier()); n.destroy_node(); rclpy.shutdown()"
    )
    start = time.monotonic()
    good, text = try_python(code, 30.0)
    if not good:
        return fail("rclpy", text, "see the line of ROS 2; in a venv: pip install '.[ros]'")
    return ok("rclpy", f"a node came up in {time.monotonic() - start:.1f} s, {text}")


def messages() -> Check:
    """The interfaces of this package are built and their type support loads."""
    code = (
        "from vla_ros.msg import ActionCommand; from vla_ros.srv import ResetEpisode;"
        "[t.__class__.__import_type_support__() for t in (ActionCommand, ResetEpisode)];"
        "print(ActionCommand.__module__)"
    )
    good, text = try_python(code, 30.0)
    if not good:
        advice = "install the package (pip install .), or in a checkout: make dev"
        return fail("messages", text, advice)
    return ok("messages", "vla_ros.msg and vla_ros.srv load")


def middleware() -> Check:
    """The Fast DDS profile that camera images need."""
    other = os.environ.get("RMW_IMPLEMENTATION", "rmw_fastrtps_cpp")
    if not other.startswith("rmw_fastrtps"):
        return warn(
            "DDS", other, "the shipped profile is for Fast DDS: give large images room there"
        )
    path = os.environ.get("FASTDDS_DEFAULT_PROFILES_FILE")
    ours = config_path("fastdds_shm.xml")
    if not path:
        advice = f"for your own camera node too: export FASTDDS_DEFAULT_PROFILES_FILE={ours}"
        return ok("DDS", f"vla-ros sets {ours.name}; {advice}")
    try:
        sizes = [
            int(e.text or 0) for e in ElementTree.parse(path).iter() if "segment_size" in e.tag
        ]
    except (OSError, ElementTree.ParseError, ValueError) as error:
        return fail("DDS", f"cannot read {path}: {error}", "unset FASTDDS_DEFAULT_PROFILES_FILE")
    if max(sizes, default=0) < 8 << 20:
        advice = f"640x480 images will be lost; compare {ours}"
        return warn("DDS", f"{path} gives shared memory no segment of 8 MB or more", advice)
    return ok("DDS", f"{path}, shared memory of {max(sizes) >> 20} MB")


def discovery() -> Check:
    """Who can see the graph, and send it commands."""
    domain = os.environ.get("ROS_DOMAIN_ID", "0")
    reach = os.environ.get("ROS_AUTOMATIC_DISCOVERY_RANGE", "")
    if not domain.isdigit() or int(domain) > 232:
        return fail("discovery", f"ROS_DOMAIN_ID={domain}", "set it to a number from 0 to 232")
    if reach not in ("", "LOCALHOST", "OFF"):
        advice = "anybody there can send commands: use LOCALHOST, or SROS2 (ROS_SECURITY_ENABLE)"
        return warn("discovery", f"domain {domain}, {reach}: other machines too", advice)
    return ok("discovery", f"domain {domain}, {reach or 'LOCALHOST (set by vla-ros)'}")


def leftovers(clean: bool) -> Check:
    """What killed processes left in /dev/shm."""
    found = shared_memory.find_leftovers()
    size = sum(item.size for item in found)
    text = f"{len(found)} left over by killed processes, {size / 1e6:.0f} MB"
    if clean and found:
        return ok("/dev/shm", f"{text}: removed, {shared_memory.remove(found) / 1e6:.0f} MB freed")
    try:
        free = shutil.disk_usage(shared_memory.SHM).free
    except OSError as error:
        return fail("/dev/shm", str(error), "in a container: --ipc=host or --shm-size=1g")
    if free < 256 << 20:
        advice = "vla-ros doctor --clean; in a container: --ipc=host or --shm-size=1g"
        return fail("/dev/shm", f"{free / 1e6:.0f} MB free; {text}", advice)
    if size > 64e6:
        return warn("/dev/shm", text, "vla-ros doctor --clean")
    return ok("/dev/shm", f"{free / 1e9:.1f} GB free, {len(found)} segments left over")


def torch() -> Check:
    if importlib.util.find_spec("torch") is None:
        return warn("torch", "missing: no VLA can run", "pip install '.[model]'")
    good, text = try_python("import torch, transformers, safetensors; print(torch.__version__)")
    if not good:
        return fail("torch", text, "pip install '.[model]'")
    return ok("torch", text)


def gpu() -> Check:
    """What a large model would run on."""
    if importlib.util.find_spec("torch") is None:
        return warn("GPU", "not looked for: torch is missing", "see the line of torch")
    code = (
        "import torch\n"
        "if torch.cuda.is_available():\n"
        "    p = torch.cuda.get_device_properties(0)\n"
        "    torch.ones(8, device='cuda').sum().item()\n"
        "    print(f'{p.name}, {p.total_memory / 2**30:.0f} GB, CUDA {torch.version.cuda}')\n"
        "else:\n"
        "    print('none' if torch.version.cuda else 'none (this torch is the CPU build)')"
    )
    good, text = try_python(code)
    if not good:
        return fail("GPU", text, "compare the driver (nvidia-smi) with the CUDA of torch")
    if text.startswith("none"):
        return warn("GPU", text, "fine for the small policy; OpenVLA-7B needs a GPU of 16 GB")
    return ok("GPU", text)


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


def checkpoint(name: str) -> Check:
    """A model can be read: every tensor there, of the right shape, finite. One at a time."""
    code = (
        "import sys\n"
        "from vla_ros.engine.checkpoints.openvla import fingerprint, inspect_checkpoint\n"
        "try:\n"
        f"    c = inspect_checkpoint({name!r})\n"
        "except (OSError, ValueError) as error:\n"
        "    sys.exit(' '.join(str(error).split()))\n"
        "print(f'{c.directory}: {c.parameters / 1e6:.0f} M parameters,'\n"
        "      f' unnorm_key {\", \".join(c.norm_stats)},'\n"
        "      f' sha256 {fingerprint(c.directory)[:12]}')"
    )
    good, text = try_python(code, 600.0)
    if not good:
        return fail("checkpoint", text, "docs/reference/checkpoints.md says what can be read")
    return ok("checkpoint", text)


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
