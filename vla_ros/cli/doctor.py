"""`vla-ros doctor`: checks of this machine, with advice where one fails."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from xml.etree import ElementTree

from vla_ros.cli.arguments import Verbs, add_verb
from vla_ros.core.console import print_json
from vla_ros.core.process import run as run_program
from vla_ros.core.resources import config_path
from vla_ros.core.text import printable
from vla_ros.ros.bringup import environment
from vla_ros.ros.bringup.environment import (
    PROFILES,
    SAFE_PATH,
    defaults,
    profile,
    profile_name,
    shipped_profile,
)
from vla_ros.ros.common.surroundings import missing

#: memory of OpenVLA-7B in bfloat16 with its KV cache, activations and CUDA's context, as
#: `vla-ros roofline --model openvla-7b` counts
OPENVLA_BYTES = 16.28e9

# Checks of the machine itself. Each returns one line. Libraries that could crash or hang (rclpy,
# torch, OpenGL) are tried in a process of their own.


class Level(Enum):
    """Severity of a check. FAIL: the graph or the demo cannot run."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Check:
    """Finding of one check, with advice where there is any."""

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
    """Text of a check, with the advice in a line of its own."""
    text = f"{check.level.value:<5} {check.name:<11} {printable(check.found, 2000)}"
    return f"{text}\n      {'':<11} -> {check.advice}" if check.advice else text


def try_python(code: str, timeout_s: float = 60.0) -> tuple[bool, str]:
    """Run code in a fresh Python with a graph's environment; returns (it worked, its last line)."""
    env = {**os.environ, **defaults(os.environ)}
    good, text = run_program([sys.executable, "-c", SAFE_PATH + code], timeout_s, env)
    lines = text.strip().splitlines()
    return good, lines[-1].strip() if lines else ""


def tried(
    name: str, code: str, advice: str, timeout_s: float = 60.0, bad: Level = Level.FAIL
) -> Check:
    """Check that runs code, and shows its last line."""
    good, text = try_python(code, timeout_s)
    return ok(name, text) if good else Check(name, bad, text, advice)


def check_python() -> Check:
    return ok("Python", f"{platform.python_version()}, {sys.executable}")


def check_simulation() -> Check:
    """Check that the tabletop can be rendered without a window."""
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
    advice = "off-screen OpenGL: sudo apt-get install libosmesa6, or a GPU driver with EGL"
    return tried("simulation", code, advice)


def check_clock() -> Check:
    """Check that clocks are synchronized, and that this machine wakes up in time."""
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
        synchronized = _output("timedatectl", "show", "-p", "NTPSynchronized", "--value").strip()
        if synchronized == "no":
            advice = "cameras on other machines need it: set up chrony or systemd-timesyncd"
            return warn("clock", f"{text}; not synchronized with other machines", advice)
        if synchronized == "yes":
            text += "; synchronized (NTP)"
    return ok("clock", text)


def check_files() -> Check:
    """Check that the files that are not Python are installed."""
    try:
        folder = config_path("fastdds_shm.xml").parent
    except FileNotFoundError as error:
        return fail("files", str(error), "install with pip install . (not -e), or use a checkout")
    return ok("files", f"{folder}: {len(list(folder.glob('*.yaml')))} parameter files")


# The checks on a Jetson: power mode, clocks, memory shared with the GPU, swap.
#
# Files are those of L4T's kernel and NVIDIA's tools; their root is a parameter, for tests.


GB = 1e9
HOW_TO = "docs/how-to/jetson.md"
TIGHT_BYTES = 2 * GB  # what the robot's other nodes and the file cache want at least


@dataclass(frozen=True, slots=True)
class Machine:
    """System files of a Jetson."""

    root: Path = Path("/")

    def read(self, path: str) -> str:
        """Text of a file; "" where there is none or it may not be read."""
        try:
            return (self.root / path).read_text(errors="replace").strip("\0\n ")
        except OSError:
            return ""

    def is_jetson(self) -> bool:
        return (self.root / "etc/nv_tegra_release").is_file()


