"""The steady clock of the control tick: a thread that nothing else runs in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from vla_ros.timing import SECOND


class Ticker:
    """Calls ``call(error_ns)`` once a period from a thread of its own.

    Ticks are due at fixed instants of the monotonic clock, so errors do not add up;
    ``error_ns`` is how late this one came. A tick that overruns its period makes the next
    ones skip, never bunch up. ``failed`` is told of an exception and the ticking goes on.
    """

    def __init__(
        self, period_ns: int, call: Callable[[int], None], failed: Callable[[Exception], None]
    ) -> None:
        self._period_ns = period_ns
        self._call = call
        self._failed = failed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control tick", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it, unless it is the caller."""
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        due = time.monotonic_ns() + self._period_ns
        while not self._stop.wait(max(0.0, (due - time.monotonic_ns()) / SECOND)):
            late = time.monotonic_ns() - due
            try:
                self._call(late)
            except Exception as error:
                self._failed(error)
            due += self._period_ns * (1 + max(0, late) // self._period_ns)
