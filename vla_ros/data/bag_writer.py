"""One bag on disk, in MCAP, that stays readable however the recording ends.

Messages are collected in chunks, each compressed (zstd) with a checksum; :meth:`BagFile.flush`
ends the chunk and hands everything to the operating system, so whatever kills the process later
can only take what came since.
`rosbags` writes the index when the bag is closed; a bag that never was closed is read by
scanning it (:mod:`vla_ros.data.bags`).
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rosbags.interfaces import (
    Connection,
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from vla_ros.core.clock import SECOND, Clock
from vla_ros.core.private import owner_only
from vla_ros.core.resources import share
from vla_ros.core.video import VIDEOS
from vla_ros.data.run_info import FILE, KEY, RunInfo

# The chunks of a bag, compressed: what `rosbags` and every reader of MCAP knows as zstd.


if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: a chunk that cannot be unpacked
DamagedChunk = zstd.ZstdError

# Level 1 takes a tenth of a core for two cameras of 640x480 at 30 Hz, whatever they see. Level 3
# saves a little more, and takes up to three times as long on noisy images.
_OPTIONS: dict[int, int] = {
    zstd.CompressionParameter.compression_level: 1,
    zstd.CompressionParameter.checksum_flag: 1,
}


def compress(chunk: bytes) -> bytes:
    """One zstd frame with a checksum; other threads run meanwhile."""
    return zstd.compress(chunk, options=_OPTIONS)


# Message types for reading and writing bags without ROS: ROS 2's own and those of vla_ros.


PACKAGE = "vla_ros"


def ros_types() -> Typestore:
    """A fresh store of ROS 2's own message types, to register others with."""
    return get_typestore(Stores.ROS2_KILTED)


#: The fields of the packets of video that cameras send.
_VIDEO = {
    VIDEOS["ffmpeg"]: (
        "std_msgs/Header header\nint32 width\nint32 height\nstring encoding\n"
        "uint64 pts\nuint8 flags\nbool is_bigendian\nuint8[] data\n"
    ),
    VIDEOS["foxglove"]: (
        "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format\n"
    ),
}


@lru_cache(maxsize=1)
def typestore() -> Typestore:
    """ROS 2's own message types, those of this version of vla_ros, and packets of video. Do not
    change it.

    FileNotFoundError: vla_ros is installed without its message definitions.
    """
    store = ros_types()
    folder = share() / "msg"
    files = sorted(folder.glob("*.msg"))
    if not files:
        raise FileNotFoundError(f"no message definitions in {folder}: reinstall vla_ros")
    texts = {f"{PACKAGE}/msg/{file.stem}": file.read_text(encoding="utf-8") for file in files}
    types = {}
    for kind, text in (texts | _VIDEO).items():
        types.update(get_types_from_msg(text, kind))
    store.register(types)
    return store