def check_jetson(machine: Machine | None = None) -> Iterator[Check]:
    """Checks of a Jetson; none on another machine."""
    machine = machine or Machine()
    if not machine.is_jetson():
        return
    yield _board(machine)
    yield _power(_output("nvpmodel", "-q"))
    yield _clocks(machine)
    yield _memory(machine)


def _board(machine: Machine) -> Check:
    model = machine.read("proc/device-tree/model") or "a Jetson"
    release = re.search(r"R(\d+).*?REVISION: ([\d.]+)", machine.read("etc/nv_tegra_release"))
    return ok("Jetson", model + (f", L4T {release[1]}.{release[2]}" if release else ""))


def _power(output: str) -> Check:
    """Power mode: ``nvpmodel -q`` prints "NV Power Mode: MAXN", and its number in the next line."""
    mode = re.search(r"NV Power Mode: *(\S+)", output)
    if mode is None:
        advice = f"sudo nvpmodel -q; rates in {HOW_TO} are of MAXN"
        return warn("power mode", "nvpmodel does not say it", advice)
    if not mode[1].startswith("MAXN"):
        return warn("power mode", mode[1], f"slower than MAXN: sudo nvpmodel -m 0 ({HOW_TO})")
    return ok("power mode", mode[1])


def _clocks(machine: Machine) -> Check:
    """Clocks: jetson_clocks holds each at its highest; without it they rise after the load."""
    held, loose = 0, []
    for policy in sorted((machine.root / "sys/devices/system/cpu/cpufreq").glob("policy*")):
        low, high = (policy / f"scaling_{end}_freq" for end in ("min", "max"))
        if machine.read(str(low.relative_to(machine.root))) == machine.read(
            str(high.relative_to(machine.root))
        ):
            held += 1
        else:
            loose.append(policy.name)
    if loose or not held:
        advice = "the first inferences after a pause are late: sudo jetson_clocks"
        return warn("clocks", f"free to fall ({len(loose)} of {held + len(loose)} groups)", advice)
    return ok("clocks", "held at their highest (jetson_clocks)")


def _memory(machine: Machine) -> Check:
    """Memory, which the GPU shares with all programs."""
    sizes = dict(re.findall(r"^(\w+): +(\d+) kB", machine.read("proc/meminfo"), re.MULTILINE))
    total, free, swap = (int(sizes.get(n, 0)) * 1024 for n in
                         ("MemTotal", "MemAvailable", "SwapTotal"))  # fmt: skip
    devices = [line.split()[0] for line in machine.read("proc/swaps").splitlines()[1:] if line]
    disks = [device for device in devices if "zram" not in device]
    text = f"{free / GB:.1f} of {total / GB:.1f} GB free, shared with the GPU"
    text += f"; swap {swap / GB:.1f} GB ({', '.join(disks) or 'zram'})" if swap else "; no swap"
    if free < TIGHT_BYTES:
        advice = f"end other programs, such as the desktop; what models need: {HOW_TO}"
        return warn("memory", text, advice)
    if disks:
        advice = "weights that are swapped out make frames late: swap for building only (swapoff)"
        return warn("memory", text, advice)
    return ok("memory", text)


def _output(*command: str) -> str:
    good, text = run_program(command, 5.0)
    return text if good else ""


# A large model: torch, a GPU with room for it, the checkpoint itself.


def check_torch() -> Check:
    if importlib.util.find_spec("torch") is None:
        return warn("torch", "missing: no VLA can run", "pip install '.[model]'")
    code = "import torch, transformers, safetensors; print(torch.__version__)"
    return tried("torch", code, "pip install '.[model]'")


