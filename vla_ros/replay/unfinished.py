"""Reading an MCAP file that nobody closed: a killed recorder, a full disk, half a copy.

Such a file has no index and its last record may be cut. Every complete record before that is
good, so the file is scanned from its beginning up to there. Works on what `rosbags` does for
files without an index; MCAP's record framing is in https://mcap.dev/spec.
"""

from __future__ import annotations

import bisect
import copy
import heapq
import struct
from collections.abc import Collection, Generator
from pathlib import Path
from typing import BinaryIO

from rosbags.interfaces import Connection
from rosbags.rosbag2.errors import ReaderError
from rosbags.rosbag2.storage_mcap import MAXSIZE, McapReader

from vla_ros.recording.chunks import DamagedChunk

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
        """In order of time; the file may have them slightly out of it."""
        held: list[tuple[int, int, Message]] = []
        size = 0
        own = copy.copy(self)  # several scans may be under way: each needs its own position
        with self.path.open("rb") as own.bio:
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
    """Where the complete records before the summary begin, and where the last of them ends."""
    size = file.seek(0, 2)
    found = [len(_MAGIC)]
    while found[-1] + 9 <= size:
        file.seek(found[-1])
        kind, length = struct.unpack("<BQ", file.read(9))
        if kind in (_FOOTER, _DATA_END) or found[-1] + 9 + length > size:
            break
        found.append(found[-1] + 9 + length)
    return found
