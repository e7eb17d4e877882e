"""Bags of rosbag2: sqlite3 and MCAP, whole or cut off, read without ROS.

with Bag(Path("run1")) as bag:
    for message in bag.messages(["/image"]):
        stamp = bag.decode(message).header.stamp
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import heapq
import json
import shutil
import struct
from collections.abc import Collection, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from rosbags.interfaces import Connection
from rosbags.rosbag2 import Reader
from rosbags.rosbag2.errors import ReaderError
from rosbags.rosbag2.storage_mcap import MAXSIZE, McapReader

from vla_ros.core.clock import SECOND
from vla_ros.core.errors import UserError
from vla_ros.core.files import BadFile, open_file, read_text
from vla_ros.data.bag_limits import (
    BagPath,
    TooLarge,
    check_chunks,
    messages_of,
    open_bag,
    read_metadata,
    unpack,
    unpack_file,
)
from vla_ros.data.bag_video import IMAGE, TopicVideo, is_video
from vla_ros.data.bag_writer import PACKAGE, DamagedChunk, typestore
from vla_ros.data.run_info import FILE, KEY, RunInfo

# Reading an MCAP file that nobody closed: a killed recorder, a full disk, half a copy.
#
# Such a file has no index and its last record may be cut. Every complete record before that is
# good, so the file is scanned from its beginning up to there. Works on what `rosbags` does for
# files without an index; MCAP's record framing is in https://mcap.dev/spec.


_MAGIC = b"\x89MCAP0\r\n"
_FOOTER, _DATA_END = 0x02, 0x0F
_REORDER = 2_000  # messages that may lie between two that came in the other order ...
_REORDER_BYTES = 64 << 20  # ... and their size

Message = tuple[Connection, int, bytes]


class UnfinishedMcap(McapReader):
    """A reader of the complete part of such a file. ``lost_bytes``: what the part lacks.

    ReaderError: not an MCAP file of ROS 2, or cut before its first message.
    """

    lost_bytes = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path)

    @property
    def start_time(self) -> int:
        return int(self.metadata.start_time)

    def _open(self) -> None:
        assert self.bio is not None
        if self.bio.read(len(_MAGIC)) != _MAGIC:
            raise ReaderError("it is no MCAP file")
        self.data_start = self.bio.tell()
        self._scan(self.bio)
        self.lost_bytes = self.bio.seek(0, 2) - self.data_end
        if self.statistics is None or self.statistics.message_count == 0:
            raise ReaderError("it was cut off before its first message")
        counts = self.statistics.channel_message_counts
        self.connections = [c._replace(msgcount=counts.get(c.id, 0)) for c in self.connections]
        start, end = self.statistics.start_time, self.statistics.end_time
        self.metadata = self.metadata._replace(
            duration=end - start + 1,
            start_time=start,
            end_time=end + 1,
            message_count=self.statistics.message_count,
        )

    def _scan(self, file: BinaryIO) -> None:
        """Find the end of what is good: the last complete record, or the one before a chunk that
        cannot be unpacked."""
        begins = _records(file)
        while begins:
            self.data_end = begins[-1]
            try:
                self.meta_scan()
                return
            except (ReaderError, DamagedChunk):
                del begins[bisect.bisect_left(begins, file.tell()) :]

    def messages(
        self, connections: Collection[Connection], start: int | None = None, stop: int | None = None
    ) -> Generator[Message, None, None]:
        """Messages in order of time; the file may have them slightly out of it."""
        held: list[tuple[int, int, Message]] = []
        size = 0
        own = copy.copy(self)  # several scans may be under way: each needs its own position
        with open_bag(Path(str(self.path))) as own.bio:
            scan = own.messages_scan(connections, start or 0, MAXSIZE if stop is None else stop)
            for i, message in enumerate(scan):
                heapq.heappush(held, (message[1], i, message))
                size += len(message[2])
                while len(held) > _REORDER or size > _REORDER_BYTES:
                    oldest = heapq.heappop(held)[2]
                    size -= len(oldest[2])
                    yield oldest
        while held:
            yield heapq.heappop(held)[2]


def _records(file: BinaryIO) -> list[int]:
    """Offsets of the complete records before the summary, and the end of the last."""
    size = file.seek(0, 2)
    found = [len(_MAGIC)]
    while found[-1] + 9 <= size:
        file.seek(found[-1])
        kind, length = struct.unpack("<BQ", file.read(9))
        if kind in (0, _FOOTER, _DATA_END) or found[-1] + 9 + length > size:
            break
        found.append(found[-1] + 9 + length)
    return found


class BagError(UserError):
    """A bag, golden file or choice of topics that cannot be replayed: what is wrong, and what
    to do about it, in one line."""


_ENDINGS = (".mcap", ".db3")
_ZSTD, _ZSTD_FRAME = ".zstd", b"\x28\xb5\x2f\xfd"  # no message begins so: CDR begins with 0
_ROS1 = "it is of ROS 1: `rosbags-convert --src {} --dst NEW` (of rosbags) makes one of ROS 2"


def _is_bag(file: Path) -> bool:
    """Whether a file is one of a bag, by its name; rosbag2 may have compressed it whole."""
    return Path(file.name.removesuffix(_ZSTD)).suffix in _ENDINGS


def _refuse_log(files: Iterable[Path]) -> None:
    """Raise BagError for a database whose newest rows lie in the write-ahead log beside it, as a
    killed recorder leaves them: the reader looks at the database alone."""
    for file in files:
        log = file.with_name(f"{file.name}-wal")
        if file.suffix == ".db3" and log.is_file() and log.stat().st_size:
            raise BagError(
                f"{file}: messages lie in {log.name} ({log.stat().st_size:,} bytes), as a killed"
                f" recorder leaves them, and would be missing: sqlite3 {file.name} 'PRAGMA"
                " wal_checkpoint(TRUNCATE)' brings them in"
            )


@dataclass(frozen=True, slots=True)
class BagMessage:
    """One message: its topic and type, when it was recorded, and itself, serialized (CDR)."""

    topic: str
    kind: str
    stamp_ns: int
    data: bytes


@dataclass(frozen=True, slots=True)
class BagTopic:
    """A topic of a bag and how many messages it has."""

    name: str
    kind: str
    count: int


class Bag:
    """An open bag: a folder or one of its files. BagError: it cannot be read, and why.

    ``notes``: remarks for the user, one line each (it was cut off, ...).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        self._compressed = ""  # what was, of the whole bag: "file" or "message"
        self._scratch = contextlib.ExitStack()
        self._readers = self._open_all()
        self._check()

    def __enter__(self) -> Bag:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        for reader in self._readers:
            with contextlib.suppress(AssertionError):
                reader.close()
        self._readers = []
        self._scratch.close()

    # Opening

    def _open_all(self) -> list[Any]:
        if not self.path.exists():
            raise BagError(f"{self.path}: there is no such bag")
        if self.path.is_dir() and not (self.path / "metadata.yaml").is_file():
            files = sorted(p for p in self.path.iterdir() if _is_bag(p))
            if not files:
                old = next(self.path.glob("*.bag"), None)
                hint = _ROS1.format(old) if old else "it has no metadata.yaml, .mcap or .db3"
                raise BagError(f"{self.path}: no bag: {hint}")
            return self._open_files(files)
        if self.path.is_file():
            if not _is_bag(self.path):
                ros1 = self.path.suffix == ".bag"
                hint = _ROS1.format(self.path) if ros1 else "give a folder, an .mcap or a .db3 file"
                raise BagError(f"{self.path}: no bag: {hint}")
            return self._open_files([self.path])
        try:
            files, self._compressed = read_metadata(self.path)
            _refuse_log(files)
            if self._compressed:
                return self._open_files(files)
            return [_opened(Reader(BagPath(self.path)))]
        except BagError:
            raise
        except TooLarge as error:
            raise BagError(f"{self.path}: refused: {error}") from None
        except Exception as error:  # rosbags raises whatever its parsers raise
            files = sorted(p for p in self.path.iterdir() if _is_bag(p))
            if not files:
                raise BagError(f"{self.path}: cannot be read: {_line(error)}") from None
            found = self._open_files(files)
            self._note_missing(found)
            return found

    def _note_missing(self, readers: list[Any]) -> None:
        """Add a line about files that the metadata name and that are not there."""
        try:
            named, _ = read_metadata(self.path)
            count = messages_of(self.path)
        except (OSError, BadFile):
            return
        lost = [file.name for file in named if not file.exists()]
        there = sum(map(_count, readers))
        if not lost or there == count:  # renamed, perhaps
            return
        holes = [after.start_time - _end(before) for before, after in pairwise(readers)]
        longest = max(holes, default=0) / SECOND
        where = f", the longest hole is {longest:.1f} s" if longest > 0 else ""
        self.notes.append(
            f"{', '.join(lost)}, which metadata.yaml names, is not there:"
            f" {max(0, count - there)} of {count} messages are missing{where}"
        )

    def _unpacked(self, files: list[Path]) -> list[Path]:
        """The files as SQLite and MCAP can read them: those that were compressed whole, unpacked
        where there is room for them. BagError: they cannot be."""
        if not any(file.suffix == _ZSTD for file in files):
            return files
        folder = Path(self._scratch.enter_context(TemporaryDirectory(prefix="vla_ros_bag_")))
        found = []
        for file in files:
            if file.suffix != _ZSTD:
                found.append(file)
                continue
            room = shutil.disk_usage(folder).free // 2  # the rest of the machine needs some too
            try:
                unpack_file(file, folder / file.stem, room)
            except TooLarge as error:
                raise BagError(f"{file}: refused: {error}") from None
            except (OSError, BadFile, EOFError, DamagedChunk) as error:
                raise BagError(f"{file}: cannot be unpacked: {_line(error)}") from None
            found.append(folder / file.stem)
        return found

    def _open_files(self, files: list[Path]) -> list[Any]:
        """Readers in order of time, which a split bag's names do not give: rosbag2 writes bag_9 and
        bag_10, from Lyrical on 9_bag_<date> and 10_bag_<date>."""
        files = self._unpacked(files)
        return sorted(map(self._open_file, files), key=lambda reader: reader.start_time)

    def _open_file(self, file: Path) -> Any:
        try:
            with open_file(file) as stream:
                empty = not stream.read(1)
        except (OSError, BadFile) as error:
            raise BagError(f"cannot be read: {_line(error)}") from None
        if empty:
            raise BagError(f"{file}: the file is empty")
        _refuse_log([file])
        try:
            return _opened(Reader(BagPath(file)))
        except TooLarge as error:
            raise BagError(f"{file}: refused: {error}") from None
        except Exception as error:  # as above
            if file.suffix != ".mcap":
                hint = "damaged or cut off; try `sqlite3 FILE .recover`"
                raise BagError(f"{file}: {hint} ({_line(error)})") from None
        reader = UnfinishedMcap(BagPath(file))
        try:
            reader.open()
        except TooLarge as error:
            raise BagError(f"{file}: refused: {error}") from None
        except Exception as error:  # as above
            raise BagError(f"{file}: cannot be read: {_line(error)}") from None
        found = reader.metadata
        self.notes.append(
            f"{file.name} was not closed properly or is cut off: {found.message_count} messages of"
            f" {found.duration / SECOND:.1f} s could be read, {reader.lost_bytes} bytes not"
        )
        return reader

    def _check(self) -> None:
        if not any(topic.count for topic in self.topics):
            self.close()
            raise BagError(f"{self.path}: the bag is empty: it has no message")
        wrong = {c.ext.serialization_format for c in self._connections()} - {"cdr"}
        if wrong:
            self.close()
            raise BagError(f"{self.path}: serialized as {', '.join(sorted(wrong))}, only cdr is")
        other = sorted({c.msgtype for c in self._connections() if _redefined(c)})
        if other:
            self.close()
            raise BagError(
                f"{self.path}: recorded with another definition of {', '.join(other)} than this"
                " version's: record it again"
            )

    # Reading

    def _connections(self) -> list[Any]:
        return [c for reader in self._readers for c in reader.connections]

    @cached_property
    def topics(self) -> tuple[BagTopic, ...]:
        """Topics in order of their names. BagError: a topic with messages of several types."""
        counts: dict[str, BagTopic] = {}
        for connection in self._connections():
            name, kind = connection.topic, connection.msgtype
            if not _sound(name, kind, connection.msgcount):
                found = f"{name!r} of type {kind!r}, {connection.msgcount!r} messages"
                raise BagError(f"{self.path}: its metadata is damaged: topic {found}")
            if name in self._videos:
                kind = IMAGE
            before = counts.get(name)
            if before is not None and before.kind != kind:
                raise BagError(f"{self.path}: {name} has messages of {before.kind} and {kind}")
            count = connection.msgcount + (before.count if before else 0)
            counts[name] = BagTopic(name, kind, count)
        return tuple(counts[name] for name in sorted(counts))

    @cached_property
    def _videos(self) -> frozenset[str]:
        """Topics whose messages are packets of video."""
        return frozenset(
            c.topic
            for c in self._connections()
            if _sound(c.topic, c.msgtype, c.msgcount)
            and is_video(c.msgtype, partial(self._first, c.topic))
        )

    def _first(self, topic: str) -> bytes | None:
        with contextlib.closing(self._recorded({topic})) as messages:
            return next((message.data for message in messages), None)

    def messages(self, topics: Iterable[str]) -> Iterator[BagMessage]:
        """Messages of these topics, in the order in which they were recorded; of packets of video
        the images that they are decoded to.

        BagError: the bag is damaged in the middle, or nothing of a video can be decoded.
        """
        wanted = set(topics)
        videos: dict[str, TopicVideo] = {}
        for message in self._recorded(wanted):
            if message.topic not in self._videos:
                yield message
                continue
            video = videos.setdefault(message.topic, TopicVideo(message.kind))
            try:
                image = video.image(message.data)
            except Exception as error:  # the parser raises whatever malformed bytes make it raise
                raise BagError(f"{self.path}: {message.topic} is damaged: {_line(error)}") from None
            if image is not None:
                yield replace(message, kind=IMAGE, data=image)
        for topic, video in videos.items():
            if not video.decoded:
                raise BagError(f"{self.path}: {topic}: no packet is decoded: {video.why}")
            if (note := video.note(topic)) and note not in self.notes:
                self.notes.append(note)

    def _recorded(self, wanted: set[str]) -> Generator[BagMessage, None, None]:
        for shared in self._readers:
            reader = _own(shared)
            try:
                chosen = [c for c in reader.connections if c.topic in wanted]
                for connection, stamp, data in reader.messages(chosen) if chosen else ():
                    if self._compressed == "message" or bytes(data[:4]) == _ZSTD_FRAME:
                        data = unpack(bytes(data))
                    yield BagMessage(connection.topic, connection.msgtype, stamp, bytes(data))
            except Exception as error:  # rosbags and SQLite raise whatever damage makes them raise
                raise BagError(f"{self.path}: damaged: {_line(error)}") from None
            finally:
                if reader is not shared:
                    reader.close()

    def decode(self, message: BagMessage) -> Any:
        """The message's fields. BagError: it is not what its type says."""
        try:
            return typestore().deserialize_cdr(message.data, message.kind)
        except Exception as error:  # the parser raises whatever malformed bytes make it raise
            raise BagError(
                f"{self.path}: a message on {message.topic} is no {message.kind}: {_line(error)}"
            ) from None

    @cached_property
    def run(self) -> RunInfo | None:
        """The run, as `vla-ros record` noted it; None for a bag of another recorder."""
        texts = []
        for reader in self._readers:
            storage = getattr(reader, "storage", reader)
            custom = getattr(storage.metadata, "custom", None) or {}
            texts.append(custom.get(KEY))
        folder = self.path if self.path.is_dir() else self.path.parent
        beside = folder / FILE
        if beside.is_file():
            with contextlib.suppress(BadFile):
                texts.append(read_text(beside))
        for text in filter(None, texts):
            with contextlib.suppress(ValueError, TypeError, json.JSONDecodeError):
                return RunInfo.parse(text)
        return None


