"""The flight recorder: the last seconds in memory, written when something goes wrong.

Threads: :meth:`FlightRecorder.add`, :meth:`trigger` and :meth:`poll` belong to one thread;
bags are written by threads of their own.
"""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from vla_ros.core.clock import SECOND, Clock
from vla_ros.data.bag_writer import BagFile, Record
from vla_ros.data.run_info import RunInfo

MB = 1 << 20
DIGIT = "[0-9]"
RECORDS = f"flight_{DIGIT * 8}_{DIGIT * 6}_{DIGIT * 6}_*"  # as `trigger` names them


@dataclass(frozen=True, slots=True)
class FlightLimits:
    """``seconds`` before the event are kept, ``after_s`` after it; at most ``bytes`` of
    messages in memory, and ``bags`` records of ``disk_bytes`` together in the folder."""

    seconds: float = 10.0
    after_s: float = 1.0
    bytes: int = 512 * MB
    bags: int = 100
    disk_bytes: int = 2048 * MB


class MessageRing:
    """The messages of the last seconds, in the order they came. Not thread-safe.

    Of a latched topic the newest message stays, however old: the task was given once.
    """

    def __init__(self, seconds: float, limit_bytes: int) -> None:
        self._span_ns = round(seconds * SECOND)
        self._limit = limit_bytes
        self._held: deque[tuple[int, Record]] = deque()
        self._bytes = 0
        self._latched: dict[str, Record] = {}  # fell out of the ring, but still counts
        self.cut_short = 0  # messages younger than `seconds` that memory had no room for

    def add(self, steady_ns: int, record: Record) -> None:
        """Keep a message received at ``steady_ns``."""
        self._held.append((steady_ns, record))
        self._bytes += len(record.data)
        while self._held and self._held[0][0] < steady_ns - self._span_ns:
            self._drop_oldest()
        while self._bytes > self._limit:
            self._drop_oldest()
            self.cut_short += 1

    def _drop_oldest(self) -> None:
        _, record = self._held.popleft()
        self._bytes -= len(record.data)
        if record.topic.latched:
            self._latched[record.topic.name] = record

    def records(self) -> tuple[Record, ...]:
        """Everything held, oldest first."""
        return (*self._latched.values(), *(record for _, record in self._held))


@dataclass(slots=True)
class _Due:
    """A record that is to be written at this steady time, ``latest_ns`` at the latest."""

    at_ns: int
    latest_ns: int
    path: Path
    run: RunInfo


class FlightRecorder:
    """Writes ``flight_<time>_<reason>`` into ``folder`` for an event, and takes the oldest of
    them away, also those of earlier runs, where there are too many. Events of one
    name that follow closer than ``seconds`` are one: each record would hold nearly the same.

    ``log`` gets one line for every bag written or not; it is called from other threads.
    """

    def __init__(
        self, folder: Path, limits: FlightLimits, clock: Clock, log: Callable[[str], None]
    ) -> None:
        self.folder, self._limits, self._clock, self._log = folder, limits, clock, log
        self._ring = MessageRing(limits.seconds + limits.after_s, limits.bytes)
        self._pending: list[_Due] = []
        self._writers: list[threading.Thread] = []
        self._tidying = threading.Lock()  # writers end beside each other
        self._done: set[Path] = set(folder.glob(RECORDS))  # written whole, by earlier runs too
        self._last: tuple[str, int] | None = None  # the newest event, and its steady time
        self.bags = 0  # begun so far
        self.repeated = 0  # events that were no news

    def add(self, record: Record) -> None:
        """Keep a message, for a while."""
        self._ring.add(self._clock.steady_ns(), record)

    def trigger(self, name: str, run: RunInfo) -> None:
        """Something went wrong: its seconds are written once ``after_s`` have passed.

        ``name`` becomes part of the bag's name ("hold", "fault").
        """
        steady = self._clock.steady_ns()
        before, self._last = self._last, (name, steady)
        same = before is not None and before[0] == name
        if before is not None and same and steady - before[1] < self._limits.seconds * SECOND:
            self.repeated += 1
            if self._pending and steady < self._pending[-1].latest_ns:
                self._pending[-1].at_ns = steady + round(self._limits.after_s * SECOND)
            return
        self.bags += 1
        now = datetime.fromtimestamp(self._clock.now_ns() / SECOND, timezone.utc)
        path = self.folder / f"flight_{now:%Y%m%d_%H%M%S_%f}_{name}"
        due = steady + round(self._limits.after_s * SECOND)
        latest = steady + round(self._limits.seconds * SECOND / 2)  # the ring must still have it
        self._pending.append(_Due(due, latest, path, run))

    def finish(self, timeout_s: float) -> bool:
        """Write everything and wait for the disk; whether that was done in time."""
        until = self._clock.steady_ns() + round(timeout_s * SECOND)
        self._write_due(everything=True)
        for writer in self._writers:
            writer.join(max(0, until - self._clock.steady_ns()) / SECOND)
        return not any(writer.is_alive() for writer in self._writers)

    def poll(self) -> None:
        """Write what is due."""
        self._write_due()

    def _write_due(self, everything: bool = False) -> None:
        now = self._clock.steady_ns()
        due = [job for job in self._pending if everything or job.at_ns <= now]
        self._pending = [job for job in self._pending if job not in due]
        for job in due:
            records = self._ring.records()
            writer = threading.Thread(
                target=self._write, args=(job.path, job.run, records), name="flight", daemon=True
            )
            writer.start()
            self._writers.append(writer)
        self._writers = [writer for writer in self._writers if writer.is_alive()]

    def _write(self, path: Path, run: RunInfo, records: tuple[Record, ...]) -> None:
        try:
            bag = BagFile(path, replace(run, written=len(records), ended="flight record"))
            try:
                for record in records:
                    bag.write(record)
                bag.close()
            except BaseException:
                bag.abandon()
                raise
        except Exception as error:  # the edge of the thread: a disk may fail in any way
            self._log(f"flight record {path} not written: {type(error).__name__}: {error}")
            return
        self._log(f"flight record written: {path}, {len(records)} messages ({run.reason})")
        self._tidy(path)

    def _tidy(self, newest: Path) -> None:
        """Take away the oldest where there are too many, or too much of them; never the newest."""
        with self._tidying:
            self._done.add(newest)
            kept = sorted(self._done)  # by their times
            sizes = {path: sum(f.stat().st_size for f in path.glob("*")) for path in kept}
            while len(kept) > 1 and (
                len(kept) > self._limits.bags
                or sum(sizes[path] for path in kept) > self._limits.disk_bytes
            ):
                oldest = kept.pop(0)
                self._done.discard(oldest)
                shutil.rmtree(oldest, ignore_errors=True)
                self._log(f"flight record taken away, as the oldest of too many: {oldest}")
