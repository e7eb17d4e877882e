"""Folders of LIBERO's and LIBERO-PRO's files on this machine: their paths, completeness and digest.
Knows no suite and no task.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from vla_ros.core.files import sha256_of
from vla_ros.sim.env import SimError

#: what a folder of LIBERO's assets holds
ASSETS_FOLDERS: Final = (
    "articulated_objects",
    "scenes",
    "stable_hope_objects",
    "stable_scanned_objects",
    "textures",
    "turbosquid_objects",
)
#: what LIBERO-PRO's folder holds
PRO_FOLDERS: Final = ("bddl_files", "init_files")
PRO_VARIABLE: Final = "VLA_ROS_LIBERO_PRO"
PRO_HOW: Final = "run `vla-ros libero setup --pro`"


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Folder of unpacked archives and of Numba's compiled code."""
    base = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vla_ros" / "libero"


def is_assets(folder: Path) -> bool:
    """True of a folder like LIBERO's assets."""
    return all((folder / name).is_dir() for name in ASSETS_FOLDERS)


def is_pro(folder: Path) -> bool:
    """True of a folder like LIBERO-PRO's."""
    return all((folder / name).is_dir() for name in PRO_FOLDERS)


def pro_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Folder of LIBERO-PRO's files."""
    given = environ.get(PRO_VARIABLE)
    return Path(given).expanduser() if given else cache_folder(environ) / "pro"


def find_pro(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder with bddl_files and init_files. SimError, with what to do: there is none."""
    folder = pro_folder(environ)
    if is_pro(folder):
        return folder
    if environ.get(PRO_VARIABLE):
        raise SimError(f"{PRO_VARIABLE}: {folder} has no {' and '.join(PRO_FOLDERS)}")
    raise SimError(f"LIBERO-PRO's files are missing: {PRO_HOW}")


@functools.cache
def digest_of(folder: Path) -> str:
    """Digest of the contents of a folder: 12 hex digits of a SHA-256 over all files'.

    Takes a second for the benchmark's own 622 MB. Hidden files (the hub's notes) do not count.
    """
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts):
            continue
        total.update(f"{name.as_posix()}\0{sha256_of(path)}\n".encode())
    return total.hexdigest()[:12]
