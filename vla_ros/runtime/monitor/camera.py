"""Watch of the stamps of the policy's main camera: rate, stamps that stand still or go back, clocks
that differ.

Frames are judged by their stamps alone; no pixel is read. Whether the camera's clock and ours
agree is judged from receipt minus stamp, δ. The smallest δ of a window is the quickest transport
plus the clocks' offset. Transport is never negative, so δ < −ε proves that the clocks are not
synchronized; a smallest δ that keeps moving shows that they drift apart, and one that moves at once
and stays that one of them was set. A busy processor moves it too, but spreads the frames as it
does. Not thread-safe.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from vla_ros.core.clock import MS, SECOND, Moment, Window
from vla_ros.runtime.monitor.seen import EventTally, MonitorConfig

MINUTE = 60 * SECOND
#: A stamp this far ahead of its receipt (or a quarter of T, if less) proves foreign clocks.
EPSILON_NS = 5 * MS


class CameraWatch:
    """Watch of one camera topic, by :meth:`frame`."""

    def __init__(self, config: MonitorConfig, steady_ns: int) -> None:
        self._config = config
        self.topic = ""  # of its images, from the policy's status
        self._fresh = Window(config.window_s)
        self.repeated = EventTally(config.window_s)
        self.out_of_order = EventTally(config.window_s)
        self.ahead = EventTally(config.window_s)
        self._stamp_ns: int | None = None
        self._fresh_now_ns: int | None = None  # ROS time at which that stamp came first
        self._received_ns: int | None = None
        self._last_frame_ns = self._last_fresh_ns = steady_ns
        self.offset = ClockOffset(config.window_s, EPSILON_NS / MS)
        self.epsilon_ns = EPSILON_NS
        self.frames = self.clock_resets = 0

    def set_period(self, period_ns: int) -> None:
        """Set the action period T, for ε = min(5 ms, T/4)."""
        self.epsilon_ns = min(EPSILON_NS, period_ns // 4) if period_ns > 0 else EPSILON_NS

    def frame(self, stamp_ns: int, arrival: Moment) -> None:
        """Take in an image, by its stamp and its receipt."""
        steady = arrival.steady_ns
        self.frames += 1
        self._last_frame_ns = steady
        waits = self._config.sim_time and arrival.now_ns == self._fresh_now_ns
        if self._config.sim_time and self._fresh_now_ns == 0:  # /clock comes after its first frames
            waits, self._fresh_now_ns = True, arrival.now_ns
        self._follow_clock(stamp_ns, arrival)
        previous, self._stamp_ns = self._stamp_ns, stamp_ns
        if previous is not None and stamp_ns == previous:
            if waits:  # a simulation in lock-step publishes a frame until its answer comes
                self._last_fresh_ns = steady
            else:
                self.repeated.add(steady)
            return  # an old stamp does not count for rate or clocks
        if previous is not None and stamp_ns < previous:
            # The next frame is compared with this one: a bag that begins again counts once.
            self.out_of_order.add(steady)
            return
        self._fresh_now_ns = arrival.now_ns
        self._fresh.add(steady, 1.0)
        self._last_fresh_ns = steady
        if not self._config.sim_time:
            self._compare_clocks(stamp_ns, arrival)

    def _follow_clock(self, stamp_ns: int, arrival: Moment) -> None:
        """Start the comparison of stamps anew where the ROS clock was set back."""
        received, self._received_ns = self._received_ns, arrival.now_ns
        if received is not None and arrival.now_ns < received - self.epsilon_ns:
            self.clock_resets += 1
            self.offset.clear()
            if self._stamp_ns is not None and stamp_ns < self._stamp_ns:
                self._stamp_ns = None

    def _compare_clocks(self, stamp_ns: int, arrival: Moment) -> None:
        self.offset.add(arrival.steady_ns, arrival.now_ns - stamp_ns)
        if stamp_ns - arrival.now_ns > self.epsilon_ns:
            self.ahead.add(arrival.steady_ns)

    def rate_hz(self, steady_ns: int) -> float:
        """Frames with a new stamp per second."""
        return self._fresh.rate_hz(steady_ns)

    def silent_s(self, steady_ns: int) -> float:
        """Seconds since the last image of any kind, or since the start."""
        return (steady_ns - self._last_frame_ns) / SECOND

    def frozen_s(self, steady_ns: int) -> float:
        """Seconds since the last image with a new stamp, or since the start."""
        return (steady_ns - self._last_fresh_ns) / SECOND


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


@dataclass(frozen=True, slots=True)
class _Bucket:
    """The frames of one stretch of time, milliseconds.

    ``floor`` is the smallest δ, met at ``at_ns``. ``reach`` is ten times the distance from there
    to the tenth percentile: as wide as the delays would be if they were spread evenly. A clock
    that is set lifts all frames alike; a load that lifts the quickest ones spreads the others
    further still, so what it does stays within reach.
    """

    at_ns: int
    floor: float
    reach: float

    @classmethod
    def of(cls, frames: list[tuple[float, int]]) -> _Bucket:
        """Bucket of (δ, steady time) of frames, at least one; few have no measurable spread."""
        frames = sorted(frames)
        floor, at_ns = frames[0]
        tenth = len(frames) // 10
        return cls(at_ns, floor, 10 * (frames[tenth][0] - floor) if tenth else math.inf)


class ClockOffset:
    """Windowed minimum of δ, its drift, and its jumps. Values in milliseconds.

    A jump is seen within 40 s: three buckets in a row whose floors all lie on one side of those
    of up to six before (three at least), by more than ``jump_ms``, than the floors of either
    group differ among themselves, and than either group's reach (the median of its buckets').
    That is the smallest jump that can be seen: ``jump_ms`` for a camera whose frames take the
    same time each, more for one whose delays vary, as on a busy processor.
    """

    BUCKET_NS = 10 * SECOND
    BUCKETS = 30  # five minutes of history
    ENOUGH = 12  # for a drift: two minutes
    BEFORE, AFTER = 6, 3  # for a jump

    def __init__(self, window_s: float, jump_ms: float) -> None:
        self._window = SlidingMinimum(window_s)
        self._jump_ms = jump_ms
        self._closed: deque[_Bucket] = deque(maxlen=self.BUCKETS)
        self._number = 0
        self._open: list[tuple[float, int]] = []
        self.jumps = EventTally(window_s)
        self.last_jump_ms = 0.0

    def add(self, steady_ns: int, offset_ns: int) -> None:
        """Take in a frame: ``offset_ns`` is its receipt minus its stamp."""
        offset = offset_ns / MS
        self._window.add(steady_ns, offset)
        number = steady_ns // self.BUCKET_NS
        if number != self._number and self._open:
            self._closed.append(_Bucket.of(self._open))
            self._open.clear()
            self._look_for_jump(steady_ns)
        self._number = number
        self._open.append((offset, steady_ns))

    def _look_for_jump(self, steady_ns: int) -> None:
        closed = list(self._closed)
        after, before = closed[-self.AFTER :], closed[-self.BEFORE - self.AFTER : -self.AFTER]
        if len(before) < self.AFTER:
            return
        jump = _between(before, after) or -_between(after, before)
        if abs(jump) > max(self._jump_ms, _uncertainty(before), _uncertainty(after)):
            self.jumps.add(steady_ns)
            self.last_jump_ms = jump
            self._closed = deque(after, maxlen=self.BUCKETS)

    def clear(self) -> None:
        """Forget everything but the jumps: the clock was set."""
        self._window.clear()
        self._closed.clear()
        self._open.clear()

    def smallest_ms(self, steady_ns: int) -> float | None:
        return self._window.value(steady_ns)

    def drift_ms_per_min(self) -> float:
        """Drift that both halves of the history show; 0 when it is short or they disagree.

        Each half's slope is the median of the slopes between its points (Theil–Sen), so that
        a busy moment does not count; a step in one half (another load) is not a drift.
        """
        points = [(bucket.at_ns, bucket.floor) for bucket in self._closed]
        if len(points) < self.ENOUGH:
            return 0.0
        middle = len(points) // 2
        first, second = _slope(points[:middle]), _slope(points[middle:])
        return min(first, second, key=abs) if first * second > 0 else 0.0


def _between(low: list[_Bucket], high: list[_Bucket]) -> float:
    """Gap between all floors of ``high`` and all of ``low`` below; 0 where they overlap."""
    return max(0.0, min(b.floor for b in high) - max(b.floor for b in low))


def _uncertainty(group: list[_Bucket]) -> float:
    floors = [bucket.floor for bucket in group]
    return max(max(floors) - min(floors), median(bucket.reach for bucket in group))


def _slope(points: list[tuple[int, float]]) -> float:
    slopes = [(b[1] - a[1]) * MINUTE / (b[0] - a[0]) for a, b in combinations(points, 2)]
    return median(slopes)