def check_gpu() -> Check:
    """Check of the GPU for a large model."""
    if importlib.util.find_spec("torch") is None:
        return warn("GPU", "not looked for: torch is missing", "see the line of torch")
    code = (
        "import torch\n"
        "if torch.cuda.is_available():\n"
        "    p = torch.cuda.get_device_properties(0)\n"
        "    torch.ones(8, device='cuda').sum().item()\n"
        "    print(f'{p.name}, CUDA {torch.version.cuda}|{p.total_memory}')\n"
        "else:\n"
        "    print('none' if torch.version.cuda else 'none (this torch is the CPU build)')"
    )
    good, text = try_python(code)
    if not good:
        return fail("GPU", text, "compare the driver (nvidia-smi) with the CUDA of torch")
    if text.startswith("none"):
        return warn("GPU", text, f"fine for the small policy; {room_for(0)}")
    found, _, memory = text.rpartition("|")
    return ok("GPU", f"{found}, {int(memory) / 1e9:.1f} GB; {room_for(int(memory))}")


def room_for(gpu_bytes: float) -> str:
    """Room for OpenVLA-7B on a GPU, in words; 0: there is none."""
    need = f"OpenVLA-7B in bf16 needs {OPENVLA_BYTES / 1e9:.1f} GB"
    if not gpu_bytes:
        return f"{need} of a GPU"
    return f"{need} and {'fits' if gpu_bytes >= OPENVLA_BYTES else 'does not fit'}"


def check_folder(name: str) -> Iterator[Check]:
    """Checks of a checkpoint's folder: its family, needs, lacks, and the next command. No tensor is
    read and torch is not imported, so it takes a second."""
    from vla_ros.engine.errors import CheckpointError
    from vla_ros.engine.families.folder import describe

    try:
        found = describe(name)
    except (CheckpointError, OSError) as error:
        text = " ".join(str(error).split())
        told = "give " in text or "did you mean" in text  # the remedy is in the reason
        yield fail("checkpoint", text, "" if told else "give a folder with a config.json")
        return
    weights = f", {found.weights}" if found.weights else ""
    yield ok("checkpoint", f"{found.directory}: {found.family}{weights}")
    for need in found.needs:
        yield ok("needs", need)
    for lack in found.lacks:
        yield fail("lacks", lack, "")
    advice = "docs/reference/checkpoints.md says what can be read"
    yield ok("next", found.next or advice)


def check_checkpoint(name: str) -> Check:
    """Check that a model can be read: every tensor there, of the right shape, finite. Random
    weights are made when the policy is loaded: nothing of them is read."""
    random = name.startswith("random:")
    code = _of_random(name) if random else _of_files(name)
    return tried("checkpoint", code, "docs/reference/checkpoints.md says what can be read", 600.0)


def check_conventions(name: str) -> Check:
    """Check of what nothing says about the actions, with the default parameters: which end of a
    gripper is closed, the units of numbers that are no m and rad. The node refuses it, or warns."""
    code = (
        "import sys\n"
        "from vla_ros.engine.options import EngineOptions\n"
        "from vla_ros.policies.base import PolicyRefused, PolicySpec\n"
        "from vla_ros.policies.conventions import settle\n"
        f"spec = PolicySpec('vla', engine=EngineOptions({name!r}))\n"
        "try:\n"
        "    used, doubt = settle(spec)\n"
        "    doubt = '; '.join(filter(None, (doubt, used.layout(spec).doubt)))\n"
        "except PolicyRefused as error:\n"
        "    sys.exit(' '.join(str(error).split()))\n"
        "sys.exit(doubt) if doubt else print(used)"
    )
    advice = "these are parameters of the policy node, and flags of vla-ros serve and eval"
    return tried("conventions", code, advice, bad=Level.WARN)


def check_memory(name: str) -> Check:
    """Check that a checkpoint fits on the GPU, or without one in this machine's memory, by its
    headers alone."""
    code = (
        "import sys\n"
        "from vla_ros.engine.layers.devices import usable_device\n"
        "from vla_ros.engine.memory import free_bytes, needed\n"
        "from vla_ros.engine.options import HERE, EngineOptions\n"
        "device = usable_device('auto')\n"
        "free = free_bytes(device)\n"
        "try:\n"
        f"    need = needed(EngineOptions({name!r}, **HERE))\n"
        "except (OSError, ValueError) as error:\n"
        "    sys.exit(' '.join(str(error).split()))\n"
        "there = '' if free is None else f', {free / 1e9:.2f} GB free'\n"
        "line = f'on {device}: {need}{there}'\n"
        "sys.exit(line) if free is not None and need.loading > free else print(line)"
    )
    return tried(
        "memory", code, "weights int8 or int4 take a half or a quarter; or another machine"
    )


