"""The steady clock of the control tick: a thread that nothing else runs in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

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


class Ticker:
    """Calls ``call(error_ns)`` once a period from a thread of its own.

    Ticks are due at instants of the monotonic clock that :func:`shift_ns` alone moves, so
    errors do not add up; ``error_ns`` is how late this one came. A tick that overruns its
    period makes the next ones skip, never bunch up. ``failed`` is told of an exception and
    the ticking goes on.
    """

    def __init__(
        self, period_ns: int, call: Callable[[int], None], failed: Callable[[Exception], None]
    ) -> None:
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
