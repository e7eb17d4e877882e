"""The steady clock of the control tick: a thread that nothing else runs in."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from vla_ros.timing import SECOND


def shift_ns(period_ns: int, waited_ns: int) -> int:
    """How far to move the ticks so that actions wait less for them: at most 2 % of a period.

    ``waited_ns`` is how long the newest action waited for its tick. A camera and a control
    tick of the same rate keep whatever phase they began with: half a period of age for nothing
    on average, and a lost action whenever an arrival jitters across the tick. The ticks are
    moved to come a fifth of a period after the arrivals, by the shorter way round.
    """
    late = waited_ns - period_ns // 5
    if late > period_ns // 2:
        late -= period_ns
    most = period_ns // 50
    return -max(-most, min(most, late))


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What the system's scheduler is asked for a thread. ``priority``: SCHED_FIFO's, 1 to 99; 0:
    as every thread. ``cpus``: those it may run on; empty: as the process."""

    priority: int = 0
    cpus: tuple[int, ...] = ()

    def apply(self) -> None:
        """To the calling thread; what it starts is scheduled as usual. Raises ValueError, in one
        line, where the system forbids it."""
        try:
            if self.cpus:
                os.sched_setaffinity(0, self.cpus)
        except OSError as error:
            raise ValueError(f"tick_cpus {list(self.cpus)}: {error.strerror}") from None
        try:
            if self.priority:
                policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
                os.sched_setscheduler(0, policy, os.sched_param(self.priority))
        except OSError as error:
            raise ValueError(
                f"tick_priority {self.priority}: {error.strerror}: this process needs CAP_SYS_NICE"
                f" or an rtprio limit of {self.priority} (limits.conf); 0 asks for nothing"
            ) from None

    def check(self) -> None:
        """Raise ValueError, in one line, for what :meth:`apply` could not do. Tries it."""
        allowed = os.sched_getaffinity(0)
        if missing := sorted(set(self.cpus) - allowed):
            raise ValueError(
                f"tick_cpus {list(self.cpus)}: this process may use {sorted(allowed)},"
                f" not {missing}"
            )
        refused: list[ValueError] = []

        def attempt() -> None:
            try:
                self.apply()
            except ValueError as error:
                refused.append(error)

        thread = threading.Thread(target=attempt, name="try scheduling")
        thread.start()
        thread.join()
        if refused:
            raise refused[0]


class Ticker:
    """Calls ``call(error_ns)`` once a period from a thread of its own.

    Ticks are due at instants of the monotonic clock that :func:`shift_ns` alone moves, so
    errors do not add up; ``error_ns`` is how late this one came. A tick that overruns its
    period makes the next ones skip, never bunch up. ``failed`` is told of an exception and
    the ticking goes on, also with a ``scheduling`` that the system forbids by now.
    """

    def __init__(
        self,
        period_ns: int,
        call: Callable[[int], None],
        failed: Callable[[Exception], None],
        scheduling: Scheduling = Scheduling(),
    ) -> None:
        self._scheduling = scheduling
        self._period_ns = period_ns
        self._call = call
        self._failed = failed
        self._arrived_ns: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control tick", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it, unless it is the caller."""
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def arrived(self, steady_ns: int) -> None:
        """A new action came at this time and waits for its tick. From any thread."""
        self._arrived_ns = steady_ns

    def _run(self) -> None:
        try:
            self._scheduling.apply()
        except ValueError as error:
            self._failed(error)
        due = time.monotonic_ns() + self._period_ns
        while not self._stop.wait(max(0.0, (due - time.monotonic_ns()) / SECOND)):
            late = time.monotonic_ns() - due
            arrived, self._arrived_ns = self._arrived_ns, None
            try:
                self._call(late)
            except Exception as error:
                self._failed(error)
            if arrived is not None and due >= arrived:
                due += shift_ns(self._period_ns, due - arrived)
            due += self._period_ns * (1 + max(0, late) // self._period_ns)