def _of_random(name: str) -> str:
    return (
        "import sys\n"
        "from vla_ros.engine.load import inspect_random\n"
        "try:\n"
        f"    kind, count = inspect_random({name!r})\n"
        "except (OSError, ValueError) as error:\n"
        "    sys.exit(' '.join(str(error).split()))\n"
        f"print({name!r} + f', made when it is loaded: {{count / 1e6:.0f}} M parameters,'\n"
        "      f' {2 * count / 1e9:.2f} GB in bf16, {kind}')"
    )


def _of_files(name: str) -> str:
    return (
        "import sys\n"
        "from vla_ros.engine.load import inspect, sha256_on_disk\n"
        "try:\n"
        f"    c = inspect({name!r})\n"
        "    digest = sha256_on_disk(str(c.directory))[:12]\n"
        "except (OSError, ValueError) as error:\n"
        "    sys.exit(' '.join(str(error).split()))\n"
        "whose = 'unnorm_key ' + ', '.join(c.statistics) if c.statistics else c.kind\n"
        "print(f'{c.directory}: {c.parameters / 1e6:.0f} M parameters,'\n"
        "      f' {2 * c.parameters / 1e9:.2f} GB in bf16,'\n"
        "      f' {whose}, sha256 {digest}')"
    )


# ROS 2: its installation, its middleware, and who else is in the domain.


ROS_PYTHONS = ((3, 10), (3, 13))  # first and last CPython with ROS 2 wheels


def check_ros() -> Check:
    """Check of the installation of ROS 2."""
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


def check_rclpy() -> Check:
    """Check that a node can be made."""
    code = (
        "import rclpy; rclpy.init(); n = rclpy.create_node('vla_ros_doctor');"
        "print(rclpy.get_rmw_implementation_identifier()); n.destroy_node(); rclpy.shutdown()"
    )
    start = time.monotonic()
    if wrong := missing(os.environ):
        what, _, advice = wrong.partition(": ")
        return fail("rclpy", what, advice)
    good, text = try_python(code, 30.0)
    if not good:
        return fail("rclpy", text, "see the line of ROS 2; in a venv: pip install '.[ros]'")
    return ok("rclpy", f"a node came up in {time.monotonic() - start:.1f} s, {text}")


def check_messages() -> Check:
    """Check that this package's interfaces are built and their type support loads."""
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


def check_middleware() -> Check:
    """Check of the Fast DDS profile that camera images need."""
    other = os.environ.get("RMW_IMPLEMENTATION", "rmw_fastrtps_cpp")
    if not other.startswith("rmw_fastrtps"):
        return warn(
            "DDS", other, "the shipped profile is for Fast DDS: give large images room there"
        )
    path = profile(os.environ)
    ours = shipped_profile(os.environ)
    name = profile_name(os.environ)
    if not path:
        advice = f"for your own camera node too: export {name}={ours}"
        return ok("DDS", f"vla-ros sets {ours.name}; {advice}")
    try:
        sizes = [
            int(e.text or 0) for e in ElementTree.parse(path).iter() if "segment_size" in e.tag
        ]
    except (OSError, ElementTree.ParseError, ValueError) as error:
        return fail("DDS", f"cannot read {path}: {error}", f"unset {' '.join(PROFILES)}")
    if max(sizes, default=0) < 8 << 20:
        advice = f"640x480 images will be lost; compare {ours}"
        return warn("DDS", f"{path} gives shared memory no segment of 8 MB or more", advice)
    return ok("DDS", f"{path}, shared memory of {max(sizes) >> 20} MB")


