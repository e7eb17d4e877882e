"""What killed processes left in /dev/shm: Fast DDS removes its segments only at a clean end.

With the shipped profile a participant has a segment of 32 MB, so a day of `kill -9` fills the
memory. A segment is a leftover when no process maps it and nobody holds its lock, which Fast
DDS keeps for as long as it lives (also in another container that shares /dev/shm).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SHM = Path("/dev/shm")
MIN_AGE_S = 10.0  # a segment that is just being made has no lock yet
_NAME = re.compile(r"(?:sem\.)?(?P<base>(?:fastdds|fastrtps)_(?:port\d+|[0-9a-f]{16}))(?:_\w+)?")
_LOCKS = ("_el", "_sl")


@dataclass(frozen=True, slots=True)
class Leftover:
    """One segment or port with its lock and semaphore."""

    name: str
    files: tuple[Path, ...]
    size: int  # bytes of memory that it holds


def find_leftovers(
    folder: Path = SHM, proc: Path = Path("/proc"), min_age_s: float = MIN_AGE_S
) -> list[Leftover]:
    """The segments of this user that no living process uses."""
    groups: dict[str, list[Path]] = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match:
                groups.setdefault(match["base"], []).append(path)
    mapped = _mapped_names(proc) if groups else set()
    return [
        Leftover(name, tuple(sorted(files)), _size(files))
        for name, files in sorted(groups.items())
        if name not in mapped and _abandoned(files, min_age_s)
    ]


def remove(leftovers: Iterable[Leftover]) -> int:
    """Delete them; returns the bytes that came free."""
    freed = 0
    for leftover in leftovers:
        for path in leftover.files:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        freed += leftover.size
    return freed


def _abandoned(files: Iterable[Path], min_age_s: float) -> bool:
    for path in files:
        try:
            facts = path.stat()
        except FileNotFoundError:
            return False  # somebody is removing it just now
        if facts.st_uid != os.getuid() or time.time() - facts.st_mtime < min_age_s:
            return False
        if path.name.endswith(_LOCKS) and _locked(path):
            return False
    return True


def _locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _mapped_names(proc: Path) -> set[str]:
    """The segments that some process we may look into has in its memory."""
    found: set[str] = set()
    for maps in proc.glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            for line in maps.read_text(errors="replace").splitlines():
                name = os.path.basename(line.rpartition(" ")[2])
                match = _NAME.fullmatch(name)
                if match:
                    found.add(match["base"])
    return found


def _size(files: Iterable[Path]) -> int:
    total = 0
    for path in files:
        with contextlib.suppress(OSError):
            total += path.stat().st_blocks * 512
    return total