def _sound(name: object, kind: object, count: object) -> bool:
    """Metadata is a text file that anybody may have written."""
    return isinstance(name, str) and isinstance(kind, str) and isinstance(count, int)


def _opened(reader: Reader) -> Reader:
    """TooLarge: what it says of itself is more than a bag has."""
    reader.open()
    for storage in getattr(reader.storage, "storages", [reader.storage]):
        if chunks := getattr(storage, "chunks", ()):
            check_chunks(chunks)
    return reader


def _count(reader: Any) -> int:
    """Messages of a reader, of a file that was cut off those that can be read."""
    of = reader.metadata if isinstance(reader, UnfinishedMcap) else reader
    return int(of.message_count)


def _end(reader: Any) -> int:
    """Time behind its last message, ns."""
    of = reader.metadata if isinstance(reader, UnfinishedMcap) else reader
    return int(of.end_time)


def _own(reader: Any) -> Any:
    """A reader with a position of its own: several topics are read along with each other."""
    return _opened(Reader(reader.path)) if isinstance(reader, Reader) else reader


def _redefined(connection: Connection) -> bool:
    """Whether a message is ours by its name, and another by its fields."""
    kind, digest = connection.msgtype, connection.digest
    if not digest or not isinstance(kind, str) or not kind.startswith(f"{PACKAGE}/"):
        return False
    return kind in typestore().fielddefs and digest != typestore().hash_rihs01(kind)


def _line(error: Exception) -> str:
    """An error as one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."
