"""Counting events: how many since the start, and how many lately."""

from __future__ import annotations

from collections import deque

from vla_ros.timing import SECOND


class EventTally:
    """``total`` since the start; :meth:`recent` looks at the last ``window_s`` seconds."""

    def __init__(self, window_s: float, limit: int = 20_000) -> None:
        self.total = 0
        self._window_ns = round(window_s * SECOND)
        self._events: deque[tuple[int, int]] = deque(maxlen=limit)

    def add(self, steady_ns: int, count: int = 1) -> None:
        self.total += count
        self._events.append((steady_ns, count))

    def recent(self, steady_ns: int) -> int:
        """Events in the window that ends at ``steady_ns``."""
        while self._events and self._events[0][0] < steady_ns - self._window_ns:
            self._events.popleft()
        return sum(count for _, count in self._events)