_FOREVER = QosTime(2147483647, 4294967295)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic to record: its full name, its type ("sensor_msgs/msg/Image"), and whether its
    newest message counts for late joiners (transient local)."""

    name: str
    kind: str
    latched: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """One message as it came: serialized (CDR), received at ``stamp_ns`` of the wall clock."""

    topic: Topic
    stamp_ns: int
    data: bytes


class BagFile:
    """A bag that its owner alone may read. Not thread-safe. OSError from any method: the disk did
    not take it.

    FileExistsError: there is something at ``path`` already.
    """

    def __init__(self, path: Path, run: RunInfo) -> None:
        if path.exists():
            raise FileExistsError(f"{path} exists already: a recording overwrites nothing")
        self.path = path
        self._writer = Writer(path, version=9, storage_plugin=StoragePlugin.MCAP)
        self._writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
        with owner_only():  # images of a robot's room are for who recorded them
            self._writer.open()
            self.set_run(run)
        self._storage.compressor = compress
        self._connections: dict[str, Connection] = {}
        self._pending = False

    @property
    def _storage(self) -> Any:
        storage = self._writer.storage
        assert storage is not None
        return storage

    def set_run(self, run: RunInfo) -> None:
        """Note the run that the bag holds; the last one counts."""
        self._writer.set_custom_data(KEY, run.text())
        (self.path / FILE).write_text(run.text() + "\n", encoding="utf-8")

    def write(self, record: Record) -> None:
        connection = self._connections.get(record.topic.name)
        if connection is None:
            connection = self._writer.add_connection(
                record.topic.name,
                record.topic.kind,
                typestore=typestore(),
                offered_qos_profiles=[_qos(record.topic.latched)],
            )
            self._connections[record.topic.name] = connection
        self._writer.write(connection, record.stamp_ns, record.data)
        self._pending = True

    def flush(self) -> None:
        """Hand everything to the operating system: it survives the end of this process."""
        if self._pending and self._storage.chunk.msgs:
            self._storage.close_chunk()
        self._storage.bio.flush()
        self._pending = False

    def close(self) -> None:
        """Write index and metadata."""
        self._writer.close()
        (self.path / "metadata.yaml").chmod(0o600)

    def abandon(self) -> None:
        """Leave the bag as it is: after an error of the disk."""
        with contextlib.suppress(OSError):
            self._writer.abort()


def _qos(latched: bool) -> Qos:
    durability = QosDurability.TRANSIENT_LOCAL if latched else QosDurability.VOLATILE
    return Qos(
        history=QosHistory.KEEP_LAST,
        depth=1 if latched else 10,
        reliability=QosReliability.RELIABLE,
        durability=durability,
        deadline=_FOREVER,
        lifespan=_FOREVER,
        liveliness=QosLiveliness.AUTOMATIC,
        liveliness_lease_duration=_FOREVER,
        avoid_ros_namespace_conventions=False,
    )


# A bag that is written by a thread of its own, from a queue that never blocks.
#
# Threads: any thread may :meth:`put`; the sink's own thread is the only one that touches the
# disk. A disk that is slow, full or broken costs messages, which are counted, and nothing else.


MB = 1 << 20


@dataclass(frozen=True, slots=True)
class SinkLimits:
    """``queue_bytes``: messages waiting for the disk; more are left out. ``free_bytes``: the
    recording ends, properly, before the disk has less. ``flush_s``: a kill loses this much."""

    queue_bytes: int = 256 * MB
    free_bytes: int = 500 * MB
    flush_s: float = 1.0


class BagSink:
    """A bag that a thread of its own writes, from a queue that never blocks. ``warn`` gets one line
    at most once a second; from any thread.

    FileExistsError, OSError: the bag cannot be begun.
    """

    def __init__(
        self,
        path: Path,
        run: RunInfo,
        limits: SinkLimits,
        clock: Clock,
        warn: Callable[[str], None],
    ) -> None:
        self.path = path
        self._limits, self._clock, self._warn = limits, clock, warn
        self._bag = BagFile(path, run)
        self._run = run
        self._new_run = False
        self._bell = threading.Condition()
        self._queue: deque[Record] = deque()
        self._queued = 0  # bytes
        self._stopping = False
        self._until_ns: int | None = None  # when messages must give way to the index
        self.written = 0
        self.bytes = 0  # of the messages written
        self.dropped = 0
        self._left = 0  # messages that there was no time for at the end
        self.ended = ""  # why nothing is written any more
        self._warned_ns = -SECOND
        self._thread = threading.Thread(target=self._work, name="bag", daemon=True)
        self._thread.start()

    def put(self, record: Record) -> None:
        """Queue a message; leave it out when there is no room for it."""
        with self._bell:
            full = self._queued + len(record.data) > self._limits.queue_bytes
            if not (full or self.ended or self._stopping):
                self._queue.append(record)
                self._queued += len(record.data)
                self._bell.notify()
                return
            self.dropped += 1
            why = self.ended or "the disk is slower than the messages come"
            due = self._clock.steady_ns() - self._warned_ns >= SECOND
            if due:
                self._warned_ns = self._clock.steady_ns()
        if due:
            self._warn(f"{self.dropped} messages not recorded so far: {why}")

    def set_run(self, run: RunInfo) -> None:
        """Note the run that the bag holds; the last one counts."""
        with self._bell:
            self._run, self._new_run = run, True
            self._bell.notify()

    def close(self, timeout_s: float = 10.0) -> bool:
        """Write what is queued, then index and metadata; whether that was done in time.

        What a slow disk has not taken after three quarters of it is left out and counted: a bag
        with an index is worth more than its last messages.
        """
        with self._bell:
            self._stopping = True
            self._until_ns = self._clock.steady_ns() + round(0.75 * timeout_s * SECOND)
            self._bell.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # The sink's thread

    def _work(self) -> None:
        flushed_ns = self._clock.steady_ns()
        try:
            while True:
                records, run, stopping = self._take()
                if run is not None:
                    self._bag.set_run(run)
                self._write(records)
                if stopping:
                    break
                now = self._clock.steady_ns()
                if now - flushed_ns >= self._limits.flush_s * SECOND:
                    flushed_ns = now
                    self._bag.flush()
                    if self._disk_is_short():
                        break
            self._finish()
        except Exception as error:  # the edge of the thread: a disk may fail in any way
            self._end(f"{type(error).__name__}: {error}")
            self._bag.abandon()

    def _write(self, records: list[Record]) -> None:
        for number, record in enumerate(records):
            if self._until_ns is not None and self._clock.steady_ns() > self._until_ns:
                with self._bell:
                    self.dropped += len(records) - number
                self._left += len(records) - number
                return
            self._bag.write(record)
            self.written += 1
            self.bytes += len(record.data)

    def _take(self) -> tuple[list[Record], RunInfo | None, bool]:
        """The queue, a new run, whether to stop; waits for them, but not past the next flush."""
        with self._bell:
            if not (self._queue or self._stopping or self._new_run):
                self._bell.wait(self._limits.flush_s)
            records = list(self._queue)
            self._queue.clear()
            self._queued = 0
            run = self._run if self._new_run else None
            self._new_run = False
            return records, run, self._stopping

    def _disk_is_short(self) -> bool:
        free = shutil.disk_usage(self.path).free
        if free >= self._limits.free_bytes:
            return False
        self._end(f"only {free // MB} MB left on the disk of {self.path}: the bag was closed")
        return True

    def _end(self, reason: str) -> None:
        """From now on everything is left out."""
        with self._bell:
            self.ended = reason
            self.dropped += len(self._queue)
            self._queue.clear()
            self._queued = 0
        self._warn(f"recording ended: {reason}")

    def _finish(self) -> None:
        if self._left:
            self._warn(f"{self._left} messages left out at the end: the disk is too slow for them")
        done = replace(
            self._run, written=self.written, dropped=self.dropped, ended=self.ended or "asked"
        )
        self._bag.set_run(done)
        self._bag.close()