def check_discovery() -> Check:
    """Check of the reach: who can see the graph, and send it commands."""
    domain = os.environ.get("ROS_DOMAIN_ID", "0")
    reach = os.environ.get("ROS_AUTOMATIC_DISCOVERY_RANGE", "")
    if not domain.isdigit() or int(domain) > 232:
        return fail("discovery", f"ROS_DOMAIN_ID={domain}", "set it to a number from 0 to 232")
    if reach not in ("", "LOCALHOST", "OFF"):
        advice = "anybody there can send commands: use LOCALHOST, or SROS2 (ROS_SECURITY_ENABLE)"
        return warn("discovery", f"domain {domain}, {reach}: other machines too", advice)
    return ok("discovery", f"domain {domain}, {reach or 'LOCALHOST (set by vla-ros)'}")


def check_security() -> Check:
    """Check that SROS 2, where it is on, protects anything."""
    if os.environ.get(environment.ENABLE, "") != "true":
        return ok("security", "SROS 2 is off (docs/how-to/secure-the-graph.md)")
    if (strategy := os.environ.get(environment.STRATEGY, "")) != "Enforce":
        advice = f"a node without keys joins all the same: export {environment.STRATEGY}=Enforce"
        return fail("security", f"{environment.STRATEGY} is {strategy or 'not set'}", advice)
    store = os.environ.get(environment.KEYSTORE, "")
    enclaves = sorted(Path(store, "enclaves").rglob("permissions.p7s")) if store else []
    if not enclaves:
        advice = "make one: docs/how-to/secure-the-graph.md"
        return fail(
            "security", f"{environment.KEYSTORE} {store or '(not set)'} holds no enclave", advice
        )
    if "ROS_DISTRO" not in os.environ:
        advice = "source a ROS 2 of its packages: /opt/ros/<distro>/setup.bash"
        return fail("security", "Fast DDS of the wheels is built without security", advice)
    return ok("security", f"enforced, {len(enclaves)} enclaves in {store}")


def check_leftovers(clean: bool) -> Check:
    """Check of /dev/shm: leftovers of killed processes, and free space."""
    found = environment.find_leftovers()
    size = sum(item.size for item in found)
    text = f"{len(found)} left over by killed processes, {size / 1e6:.0f} MB"
    if clean and found:
        return ok("/dev/shm", f"{text}: removed, {environment.remove(found) / 1e6:.0f} MB freed")
    try:
        free = shutil.disk_usage(environment.SHM).free
    except OSError as error:
        return fail("/dev/shm", str(error), "in a container: --ipc=host or --shm-size=1g")
    if free < 256 << 20:
        advice = "vla-ros doctor --clean; in a container: --ipc=host or --shm-size=1g"
        return fail("/dev/shm", f"{free / 1e6:.0f} MB free; {text}", advice)
    if others := environment.foreign_segments():
        users = ", ".join(map(str, sorted(others)))
        advice = "a node sees their cameras and gets no image: run driver and nodes as one user"
        return warn("/dev/shm", f"{sum(others.values())} segments of the users {users}", advice)
    if size > 64e6:
        return warn("/dev/shm", text, "vla-ros doctor --clean")
    return ok("/dev/shm", f"{free / 1e9:.1f} GB free, {len(found)} segments left over")


# LIBERO: for `vla-ros libero setup` too.


def check_libero_packages() -> Check:
    """Check of LIBERO's own packages and their imports."""
    from vla_ros.sim.libero.assets import BENCHMARK, missing_packages
    from vla_ros.sim.versions import installed

    missing = missing_packages()
    if not missing:
        return ok("packages", ", ".join(f"{name} {installed(name)}" for name in BENCHMARK))
    advice = "make libero (in the checkout)"
    if not set(missing) & set(BENCHMARK):
        advice = "pip install '.[libero]' (in the checkout)"
    return fail("packages", f"not installed: {', '.join(missing)}", advice)


