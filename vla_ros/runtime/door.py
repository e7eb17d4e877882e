"""The last door: what each output was commanded last, and so what it may be commanded next.

Every number of every output passes here at the moment of its publication, whoever it is from. Two
kinds of outputs: those that are commanded a step at a time, and the plans of trajectories, which
their controllers follow by their own clock. No clock, no log.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right

import numpy as np

from vla_ros.core.clock import SECOND
from vla_ros.core.types import Floats, Plan
from vla_ros.runtime.limiter import Commanded, Leash, Reach, near, pass_through, stand

LEAST = 1e-3  # of a period: a shorter rest is no point of a trajectory
_PAUSE_S, _PAUSE_PERIODS = 0.25, 3  # after so long others may have moved the robot
_NOISE, _CREEP = 1e-3, 0.02  # of an arm that stands: rad or m, and seconds at the fastest
_STANDS_S, _TRIES_S = 1.0, 0.5  # so long an arm may stand, the first time and those after it
_MOST_POINTS = 1000


def paused(since_ns: int, period_ns: int) -> bool:
    """True after a silence of an output so long that others may have moved the robot."""
    return not 0 <= since_ns <= max(_PAUSE_S * SECOND, _PAUSE_PERIODS * period_ns)


def _at_rest(commanded: Floats | None, reach: Reach, leash: Leash | None) -> Commanded | None:
    """Begin of a motion: the position commanded last, which a servo that sags is behind, or the
    measured one if that is farther away."""
    at = commanded
    if leash is not None and (at is None or not near(leash, at, reach)):
        at = leash.here
    return None if at is None else Commanded(at, np.zeros(len(at)))


class Door:
    """An output that is commanded a step at a time. ``commanded`` is its last command, None before
    the first one and after :meth:`forget`. Not thread-safe."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Others may have moved the robot."""
        self.commanded: Commanded | None = None
        self._at_ns = 0
        self.moves = False

    def begin(
        self, reach: Reach, now_ns: int, period_ns: int, leash: Leash | None
    ) -> tuple[Commanded, float] | None:
        """Start of the next step, and the share of a period that it may make use of; after a pause
        it begins at rest. None: a target is commanded, and the robot's position is unknown."""
        since_ns = now_ns - self._at_ns
        if self.commanded is not None and not paused(since_ns, period_ns):
            return self.commanded, max(LEAST, min(1.0, since_ns / period_ns))
        if not reach.absolute:
            zero = np.zeros(len(reach.low))
            return Commanded(zero, zero), 1.0
        rest = _at_rest(None if self.commanded is None else self.commanded.at, reach, leash)
        return None if rest is None else (rest, 1.0)

    def take(self, commanded: Commanded, reach: Reach, now_ns: int) -> None:
        """Remember the command of now."""
        self.commanded, self._at_ns = commanded, now_ns
        numbers = commanded.step if reach.absolute else commanded.at
        self.moves = numbers is not None and bool(numbers.any())


