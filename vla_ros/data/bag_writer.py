"""A bag that is written by a thread of its own, from a queue that never blocks.

Threads: any thread may :meth:`put`; the sink's own thread is the only one that touches the
disk. A disk that is slow, full or broken costs messages, which are counted, and nothing else.
"""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from vla_ros.recording.bag_file import BagFile, Record
from vla_ros.recording.run_info import RunInfo
from vla_ros.timing import SECOND, Clock

MB = 1 << 20


@dataclass(frozen=True, slots=True)
class SinkLimits:
    """``queue_bytes``: messages waiting for the disk; more are left out. ``free_bytes``: the
    recording ends, properly, before the disk has less. ``flush_s``: a kill loses this much."""

    queue_bytes: int = 256 * MB
    free_bytes: int = 500 * MB
    flush_s: float = 1.0


class BagSink:
    """See the module's text. ``warn`` gets one line at most once a second; from any thread.

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
        """Say what the bag is of; the last word counts."""
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

    # ------------------------------------------------------------------ the sink's thread

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
        """What is to be written; waits for it, but not past the next flush."""
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
