"""The checks of `vla-ros doctor` on a Jetson: power mode, clocks, memory shared with the GPU, swap.

Files are those of L4T's kernel and NVIDIA's tools; each is given, so that a test can write them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vla_ros.cli.doctor.checks import Check, ok, warn

GB = 1e9
HOW_TO = "docs/how-to/jetson.md"
TIGHT_BYTES = 2 * GB  # what the robot's other nodes and the file cache want at least


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a Jetson says what it is."""

    root: Path = Path("/")

    def read(self, path: str) -> str:
        """A file's text; "" where there is none or it may not be read."""
        try:
            return (self.root / path).read_text(errors="replace").strip("\0\n ")
        except OSError:
            return ""

    def is_jetson(self) -> bool:
        return (self.root / "etc/nv_tegra_release").is_file()


def jetson(machine: Machine | None = None) -> Iterator[Check]:
    """Its checks; none on another machine."""
    machine = machine or Machine()
    if not machine.is_jetson():
        return
    yield _board(machine)
    yield _power(_said("nvpmodel", "-q"))
    yield _clocks(machine)
    yield _memory(machine)


def _board(machine: Machine) -> Check:
    model = machine.read("proc/device-tree/model") or "a Jetson"
    release = re.search(r"R(\d+).*?REVISION: ([\d.]+)", machine.read("etc/nv_tegra_release"))
    return ok("Jetson", model + (f", L4T {release[1]}.{release[2]}" if release else ""))


def _power(said: str) -> Check:
    """``nvpmodel -q`` says "NV Power Mode: MAXN" and the number of the mode in the next line."""
    mode = re.search(r"NV Power Mode: *(\S+)", said)
    if mode is None:
        advice = f"sudo nvpmodel -q; rates in {HOW_TO} are of MAXN"
        return warn("power mode", "nvpmodel does not say it", advice)
    if not mode[1].startswith("MAXN"):
        return warn("power mode", mode[1], f"slower than MAXN: sudo nvpmodel -m 0 ({HOW_TO})")
    return ok("power mode", mode[1])


def _clocks(machine: Machine) -> Check:
    """jetson_clocks holds every clock at its highest; without it they rise after the load comes."""
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
    """The GPU's memory is the machine's: what other programs take, a model cannot have."""
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


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
