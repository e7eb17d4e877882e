"""Files that somebody else wrote, opened so that what is wrong with one is one line.

Every message begins with the file and says what to do. Nothing here runs code of a stranger:
JSON and safetensors only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.engine.errors import CheckpointError

if TYPE_CHECKING:
    from safetensors import safe_open

LFS_MARK = b"version https://git-lfs"
AGAIN = "copy or download it again"
WINDOW = 1 << 26  # bytes of a mapped file that are read before what is mapped of it is let go


def refuse_broken(path: Path) -> None:
    """Raise CheckpointError where ``path`` is no file with content of its own."""
    if path.is_dir():
        raise CheckpointError(f"{path} is a directory, a file is wanted")
    if path.is_symlink() and not path.exists():
        raise CheckpointError(f"{path} is a link to nothing: {AGAIN}")
    try:
        with path.open("rb") as stream:
            start = stream.read(len(LFS_MARK))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if not start:
        raise CheckpointError(f"{path} is empty: {AGAIN}")
    if start == LFS_MARK:
        raise CheckpointError(
            f"{path} is a git-lfs pointer, not the file itself:"
            f" run `git lfs pull` in {path.parent}, or download it again"
        )


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; CheckpointError for anything else."""
    refuse_broken(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is no text in UTF-8: {AGAIN}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is no JSON ({error}), perhaps cut short: {AGAIN}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds a {type(found).__name__}, a JSON object is wanted")
    return found


@contextmanager
def open_tensors(path: Path) -> Iterator[safe_open]:
    """A safetensors file whose header fits its length; tensors are read when asked for."""
    from safetensors import SafetensorError, safe_open

    refuse_broken(path)
    try:
        with safe_open(str(path), framework="pt") as shard:
            yield shard
    except (SafetensorError, OSError) as error:
        said = " ".join(str(error).split())
        raise CheckpointError(f"{path} is no whole safetensors file ({said}): {AGAIN}") from error


def state_of(path: Path) -> tuple[int, int, int]:
    """What tells that a file is no longer the one that it was."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def weight_map(index: Path) -> dict[str, str]:
    """Tensor -> shard of a ``model.safetensors.index.json``."""
    found = read_json(index).get("weight_map")
    if not isinstance(found, Mapping) or not found:
        raise CheckpointError(f"{index} has no weight_map: {AGAIN}")
    strange = [f for f in found.values() if not isinstance(f, str) or Path(f).name != f]
    if strange:
        raise CheckpointError(f"{index}: weight_map names {strange[0]!r}, no file beside it")
    return dict(found)


def names_in(directory: Path, limit: int = 20) -> str:
    """What a directory holds, for a message."""
    names = sorted(path.name for path in directory.iterdir())
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) + rest) or "nothing"
