"""The lock: which commit a hub id without one means, and the SHA-256 of each of its files.

A file of JSON, made to be kept in git beside the robot's file, where $VLA_ROS_LOCK names it, and
one in the user's state folder, which answers for ids that the first does not have. An id that
neither has is resolved once (:mod:`vla_ros.engine.io.hub`) and written to both.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vla_ros.core.files import BadFile, read_json
from vla_ros.engine.errors import CheckpointError

VARIABLE = "VLA_ROS_LOCK"
FILE = "vla_ros.lock"
RENEW = "vla-ros lock"
COMMIT = re.compile(r"[0-9a-f]{40}")
_SUM = re.compile(r"[0-9a-f]{64}")
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Held:
    """What an id is held to. ``files``: name, relative to the snapshot, to SHA-256 in hexadecimal;
    ``wanted``: the patterns that they were downloaded by; ``source``: the lock that has it."""

    commit: str
    files: Mapping[str, str]
    wanted: tuple[str, ...] = ()
    source: Path = field(default=Path(), compare=False)


def beside(file: Path) -> Path:
    """The lock of a robot's file, or of another parameter file."""
    return file.expanduser().absolute().with_name(FILE)


def use_beside(file: Path) -> None:
    """Let this process and those that it starts hold ids beside a robot's file, unless the
    operator named a lock."""
    os.environ.setdefault(VARIABLE, str(beside(file)))


@contextmanager
def beside_it(file: Path | None) -> Iterator[None]:
    """The same within the block."""
    before = os.environ.get(VARIABLE)
    if file is not None:
        use_beside(file)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)


def locks() -> tuple[Path, ...]:
    """The files of this process, the one that wins first."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    given = os.environ.get(VARIABLE)
    found = [Path(given).expanduser().absolute()] if given else []
    return tuple(dict.fromkeys([*found, Path(state) / "vla_ros" / FILE]))


def find(name: str) -> Held | None:
    """What ``name`` is held to; None: nowhere yet. CheckpointError: a lock cannot be read."""
    return next((held[name] for path in locks() if name in (held := read(path))), None)


def read(path: Path) -> dict[str, Held]:
    """Every id of a lock; {} where there is no such file. CheckpointError: it is no lock."""
    try:
        content = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, BadFile) as error:
        raise CheckpointError(f"the lock cannot be read: {error}") from error
    try:
        if content["version"] != _VERSION:
            raise ValueError
        return {name: _held(entry, path) for name, entry in content["checkpoints"].items()}
    except (TypeError, KeyError, ValueError, AttributeError):
        raise CheckpointError(
            f"{path} is no lock of this version (an id has a commit of 40 digits, and files with"
            f" their SHA-256): bring it back, or delete it and run `{RENEW} ID`"
        ) from None


def _held(entry: Any, source: Path) -> Held:
    files = entry["files"]
    sums = [entry["commit"], *files.values()]
    for text, pattern in zip(sums, [COMMIT, *[_SUM] * len(files)], strict=True):
        if pattern.fullmatch(text) is None:
            raise ValueError(text)
    if any(Path(name).is_absolute() or ".." in Path(name).parts for name in files):
        raise ValueError("a path")
    return Held(entry["commit"], dict(files), tuple(entry["wanted"]), source)


def write(name: str, held: Held, again: bool = False) -> Path:
    """Hold ``name`` in each lock that does not have it, or with ``again`` in each of them; returns
    the first. CheckpointError: none can be written."""
    written, last = [], ""
    for path in locks():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _alone(path.parent):
                known = read(path)
                if again or name not in known:
                    _replace(path, {**known, name: held})
            written.append(path)
        except OSError as error:
            last = f"{error.filename or path}: {error.strerror}"
    if not written:
        raise CheckpointError(
            f"{name} cannot be held to a commit, the lock cannot be written ({last}): give"
            f" {name.partition('@')[0]}@{held.commit}"
        )
    return written[0]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time reads and writes the locks of a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, entries: Mapping[str, Held]) -> None:
    rows = {
        name: {"commit": held.commit, "wanted": list(held.wanted), "files": dict(held.files)}
        for name, held in sorted(entries.items())
    }
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_text(json.dumps({"version": _VERSION, "checkpoints": rows}, indent=1) + "\n")
        scratch.replace(path)
    finally:
        with suppress(FileNotFoundError):
            scratch.unlink()
