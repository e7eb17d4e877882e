"""Files and folders: read so that what is wrong with one is one line, written whole or not at all.

Every message about a file that somebody else wrote begins with the file and says what to do.
Nothing here runs code of a stranger: JSON and safetensors only.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from vla_ros.core import files
from vla_ros.core.files import INDEX, SETTINGS, BadFile, open_file, parse_json
from vla_ros.core.private import temporary_folder
from vla_ros.engine.errors import CheckpointError

#: The checkpoints that come with the package.
SHIPPED_FOLDER = Path(__file__).resolve().parents[2] / "shipped"
LFS_MARK = b"version https://git-lfs"
AGAIN = "copy or download it again"
#: What a checkpoint has beside its weights that says how it is run.
BESIDE = (
    "config.json",
    "dataset_statistics.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "README.md",
    "LICENSE",
)
WINDOW = 1 << 26  # bytes of a mapped file that are read before what is mapped of it is let go


def refuse_broken(path: Path) -> None:
    """Raise CheckpointError where ``path`` is no file with content of its own."""
    if path.is_symlink() and not path.exists():
        raise CheckpointError(f"{path} is a link to nothing: {AGAIN}")
    try:
        with open_file(path) as stream:
            start = stream.read(len(LFS_MARK))
    except BadFile as error:
        raise CheckpointError(str(error)) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if not start:
        raise CheckpointError(f"{path} is empty: {AGAIN}")
    if start == LFS_MARK:
        raise CheckpointError(
            f"{path} is a git-lfs pointer, not the file itself:"
            f" run `git lfs pull` in {path.parent}, or download it again"
        )


def read_json(path: Path, most: int = SETTINGS) -> dict[str, Any]:
    """The JSON object in ``path``, of so many bytes at most; CheckpointError for anything else."""
    refuse_broken(path)
    try:
        found = files.read_json(path, most)
    except BadFile as error:
        raise CheckpointError(f"{error}: {AGAIN}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds a {type(found).__name__}, a JSON object is wanted")
    return found


def text_in(path: Path, key: str) -> str | None:
    """The text ``key`` of a JSON file; None: there is no such file, it is damaged, or has none."""
    try:
        found = read_json(path).get(key) if path.is_file() else None
    except CheckpointError:
        return None
    return found if isinstance(found, str) else None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A CheckpointError from inside the block names the file that it is about."""
    try:
        yield
    except CheckpointError as error:
        text = str(error)
        raise CheckpointError(text if str(path) in text else f"{path}: {text}") from None


def tokenizer_folders(directory: Path, given: str | None, name: str = "") -> list[Path]:
    """The folders in which a tokenizer may be: that of the path given; else the checkpoint's own,
    and where its ``name`` is a folder."""
    if given:
        chosen = Path(given).expanduser()
        return [chosen if chosen.is_dir() else chosen.parent]
    folders = [directory, directory / "tokenizer"]
    if name and (Path(name).is_absolute() or (directory / name).is_dir()):
        folders.append(directory / name)
    return folders


@contextmanager
def open_tensors(path: Path) -> Iterator[safe_open]:
    """A safetensors file whose header fits its length; tensors are read when asked for."""
    with refusing_damaged(path):
        _header_text(path)
        with safe_open(str(path), framework="pt") as shard:
            yield shard


