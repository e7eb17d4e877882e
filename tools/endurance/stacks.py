"""What the threads of a process wait for: native stacks by gdb, and which lock cycle they show."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from pathlib import Path

#: Frames of Fast DDS's event thread in which it waits for the mutex of participant discovery.
WAITERS = {
    "set_next_announcement_interval": "announcement",
    "check_remote_participant_liveliness": "lease of a peer",
    "automatic_liveliness_assertion": "liveliness of a writer",
}
REMOVER = "ResourceEvent::unregister_timer"
_THREAD = re.compile(r"^Thread \d+ ", re.MULTILINE)


def have_gdb() -> bool:
    """Whether stacks can be read here."""
    return shutil.which("gdb") is not None


def native(pid: int, seconds: float = 120.0) -> str:
    """The stacks of all threads, "" where gdb is not installed or gave none in time."""
    if not have_gdb():
        return ""
    command = ["gdb", "-batch", "-nx", "-p", str(pid), "-ex", "thread apply all bt 40"]
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        return done.stdout
    return ""


def cycle(stacks: str) -> str:
    """Which of the :data:`WAITERS` stands in a cycle with a writer's removal; "" for none."""
    threads = _THREAD.split(stacks)
    removers = [one for one in threads if REMOVER in one and "removeWriterProxyData" in one]
    for thread in threads if removers else []:
        if "ResourceEvent::event_service" in thread and thread not in removers:
            for frame, what in WAITERS.items():
                if frame in thread:
                    return what
    return ""


def all_asleep(pid: int) -> bool:
    """Every thread waits in a system call; none runs or waits for the processor."""
    tasks = Path(f"/proc/{pid}/task")
    with contextlib.suppress(OSError):
        states = [_state(task) for task in tasks.iterdir()]
        return bool(states) and all(state in "S" for state in states)
    return False


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]
