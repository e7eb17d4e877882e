"""Folders and files of this user alone: locks in the temporary folder, and what was recorded."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from vla_ros.core.console import log_line

_MASK = threading.Lock()  # two at once would each keep the other's mask


def temporary_folder(name: str) -> Path:
    """The folder of this user for ``name`` that every process of theirs finds, mode 0700.

    In the temporary folder; where somebody else prepared that one, in $XDG_RUNTIME_DIR; else a
    fresh one, which no other process finds, with one line on stderr.
    """
    wanted = Path(tempfile.gettempdir()) / f"{name}_{os.getuid()}"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    for path in (wanted, *([Path(runtime) / name] if os.path.isabs(runtime) else ())):
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            if _is_ours(path):
                return path
    return _fresh(name, wanted)


@functools.cache
def _fresh(name: str, instead_of: Path) -> Path:
    """A folder of this process, which goes when it ends."""
    made = Path(tempfile.mkdtemp(prefix=f"{name}_"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    log_line(
        f"{instead_of} is not a folder of yours alone (mode 0700): {made} is used instead, which no"
        " other process finds; remove the first, or set TMPDIR"
    )
    return made


def _is_ours(path: Path) -> bool:
    """Whether it is a folder, no link, of this user, that nobody else may enter."""
    found = path.lstat()
    folder = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return folder and not stat.S_IMODE(found.st_mode) & 0o077


def open_lock(path: Path) -> int:
    """Descriptor of a file to be locked, made where it is not there, never emptied. OSError: there
    is a link, or something that is no file. The caller closes it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    lock = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        os.close(lock)
        raise OSError(f"{path} is no file")
    return lock


@contextlib.contextmanager
def owner_only() -> Iterator[None]:
    """What is made inside is readable by its owner alone: folders 0700, files 0600.

    From their first moment: a mode that is set afterwards comes too late for who has opened them.
    The mask is the process's: what other threads make meanwhile is private too, so be short.
    """
    with _MASK:
        before = os.umask(0o077)
        try:
            yield
        finally:
            os.umask(before)
