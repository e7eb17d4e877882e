"""Time: one injected clock, and percentiles over a window.

Durations come from the steady clock, stamps from the ROS clock; no part of vla_ros reads
either one other than through a :class:`Clock`, so tests can hold both still.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

MS = 1_000_000
SECOND = 1_000_000_000


class Clock(Protocol):
    """Source of time: two readings, both in nanoseconds."""

    def steady_ns(self) -> int:
        """Monotonic time, the same in every process of this machine."""
        ...

    def now_ns(self) -> int:
        """The clock of the stamps: wall time, or simulated time."""
        ...


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant on both clocks."""

    now_ns: int
    steady_ns: int


def moment(clock: Clock) -> Moment:
    """Read both clocks as of one instant.

    A thread may lose the processor between two readings, which would show up as a jump of
    one clock against the other; such a pair is read again.
    """
    for _ in range(5):
        before = clock.steady_ns()
        now = clock.now_ns()
        after = clock.steady_ns()
        if after - before < MS // 20:
            break
    return Moment(now, (before + after) // 2)


class SystemClock:
    """Monotonic and wall time of this machine."""

    def steady_ns(self) -> int:
        return time.monotonic_ns()

    def now_ns(self) -> int:
        return time.time_ns()


@dataclass(slots=True)
class ManualClock:
    """A clock that moves only by :meth:`advance`. For tests."""

    steady: int = SECOND
    now: int = 1_000 * SECOND

    def steady_ns(self) -> int:
        return self.steady

    def now_ns(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move both clocks forward."""
        self.steady += round(seconds * SECOND)
        self.now += round(seconds * SECOND)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Percentiles of a window of samples, in the samples' unit; all zero when it is empty."""

    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0
    count: int = 0


class Window:
    """Samples of the last ``seconds``, at most ``limit`` of them. Not thread-safe."""

    def __init__(self, seconds: float, limit: int = 20_000) -> None:
        self.seconds = seconds
        self._samples: deque[tuple[int, float]] = deque(maxlen=limit)

    def copy(self) -> Window:
        """A copy, which another thread may count."""
        other = Window(self.seconds, 0)
        other._samples = self._samples.copy()
        return other

    def add(self, steady_ns: int, value: float) -> None:
        """Add one sample taken at ``steady_ns``."""
        self._samples.append((steady_ns, value))
        self._expire(steady_ns)

    def _expire(self, steady_ns: int) -> None:
        oldest = steady_ns - round(self.seconds * SECOND)
        while self._samples and self._samples[0][0] < oldest:
            self._samples.popleft()

    def distribution(self, steady_ns: int) -> Distribution:
        """Percentiles (linear interpolation) of the samples not older than the window."""
        self._expire(steady_ns)
        if not self._samples:
            return Distribution()
        values = np.fromiter((v for _, v in self._samples), float, len(self._samples))
        p50, p95, p99 = np.percentile(values, (50, 95, 99))
        return Distribution(
            float(p50), float(p95), float(p99), float(values.max()), len(self._samples)
        )

    def rate_hz(self, steady_ns: int) -> float:
        """Samples per second over the span of the samples in the window."""
        self._expire(steady_ns)
        if len(self._samples) < 2:
            return 0.0
        span = self._samples[-1][0] - self._samples[0][0]
        return (len(self._samples) - 1) * SECOND / span if span else 0.0