def check_libero() -> Check:
    """Check that the benchmark can be loaded, in its own world, with its assets. Builds no task:
    that takes seconds."""
    from vla_ros.sim.versions import MUJOCO, mujoco_note

    packages = check_libero_packages()
    if packages.level is not Level.OK:
        return warn("LIBERO", f"{packages.found} (optional)", packages.advice)
    code = (
        "from vla_ros.sim.env import SimError\n"
        "from vla_ros.sim.factory import EnvConfig\n"
        "try:\n"
        "    spec = EnvConfig('libero')().spec\n"
        "except SimError as error:\n"
        "    raise SystemExit(str(error))\n"
        "note = f'; {spec.note}' if spec.note else ''\n"
        "print(f'{spec.world}, {len(spec.tasks)} tasks{note}')"
    )
    good, text = try_python(code, 120.0)
    if not good:
        return warn("LIBERO", text, "vla-ros libero setup")
    if mujoco_note():
        return warn("LIBERO", text, f"pip install mujoco=={MUJOCO}")
    return ok("LIBERO", text)


def check_trial(task: str) -> Check:
    """Check that one task can be built. The first time on a machine Numba compiles meanwhile."""
    code = (
        "import time\n"
        "from vla_ros.sim.env import SimError\n"
        "from vla_ros.sim.factory import EnvConfig\n"
        "start = time.perf_counter()\n"
        "try:\n"
        "    env = EnvConfig('libero')()\n"
        f"    env.reset({task!r}, 0)\n"
        "    built = time.perf_counter()\n"
        "    for _ in range(5):\n"
        "        env.step([0.0] * 7)\n"
        "except SimError as error:\n"
        "    raise SystemExit(str(error))\n"
        "ms = (time.perf_counter() - built) * 200\n"
        f"print(f'{task} in {{built - start:.0f}} s, then {{ms:.0f}} ms a step with two images')"
    )
    return tried("trial", code, "vla-ros doctor", 600.0)


DESCRIPTION = """\
Look at everything a graph needs and print one line for each: ok, warn (works, with a
limitation) or FAIL (the graph or the demo cannot run), with what to do about it."""

EPILOG = """\
examples:
  vla-ros doctor
  vla-ros doctor --clean                          free shared memory that killed nodes left
  vla-ros doctor --checkpoint /models/openvla-7b  what a folder is, needs and lacks, in a second
  vla-ros doctor --checkpoint /models/openvla-7b --memory what loading it will take
  vla-ros doctor --checkpoint /models/openvla-7b --full   and every tensor, and this machine

exit status: 0 no FAIL, 1 at least one FAIL, 2 wrong usage"""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "doctor", DESCRIPTION, EPILOG)
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="what this folder is, what it needs, what it lacks"
    )
    parser.add_argument(
        "--full", action="store_true", help="with --checkpoint: read every tensor, and look at all"
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="with --checkpoint: what loading it takes, and whether that is free",
    )
    parser.add_argument(
        "--clean",
        action="store_true",
        help="remove what killed processes left in /dev/shm; running ones are not touched",
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON instead")


def run(args: argparse.Namespace) -> int:
    """Run every check; returns the exit status."""
    found: list[Check] = []
    for check in _checks(args):
        found.append(check)
        if not args.json:
            print(line(check), flush=True)
    failed = sum(check.level is Level.FAIL for check in found)
    if args.json:
        print_json(
            {
                "failed": failed,
                "checks": [
                    {**asdict(check), "level": check.level.value.lower()} for check in found
                ],
            }
        )
    elif failed:
        print(f"{failed} of {len(found)} FAIL")
    return int(failed > 0)


def _checks(args: argparse.Namespace) -> Iterator[Check]:
    if args.checkpoint is not None and not args.checkpoint.startswith("random:"):
        yield from check_folder(args.checkpoint)
        if args.memory:
            yield check_memory(args.checkpoint)
        if not args.full:
            return
    elif args.memory and args.checkpoint is not None:
        yield check_memory(args.checkpoint)
    yield check_python()
    shared = check_files()
    yield shared
    if shared.level is Level.FAIL:
        return  # nothing below can be judged
    yield check_ros()
    yield check_rclpy()
    yield check_messages()
    yield check_middleware()
    yield check_discovery()
    yield check_security()
    yield check_leftovers(args.clean)
    yield check_torch()
    yield check_gpu()
    yield from check_jetson()
    yield check_simulation()
    yield check_libero()
    if args.checkpoint is not None:
        yield check_checkpoint(args.checkpoint)
        yield check_conventions(args.checkpoint)
    yield check_clock()
