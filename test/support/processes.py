"""Looking at processes of this machine through /proc."""

from __future__ import annotations

import contextlib
from pathlib import Path

PROC = Path("/proc")


def alive(pid: int) -> bool:
    """Whether this process runs (a zombie does not)."""
    fields = _fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def children(pid: int) -> list[int]:
    """Processes that one of its threads started and that are still its own; none where it ended."""
    found = []
    with contextlib.suppress(OSError):
        for task in (PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has just ended
                found += map(int, (task / "children").read_text().split())
    return found


def session(leader: int) -> list[int]:
    """The processes of a session: whatever its leader started."""
    return [pid for pid in _pids() if _fields(pid)[3:4] == [str(leader)]]


def with_words(*words: str) -> list[int]:
    """Processes whose command line has all of these."""
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            line = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace")
            if all(word in line for word in words):
                found.append(pid)
    return found


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def _fields(pid: int) -> list[str]:
    """Of its stat, from the state on; empty where there is no such process."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
