"""A stranger's file: bytes, text, JSON, arrays, with limits that hold before anything is parsed.

Every room reads what somebody else wrote through here (YAML: :mod:`vla_ros.core.yaml_files`), so
that a pipe, a device, a file of gigabytes or a million brackets is refused in one line and at once.
A file that is not there, or may not be read, is an OSError as of ``open``.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from vla_ros.core.errors import UserError

MB = 1 << 20
#: Most bytes of a file, by what it is.
SETTINGS = 4 * MB  # config.json, statistics, lists of hashes: the largest known has 0.4 MB
INDEX = 32 * MB  # a list of tensors: 100,000 names of 100 characters have 15 MB
TOKENIZER = 64 * MB  # tokenizer.json: the largest known, of 262,000 tokens, has 35 MB
RECORDED = 256 * MB  # what our own verbs write and read again: an hour of actions has 60 MB
_DEPTH = 64  # brackets inside brackets; configurations of real checkpoints have 7
_ITEMS = 6_000_000  # values; the largest known tokenizer has 2 million
_NO_STRUCTURE = bytes(set(range(256)) - set(b"[]{},"))
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class BadFile(UserError, ValueError):
    """A file that is not what its name promises: the path, what is wrong, and which limit."""


def open_file(path: Path) -> BinaryIO:
    """A regular file, open to be read. BadFile: it is something else. Links are followed: a cache
    of the hub's is made of them."""
    # Looked at before it is opened, which a device may take for an order, and after: a pipe that
    # took its place meanwhile is opened without waiting for who writes to it.
    _refuse_special(path, path.stat())
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _refuse_special(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _refuse_special(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise BadFile(f"{path} is {kind}, a file is wanted")


def read_bytes(path: Path, most: int) -> bytes:
    """All of a file of at most so many bytes. BadFile, OSError."""
    with open_file(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        content = stream.read(most + 1) if size <= most else b""
    if max(size, len(content)) > most:
        raise BadFile(
            f"{path} has {max(size, len(content)):,} bytes, and at most {most:,} are read of such"
            " a file"
        )
    return content


def sha256_of(path: Path) -> str:
    """SHA-256 of a file of any size, in hexadecimal. BadFile, OSError."""
    digest = hashlib.sha256()
    with open_file(path) as stream:
        while block := stream.read(4 * MB):
            digest.update(block)
    return digest.hexdigest()


def read_text(path: Path, most: int = SETTINGS) -> str:
    """A text in UTF-8. BadFile, OSError."""
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadFile(f"{path} is no text in UTF-8 ({error.reason} at {error.start})") from None


def read_json(path: Path, most: int = SETTINGS) -> Any:
    """The value in a JSON file. BadFile, OSError."""
    return parse_json(read_bytes(path, most), str(path))


def parse_json(content: bytes | str, what: str) -> Any:
    """The value of a JSON text in UTF-8. BadFile, which begins with ``what``: it is none, or has
    too many values or too many brackets inside brackets."""
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    structure = _structure(data)
    opens = (structure == ord("[")) | (structure == ord("{"))
    items = 1 + int(np.count_nonzero(opens)) + int(np.count_nonzero(structure == ord(",")))
    if items > _ITEMS:
        raise BadFile(f"{what} has {items:,} values, and at most {_ITEMS:,} are read")
    closes = (structure == ord("]")) | (structure == ord("}"))
    steps = opens.astype(np.int8) - closes.astype(np.int8)
    depth = int(np.cumsum(steps, dtype=np.int32).max(initial=0))
    if depth > _DEPTH:
        raise BadFile(f"{what} has brackets {depth:,} deep, and at most {_DEPTH} are read")
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadFile(f"{what} is no text in UTF-8 ({error.reason} at {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{what} is no JSON ({error}), perhaps cut short") from None


def _structure(data: bytes) -> npt.NDArray[np.uint8]:
    """The brackets and commas of a JSON text outside its strings: what says, without parsing, how
    many values it has and how deep they lie."""
    # What is left without escapes has a quotation mark only where a string begins or ends.
    bare = data.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in data else data
    letters = np.frombuffer(bare, np.uint8)
    inside = np.bitwise_xor.accumulate(letters == ord('"')) if letters.size else letters > 0
    outside = letters[~inside].tobytes()
    return np.frombuffer(outside.translate(None, _NO_STRUCTURE), np.uint8)


def read_arrays(path: Path, most: int = RECORDED) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a .npz file by their names; that of a .npy file by "". BadFile, OSError.

    ``most`` holds for the file and for what it unpacks to. No pickles.
    """
    with open_file(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        try:
            if size <= most and zipfile.is_zipfile(stream):
                with zipfile.ZipFile(stream) as archive:
                    size = sum(part.file_size for part in archive.infolist())
            if size > most:
                raise BadFile(f"{path} has arrays of {size:,} bytes, and at most {most:,} are read")
            stream.seek(0)
            found = np.load(stream, allow_pickle=False)
            if isinstance(found, np.ndarray):
                return {"": found}
            with found:
                return {name: found[name] for name in found.files}
        except BadFile:
            raise
        except Exception as error:  # zipfile and NumPy raise whatever damaged bytes make them raise
            said = " ".join(str(error).split())[:200]
            raise BadFile(f"{path} holds no arrays of numbers: {said}") from None
