"""A clock that jumps, stands still or runs backwards makes every age a guess."""

from __future__ import annotations

from vla_ros.safety import Limits
from vla_ros.timing import MS, SECOND, Moment


class ClockWatch:
    """Compares the clock of the stamps with the steady one, tick by tick. Not thread-safe.

    In simulated time (``sim_time``) the clock may run at any rate, but not backwards.
    """

    def __init__(self, sim_time: bool, steady_ns: int) -> None:
        self._sim_time = sim_time
        self._last: Moment | None = None
        self._moved_ns = steady_ns

    def jumped(self, now: Moment, limits: Limits) -> str | None:
        """Why everything in flight is void, or None. Call it once a tick."""
        last, self._last = self._last, now
        if last is None:
            return None
        moved = now.now_ns - last.now_ns
        if moved != 0:
            self._moved_ns = now.steady_ns
        drift = moved - (now.steady_ns - last.steady_ns)
        if moved < 0:
            return f"the clock went back by {-moved / MS:.0f} ms"
        if not self._sim_time and abs(drift) > limits.clock_tolerance_ns:
            return f"the clock jumped by {drift / MS:.1f} ms"
        return None

    def stands_still(self, now: Moment, limits: Limits) -> str | None:
        """Why the robot must hold, or None. No question for a world that waits, in lock-step."""
        still_ns = now.steady_ns - self._moved_ns
        if self._sim_time and still_ns > limits.max_age_ns:
            return f"/clock has stood still for {still_ns / SECOND:.1f} s"
        return None