class TrajectoryCourse:
    """The plan that a trajectory's controller follows by its own clock, whether this process is
    late or not: instants and positions [n, M], straight lines between them, rest behind the last.
    Instants are of the clock that lapses are measured by. Not thread-safe."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Others may have moved the robot."""
        self._times: list[int] = []
        self._positions: list[Floats] = []
        self._stops = False

    def moves(self, now_ns: int) -> bool:
        """True if the controller was commanded to move on beyond that instant."""
        return bool(self._times) and self._times[-1] > now_ns

    def follow(
        self,
        rows: Floats,
        reach: Reach,
        begin_ns: int,
        period_ns: int,
        left_s: float,
        leash: Leash | None,
    ) -> Plan | None:
        """A plan of the positions ``rows`` [n, M], one a period from ``begin_ns`` on, which
        replaces the one before it there. It is cut off after ``left_s``: the period that is cut
        gets as far as it would by then, rows that end before are held until then; the deceleration
        to rest, if there is a limit of it, follows. None: nothing is left, or the arm's position is
        unknown."""
        start = self.at(begin_ns, period_ns, reach, leash)
        if start is None:
            return None
        commanded, points, period_s = start, list[tuple[float, Floats]](), period_ns / SECOND
        periods = max(left_s, 0.0) / period_s
        for number in range(max(0, math.ceil(periods - LEAST))):
            share = 1.0 if periods - number > 1.0 - LEAST else periods - number
            at_s = (number + 1) * period_s if share == 1.0 else left_s
            wider = None if leash is None else Leash(leash.here, leash.far + number * reach.step)
            if number < len(rows):
                wish = (
                    rows[number]
                    if share == 1.0
                    else commanded.at + share * (rows[number] - commanded.at)
                )
                commanded = pass_through(wish, commanded, reach, share, wider).commanded
            else:
                commanded = stand(commanded, reach, share)
                if not _goes_on(commanded):
                    points.append((left_s, commanded.at))
                    break
            points.append((at_s, commanded.at))
        if not points:
            return None
        points += _to_rest(commanded, reach, period_s, points[-1][0])
        self._replace(start.at, points, begin_ns)
        return Plan(tuple(points))

    def stop(self, reach: Reach, now_ns: int, period_ns: int, leash: Leash | None) -> Plan | None:
        """A plan that decelerates from now on along the way that the arm is on, then rests; at
        rest, that position. None: it decelerates already, or the arm's position is unknown."""
        start = self.at(now_ns, period_ns, reach, leash)
        if start is None or (self._stops and self.moves(now_ns)):
            return None
        period_s = period_ns / SECOND
        points = _to_rest(start, reach, period_s, 0.0) or [(period_s, start.at)]
        self._replace(start.at, points, now_ns)
        self._stops = _goes_on(start)
        return Plan(tuple(points), at_once=True)

    def at(self, at_ns: int, period_ns: int, reach: Reach, leash: Leash | None) -> Commanded | None:
        """Position of the plan at that instant, and its step in a period."""
        times, positions = self._times, self._positions
        if not times or at_ns < times[0] or paused(max(0, at_ns - times[-1]), period_ns):
            last = positions[0 if at_ns < times[0] else -1] if positions else None
            return _at_rest(last, reach, leash)
        if at_ns >= times[-1]:
            return Commanded(positions[-1], np.zeros(len(positions[-1])))
        after = bisect_right(times, at_ns)
        span, step = times[after] - times[after - 1], positions[after] - positions[after - 1]
        share = (at_ns - times[after - 1]) / span
        return Commanded(positions[after - 1] + share * step, step * (period_ns / span))

    def _replace(self, at: Floats, points: list[tuple[float, Floats]], begin_ns: int) -> None:
        """Take on new points; those before the begin are still followed until then."""
        old = max(0, bisect_left(self._times, begin_ns - SECOND) - 1)
        kept = slice(old, bisect_left(self._times, begin_ns))
        self._times = [*self._times[kept], begin_ns]
        self._positions = [*self._positions[kept], at]
        for seconds, position in points:
            self._times.append(begin_ns + round(seconds * SECOND))
            self._positions.append(position)
        self._stops = False


def _goes_on(commanded: Commanded) -> bool:
    return commanded.step is not None and bool(commanded.step.any())


def _to_rest(
    commanded: Commanded, reach: Reach, period_s: float, after_s: float
) -> list[tuple[float, Floats]]:
    """Points of a deceleration; none where nothing limits it."""
    points: list[tuple[float, Floats]] = []
    commanded = stand(commanded, reach)
    while _goes_on(commanded) and len(points) < _MOST_POINTS:
        points.append((after_s + (len(points) + 1) * period_s, commanded.at))
        commanded = stand(commanded, reach)
    return points


class ArmFollowing:
    """Watches that an arm goes where it is commanded to. Not thread-safe."""

    def __init__(self) -> None:
        self._stands_ns: int | None = None  # since when
        self._tried_ns = 0
        self._from = np.zeros(0)

    def stood_ns(self, far: bool, here: Floats, reach: Reach, now_ns: int, period_ns: int) -> int:
        """How long it has stood since its command was ``far`` from it."""
        if self._stands_ns is not None and self.moved(here, reach, period_ns):
            self._stands_ns = None
        if self._stands_ns is None and far:
            self._stands_ns, self._from = now_ns, here.copy()
            self._tried_ns = now_ns + round(_STANDS_S * SECOND)
        return 0 if self._stands_ns is None else now_ns - self._stands_ns

    def tries(self, now_ns: int) -> bool:
        """True while it may take its time."""
        return now_ns < self._tried_ns

    def try_again(self, now_ns: int) -> None:
        """Begin of another moment in which it is commanded to move."""
        self._tried_ns = now_ns + round(_TRIES_S * SECOND)

    def moved(self, here: Floats, reach: Reach, period_ns: int) -> bool:
        """True once it has gone farther than noise since it was seen to stand."""
        noise = np.maximum(_NOISE, _CREEP * reach.step * (SECOND / period_ns))
        return bool((np.abs(here - self._from) > noise).any())