@contextmanager
def refusing_damaged(path: Path) -> Iterator[None]:
    """Errors of safetensors become a CheckpointError that names the file."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        said = " ".join(str(error).split())
        raise CheckpointError(f"{path} is no whole safetensors file ({said}): {AGAIN}") from error


def header(path: Path) -> dict[str, Any]:
    """Tensor -> what a safetensors file says of it, without reading any. CheckpointError: the file
    is not there, cut or a pointer."""
    text = _header_text(path)
    try:
        found = parse_json(text, f"the header of {path}") if text else None
    except BadFile:
        found = None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is no whole safetensors file: {AGAIN}")
    found.pop("__metadata__", None)
    ends = [_end(part) for part in found.values()]
    if None in ends:
        raise CheckpointError(f"{path} is no whole safetensors file (its header is none): {AGAIN}")
    if 8 + len(text) + max(filter(None, ends), default=0) != path.stat().st_size:
        raise CheckpointError(f"{path} is no whole safetensors file (cut short): {AGAIN}")
    return found


def _header_text(path: Path) -> bytes:
    """The bytes of a safetensors header; CheckpointError where no index has so many."""
    refuse_broken(path)
    with open_file(path) as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if length > min(INDEX, os.fstat(stream.fileno()).st_size):
            raise CheckpointError(
                f"{path} is no whole safetensors file: a header of {length:,} bytes, and at most"
                f" {INDEX:,} of a file are read: {AGAIN}"
            )
        return stream.read(length)


def _end(part: object) -> int | None:
    """Where a tensor ends in its file's data, by the header; None: it does not say so."""
    offsets = part.get("data_offsets") if isinstance(part, dict) else None
    if not isinstance(offsets, list) or [type(n) for n in offsets] != [int, int]:
        return None
    begin, end = offsets
    return end if 0 <= begin <= end else None


def state_of(path: Path) -> tuple[int, int, int]:
    """The state of a file, which changes when it is written to."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def weight_map(index: Path) -> dict[str, str]:
    """Tensor -> shard of a ``model.safetensors.index.json``."""
    found = read_json(index, INDEX).get("weight_map")
    if not isinstance(found, Mapping) or not found:
        raise CheckpointError(f"{index} has no weight_map: {AGAIN}")
    strange = [f for f in found.values() if not isinstance(f, str) or Path(f).name != f]
    if strange:
        raise CheckpointError(f"{index}: weight_map names {strange[0]!r}, no file beside it")
    return dict(found)


def names_in(directory: Path) -> str:
    """The names in a directory, for a message."""
    return some(sorted(path.name for path in directory.iterdir()), 20) or "nothing"


def some(names: Iterable[str], limit: int) -> str:
    """The first of some names, and how many more there are."""
    names = list(names)
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def write_json(path: Path, content: object) -> None:
    """Indented, with a line's end behind it."""
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def copy_beside(source: Path, target: Path) -> None:
    """The small files of a checkpoint, over those that are there."""
    for name in BESIDE:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


@contextmanager
def publishing(target: Path) -> Iterator[Path]:
    """A scratch directory beside ``target`` that takes its name when the block ends well.

    Raises CheckpointError where there is something of that name; messages from inside the block
    speak of the target.
    """
    if target.exists() or target.is_symlink():
        raise CheckpointError(f"{target} exists: remove it, or give another name")
    scratch = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir(parents=True)
        yield scratch
        _share(scratch)
        scratch.rename(target)
    except CheckpointError as error:
        raise CheckpointError(str(error).replace(str(scratch), str(target))) from error
    except (OSError, SafetensorError) as error:
        said = " ".join(str(error).split())
        raise CheckpointError(f"cannot write {target}: {said}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _share(scratch: Path) -> None:
    """Readable as any new file is: safetensors writes for its owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    for path in scratch.iterdir():
        path.chmod(0o666 & ~mask)


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
        path = temporary_folder("vla_ros_random")
    return path


def give_back_freed() -> None:
    """Let the kernel have what glibc keeps of freed memory, such as float32 tensors between reading
    and what is made of them. Nothing where there is no glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of mallopt(3)
_APART, _MOST = 1 << 20, 1 << 25  # glibc takes no more than 32 MB


@contextmanager
def memory_returned() -> Iterator[None]:
    """Within, what is freed goes back to the kernel at once, where it had 1 MB or more: while a
    model is loaded memory is what is in use and no more. Behind it blocks below 32 MB are kept for
    the next one, as glibc does by itself once such a block was freed: activations cost no new
    pages. Nothing where there is no glibc."""
    setting = getattr(ctypes.CDLL(None), "mallopt", None)
    if setting is not None:
        setting(_MMAP_THRESHOLD, _APART)
    try:
        yield
    finally:
        if setting is not None:
            setting(_MMAP_THRESHOLD, _MOST)
            setting(_TRIM_THRESHOLD, 2 * _MOST)
        give_back_freed()
