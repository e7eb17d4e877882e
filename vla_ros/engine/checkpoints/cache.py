"""Where checkpoints with random weights are kept between runs."""

from __future__ import annotations

import getpass
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def cached(name: str, write: Callable[[Path], None]) -> Path:
    """The directory ``name`` of the cache, filled by ``write(directory)`` where it is not there.

    It is written beside its place and renamed, so that two processes cannot mix their files.
    """
    directory = _root() / name
    if directory.is_dir():
        return directory
    scratch = Path(tempfile.mkdtemp(dir=directory.parent))
    try:
        write(scratch)
        try:
            scratch.rename(directory)
        except OSError:
            if not directory.is_dir():  # or another process was first
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return directory


def _root() -> Path:
    """In the user's cache directory, or under the temporary one where that is read-only."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = base / "vla_ros" / "random"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        path = Path(tempfile.gettempdir()) / f"vla_ros-random-{getpass.getuser()}"
        path.mkdir(parents=True, exist_ok=True)
    return path
