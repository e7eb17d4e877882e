"""What the camera topic says: rate, stamps that stand still or go back, clocks that differ.

Frames are judged by their stamps alone; no pixel is looked at. Not thread-safe.
"""

from __future__ import annotations

from vla_ros.monitoring.clocks import ClockOffset
from vla_ros.monitoring.seen import MonitorConfig
from vla_ros.monitoring.tally import EventTally
from vla_ros.timing import MS, SECOND, Moment, Window

#: A stamp this far ahead of its receipt (or a quarter of T, if less) proves foreign clocks.
EPSILON_NS = 5 * MS


class CameraWatch:
    """Follows one camera topic, by :meth:`frame`."""

    def __init__(self, config: MonitorConfig, steady_ns: int) -> None:
        self._config = config
        self._fresh = Window(config.window_s)
        self.repeated = EventTally(config.window_s)
        self.out_of_order = EventTally(config.window_s)
        self.ahead = EventTally(config.window_s)
        self._stamp_ns: int | None = None
        self._received_ns: int | None = None
        self._last_frame_ns = self._last_fresh_ns = steady_ns
        self.offset = ClockOffset(config.window_s, EPSILON_NS / MS)
        self.epsilon_ns = EPSILON_NS
        self.frames = self.clock_resets = 0

    def set_period(self, period_ns: int) -> None:
        """The control period T, for ε = min(5 ms, T/4)."""
        self.epsilon_ns = min(EPSILON_NS, period_ns // 4) if period_ns > 0 else EPSILON_NS

    def frame(self, stamp_ns: int, arrival: Moment) -> None:
        """One image, by its stamp and its receipt."""
        steady = arrival.steady_ns
        self.frames += 1
        self._last_frame_ns = steady
        self._follow_clock(stamp_ns, arrival)
        previous, self._stamp_ns = self._stamp_ns, stamp_ns
        if previous is not None and stamp_ns == previous:
            self.repeated.add(steady)
            return  # an old stamp says nothing new about rate or clocks
        if previous is not None and stamp_ns < previous:
            # The next frame is compared with this one: a bag that begins again counts once.
            self.out_of_order.add(steady)
            return
        self._fresh.add(steady, 1.0)
        self._last_fresh_ns = steady
        if not self._config.sim_time:
            self._compare_clocks(stamp_ns, arrival)

    def _follow_clock(self, stamp_ns: int, arrival: Moment) -> None:
        """A ROS clock that was set back starts the comparison of stamps anew."""
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
        """Since the last image of any kind, or since the start."""
        return (steady_ns - self._last_frame_ns) / SECOND

    def frozen_s(self, steady_ns: int) -> float:
        """Since the last image with a new stamp, or since the start."""
        return (steady_ns - self._last_fresh_ns) / SECOND
