"""Limits around the library that reads bags, which trusts what a bag says of itself.

A chunk of 400 kB can unpack to gigabytes, a table can compute its messages, a text of a topic's
QoS can be a YAML bomb, a file can be a pipe. Whoever reads a bag takes its path from here.
"""

from __future__ import annotations

import io
import sys
from functools import partial
from pathlib import Path, PurePath
from typing import IO, Any

import apsw
import lz4.frame  # type: ignore[import-untyped]
from rosbags.rosbag2 import reader, storage_mcap, storage_sqlite3
from rosbags.rosbag2.errors import ReaderError

from vla_ros.core.errors import UserError
from vla_ros.core.files import MB, open_file
from vla_ros.core.yaml_files import read_yaml

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: Most bytes of one chunk or message, packed or not. Recorders make chunks of 1 to 4 MB; one has a
#: message at least, and an image of 8K in 16 bits has 200 MB.
MOST_CHUNK = 256 * MB
#: Of the chunks of one moment, which are unpacked beside each other.
MOST_AT_ONCE = 512 * MB
_METADATA = 4 * MB  # metadata.yaml of a day in files of a minute has 0.5 MB ...
_METADATA_VALUES = 50_000  # ... and 25,000 values


class TooLarge(UserError):
    """A part of a bag that is larger than anything that a recorder writes."""


class _Bounded(io.BufferedReader):
    """A file of which no record of gigabytes is read at once: a sparse one is made in no time."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > MOST_CHUNK + MB:
            raise TooLarge(f"a record of {size:,} bytes, and at most {MOST_CHUNK:,} are read")
        found = super().read(size)
        if size == 1 and found == b"\0":  # where a record begins: MCAP has none of kind 0
            raise ReaderError("it ends in zeros, or is none")
        return found


def open_bag(path: Path) -> _Bounded:
    """A bag's file, which is a regular one. BadFile, OSError; TooLarge: from what is read of it."""
    return _Bounded(open_file(path).detach())  # type: ignore[attr-defined]


class BagPath(type(Path())):  # type: ignore[misc]  # what Path() makes, before Python 3.12
    """The path of a bag, whose files are regular ones that are read in bounded parts."""

    def open(self, mode: str = "r", *arguments: Any, **named: Any) -> IO[Any]:
        if mode != "rb":
            opened: IO[Any] = super().open(mode, *arguments, **named)
            return opened
        return open_bag(Path(self))


def unpack(data: bytes, size: int = MOST_CHUNK, kind: str = "zstd") -> bytes:
    """Compressed bytes, unpacked: ``size`` at most. TooLarge: it is more, or that is too much."""
    if size > MOST_CHUNK:
        raise TooLarge(f"a chunk of {size:,} bytes, and at most {MOST_CHUNK:,} are unpacked")
    found = bytearray()
    rest = data
    while rest and len(found) <= size:  # a file may have several frames, one behind the other
        frame = zstd.ZstdDecompressor() if kind == "zstd" else lz4.frame.LZ4FrameDecompressor()
        found += frame.decompress(rest, max_length=size + 1 - len(found))
        if not frame.eof and len(found) <= size:
            raise zstd.ZstdError("the chunk is cut off")
        rest = frame.unused_data or b""
    if len(found) > size:
        raise TooLarge(f"a chunk that unpacks to more than {size:,} bytes")
    return bytes(found)


def unpack_file(source: Path, target: Path, most: int) -> int:
    """Unpack a file of zstd into another; returns its size. TooLarge: more than ``most`` bytes."""
    size = 0
    with open_file(source) as packed, zstd.open(packed, "rb") as stream, target.open("wb") as out:
        while block := stream.read(4 * MB):
            size += len(block)
            if size > most:
                raise TooLarge(f"{source} unpacks to more than {most:,} bytes, which is refused")
            out.write(block)
    return size


def read_metadata(folder: Path) -> tuple[list[Path], str]:
    """The files that a bag's metadata.yaml names, and how they are compressed: "", "file" or
    "message". BadFile, OSError: it cannot be read, or a file is none."""
    content = read_yaml(folder / "metadata.yaml", _METADATA, _METADATA_VALUES)
    found = content.get("rosbag2_bagfile_information") if isinstance(content, dict) else None
    names = found.get("relative_file_paths") if isinstance(found, dict) else None
    files = [folder / PurePath(name).name for name in names or () if isinstance(name, str)]
    for file in files:
        if file.exists():
            open_file(file).close()
    mode = str(found.get("compression_mode") or "").lower() if isinstance(found, dict) else ""
    return files, "" if mode == "none" else mode


def messages_of(folder: Path) -> int:
    """Number of messages that a bag's metadata.yaml counts. BadFile, OSError."""
    content = read_yaml(folder / "metadata.yaml", _METADATA, _METADATA_VALUES)
    found = content.get("rosbag2_bagfile_information") if isinstance(content, dict) else None
    count = found.get("message_count") if isinstance(found, dict) else None
    return count if isinstance(count, int) and count > 0 else 0


def check_chunks(chunks: list[Any]) -> None:
    """Raise TooLarge where chunks of one moment, by the index of an MCAP file, are too much."""
    moments: list[tuple[int, int]] = []
    for chunk in chunks:
        moments.append((chunk.message_start_time, chunk.uncompressed_size))
        moments.append((chunk.message_end_time + 1, -chunk.uncompressed_size))
    together = 0
    for _, size in sorted(moments):
        together += size
        if together > MOST_AT_ONCE:
            raise TooLarge(f"chunks of one moment of more than {MOST_AT_ONCE:,} bytes")


def _limit(database: apsw.Connection) -> None:
    """No value of a database is larger than a message, and its schema calls no functions."""
    database.limit(apsw.SQLITE_LIMIT_LENGTH, MOST_CHUNK)
    database.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)


def _no_qos(given: object) -> list[Any]:
    """Nobody here asks for the QoS of a bag's topics, and their text is YAML of a stranger's."""
    return []


# The library has its parts in tables and modules: the limits take their places there.
storage_mcap.DECOMPRESSORS["zstd"] = partial(unpack, kind="zstd")
storage_mcap.DECOMPRESSORS["lz4"] = partial(unpack, kind="lz4")
apsw.connection_hooks.append(_limit)
for _module in (storage_mcap, storage_sqlite3, reader):
    _module.parse_qos = _no_qos  # type: ignore[attr-defined]
