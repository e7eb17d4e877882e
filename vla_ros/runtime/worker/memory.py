"""Memory for a second copy of a loaded policy: of this machine, and of its GPU. Linux.

What a second copy needs is taken from the first, at its peak: a loader that reads a checkpoint and
then converts it needs more for a moment than it keeps.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from vla_ros.policies.base import PolicyRefused

MIB = 1 << 20
KEPT_FREE = 256 * MIB  # for everybody else, after the second copy
CUDA_CONTEXT = 600 * MIB  # of a process on a GPU, outside of torch's own account


def refusal(pid: int) -> str:
    """Reason for which this machine's memory holds no second copy of process ``pid``; ""."""
    need, free = peak_bytes(pid), free_bytes()
    if need + KEPT_FREE <= free:
        return ""
    return (
        f"a second copy needs {need / MIB:.0f} MiB of memory and {KEPT_FREE / MIB:.0f} to spare,"
        f" {free / MIB:.0f} MiB are free"
    )


def peak_bytes(pid: int) -> int:
    """The most memory that the process ever held; 0 where it has ended."""
    return _field(Path(f"/proc/{pid}/status"), "VmHWM")


def free_bytes() -> int:
    """Bytes that this process may still use: of the machine, and of its own control group."""
    free = _field(Path("/proc/meminfo"), "MemAvailable")
    return min([free, *_group_rooms(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def _field(file: Path, name: str) -> int:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(name + ":")), 0)


def _group_rooms(membership: Path, root: Path) -> list[int]:
    """Bytes left to each control group (v2) with a limit that this process is in."""
    try:
        (line,) = (at for at in membership.read_text().splitlines() if at.startswith("0::"))
    except (OSError, ValueError):
        return []
    rooms = []
    folder = root / line[3:].strip().lstrip("/")
    while folder != root.parent:
        with contextlib.suppress(OSError, ValueError):  # no such group, or "max": no limit
            most, used = (int((folder / f"memory.{n}").read_text()) for n in ("max", "current"))
            kept = dict(at.split() for at in (folder / "memory.stat").read_text().splitlines())
            # Cached files that are not in use make room when it is needed.
            rooms.append(most - used + int(kept.get("inactive_file", 0)))
        folder = folder.parent
    return rooms


def device_bytes() -> int:
    """Bytes of GPUs' memory that this process held at its peak. 0 where torch uses none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    each = (torch.cuda.max_memory_reserved(i) for i in range(torch.cuda.device_count()))
    return sum(each) + CUDA_CONTEXT


def refuse_unless_free(device: str, need: int) -> None:
    """Raise PolicyRefused where the GPU does not hold ``need`` bytes more.

    In the worker that would need them: only a process that uses the GPU can ask it. Its own
    context counts as used by then.
    """
    import torch

    if device == "auto":  # the first copy uses it
        device = "cuda:0"
    free, _ = torch.cuda.mem_get_info(torch.device(device))
    need -= CUDA_CONTEXT
    if need > free:
        raise PolicyRefused(
            f"a second copy needs {need / MIB:.0f} MiB of {device}, {free / MIB:.0f} MiB are free"
        )
