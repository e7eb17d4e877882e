"""One bag on disk, in MCAP, that stays readable however the recording ends.

Messages are collected in chunks, each compressed (zstd) with a checksum; :meth:`BagFile.flush`
ends the chunk and hands everything to the operating system, so whatever kills the process later
can only take what came since.
`rosbags` writes the index when the bag is closed; a bag that never was closed is read by
scanning it (:mod:`vla_ros.replay.unfinished`).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
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

from vla_ros.recording.chunks import compress
from vla_ros.recording.run_info import FILE, KEY, RunInfo
from vla_ros.recording.typestore import typestore

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
    """Not thread-safe. OSError from any method: the disk did not take it.

    FileExistsError: there is something at ``path`` already.
    """

    def __init__(self, path: Path, run: RunInfo) -> None:
        if path.exists():
            raise FileExistsError(f"{path} exists already: a recording overwrites nothing")
        self.path = path
        self._writer = Writer(path, version=9, storage_plugin=StoragePlugin.MCAP)
        self._writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
        self._writer.open()
        self._storage.compressor = compress
        self._connections: dict[str, Connection] = {}
        self._pending = False
        self.set_run(run)

    @property
    def _storage(self) -> Any:
        storage = self._writer.storage
        assert storage is not None
        return storage

    def set_run(self, run: RunInfo) -> None:
        """Say what the bag is of; the last word counts."""
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
        """What was written so far survives the end of this process."""
        if self._pending and self._storage.chunk.msgs:
            self._storage.close_chunk()
        self._storage.bio.flush()
        self._pending = False

    def close(self) -> None:
        """Write index and metadata."""
        self._writer.close()

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
