"""Do the camera's clock and ours agree? Judged from receipt minus stamp, δ.

The smallest δ of a window is the quickest transport plus the clocks' offset. Transport is
never negative, so δ < −ε proves that the clocks are not synchronised; a smallest δ that
keeps moving shows that they drift apart.
"""

from __future__ import annotations

from collections import deque
from itertools import combinations
from statistics import median

from vla_ros.monitoring.tally import EventTally
from vla_ros.timing import MS, SECOND

MINUTE = 60 * SECOND


class SlidingMinimum:
    """The smallest of the values of the last ``seconds``, in constant time."""

    def __init__(self, seconds: float) -> None:
        self._window_ns = round(seconds * SECOND)
        self._rising: deque[tuple[int, float]] = deque()

    def add(self, steady_ns: int, value: float) -> None:
        while self._rising and self._rising[-1][1] >= value:
            self._rising.pop()
        self._rising.append((steady_ns, value))

    def value(self, steady_ns: int) -> float | None:
        """The minimum, or None when the window is empty."""
        while self._rising and self._rising[0][0] < steady_ns - self._window_ns:
            self._rising.popleft()
        return self._rising[0][1] if self._rising else None

    def clear(self) -> None:
        self._rising.clear()


class ClockOffset:
    """Windowed minimum of δ, its drift, and its jumps. Values in milliseconds."""

    BUCKET_NS = 10 * SECOND
    BUCKETS = 30  # five minutes of history
    ENOUGH = 12  # two minutes: one for each half

    def __init__(self, window_s: float, jump_ms: float) -> None:
        self._window = SlidingMinimum(window_s)
        self._jump_ms = jump_ms
        self._minima: deque[tuple[int, float]] = deque(maxlen=self.BUCKETS)
        self._bucket = 0
        self._open: tuple[int, float] | None = None
        self.jumps = EventTally(window_s)

    def add(self, steady_ns: int, offset_ns: int) -> None:
        """One frame: ``offset_ns`` is its receipt minus its stamp."""
        offset = offset_ns / MS
        self._window.add(steady_ns, offset)
        bucket = steady_ns // self.BUCKET_NS
        if self._open is None or bucket != self._bucket:
            self._close_bucket()
            self._bucket, self._open = bucket, (steady_ns, offset)
        elif offset < self._open[1]:
            self._open = (steady_ns, offset)

    def _close_bucket(self) -> None:
        if self._open is None:
            return
        if self._minima and abs(self._open[1] - self._minima[-1][1]) > self._jump_ms:
            self.jumps.add(self._open[0])
            self._minima.clear()
        self._minima.append(self._open)

    def clear(self) -> None:
        """Forget everything but the number of jumps: the clock was set."""
        self._window.clear()
        self._minima.clear()
        self._open = None

    def smallest_ms(self, steady_ns: int) -> float | None:
        return self._window.value(steady_ns)

    def drift_ms_per_min(self) -> float:
        """Drift that both halves of the history show; 0 when it is short or they disagree.

        Each half's slope is the median of the slopes between its points (Theil–Sen), so that
        a busy moment does not count; a step in one half (another load) is not a drift.
        """
        points = list(self._minima)
        if len(points) < self.ENOUGH:
            return 0.0
        middle = len(points) // 2
        first, second = _slope(points[:middle]), _slope(points[middle:])
        return min(first, second, key=abs) if first * second > 0 else 0.0


def _slope(points: list[tuple[int, float]]) -> float:
    slopes = [(b[1] - a[1]) * MINUTE / (b[0] - a[0]) for a, b in combinations(points, 2)]
    return median(slopes)
