"""Calls that are made a fixed time after they were asked for, in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from vla_ros.timing import SECOND, Clock


class DelayLine:
    """Makes each call of :meth:`put` ``delay_ns`` of the steady clock later, in its own thread.

    Whoever puts is never held up. With a delay of 0 the call is made at once, by the caller.
    """

    def __init__(self, delay_ns: int, clock: Clock) -> None:
        self._delay_ns = delay_ns
        self._clock = clock
        self._bell = threading.Condition()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._closed = False
        self._thread: threading.Thread | None = None
        if delay_ns:
            self._thread = threading.Thread(target=self._run, name="delay", daemon=True)
            self._thread.start()

    def put(self, call: Callable[[], None]) -> None:
        """Make this call later."""
        if self._thread is None:
            call()
            return
        with self._bell:
            self._waiting.append((self._clock.steady_ns() + self._delay_ns, call))
            self._bell.notify()

    def clear(self) -> None:
        """Forget the calls that are still to be made."""
        with self._bell:
            self._waiting.clear()

    def close(self) -> None:
        """Make no call any more."""
        with self._bell:
            self._closed = True
            self._waiting.clear()
            self._bell.notify()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        while (call := self._next()) is not None:
            call()

    def _next(self) -> Callable[[], None] | None:
        """Wait until the oldest call is due; None after the end."""
        with self._bell:
            while not self._closed:
                if not self._waiting:
                    self._bell.wait()
                    continue
                due, call = self._waiting[0]
                left_ns = due - self._clock.steady_ns()
                if left_ns <= 0:
                    self._waiting.popleft()
                    return call
                self._bell.wait(left_ns / SECOND)
        return None
