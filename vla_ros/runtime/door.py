"""The last door: what each output was commanded last, and so what it may be commanded next.

Every number of every output passes here at the moment of its publication, whoever it is from. Two
kinds of outputs: those that are commanded a step at a time, and the plans of trajectories, which
their controllers follow by their own clock. No clock, no log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from vla_ros.core.clock import SECOND
from vla_ros.core.types import Floats, Plan
from vla_ros.runtime import curve
from vla_ros.runtime.limiter import Commanded, Leash, Reach, near
from vla_ros.runtime.safety import ActionRefused
from vla_ros.runtime.segment import PlanPoint, braking, toward

LEAST = 1e-3  # of a period: a shorter rest is no point of a trajectory
_PAUSE_S, _PAUSE_PERIODS = 0.25, 3  # after so long others may have moved the robot
_NOISE, _CREEP = 1e-3, 0.02  # of an arm that stands: rad or m, and seconds at the fastest
_STANDS_S, _TRIES_S = 1.0, 0.5  # so long an arm may stand, the first time and those after it
_CLOSE = 1e-4  # periods between two points
_DIFFERENCE = 1e-4  # of numbers, for a rate of change


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

    def recount(self, counted: Callable[[Floats], Floats]) -> None:
        """The same command in numbers that are counted otherwise."""
        if self.commanded is not None:
            at, step = self.commanded.at, self.commanded.step
            moved = None if step is None else _rate(counted, at, step)
            self.commanded = replace(self.commanded, at=counted(at), step=moved)


class TrajectoryCourse:
    """The plan that a trajectory's controller follows by its own clock, whether this process is
    late or not: instants, positions [n, M] and velocities [n, M] per second, cubics between them,
    rest behind the last. Instants are of the clock that lapses are measured by. Not thread-safe."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Others may have moved the robot."""
        self._times: list[int] = []
        self._points: list[PlanPoint] = []  # velocities per second
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
        first: float = 1.0,
    ) -> Plan | None:
        """A plan of the positions ``rows`` [n, M], one a period, the ``first`` so many after
        ``begin_ns``, which replaces the one before it there, in position and velocity; ``reach`` is
        of such a period. It is cut off after ``left_s``: the period that is cut gets as far as it
        would by then; after rows that end before it comes to rest and stands until then. It ends at
        rest: the deceleration, if there is a limit of it, follows. None: nothing is left, or the
        arm's position is unknown."""
        begin = self.at(begin_ns, period_ns, reach, leash)
        periods = max(left_s, 0.0) / (period_ns / SECOND)
        if begin is None or periods <= LEAST:
            return None
        if not np.isfinite(rows).all():
            raise ActionRefused("a command has numbers that are not finite")
        motion, points, since = _moving(begin), list[tuple[float, PlanPoint]](), 0.0
        first = max(first, 2 * LEAST)
        for number, row in enumerate(rows):
            wider = None if leash is None else Leash(leash.here, leash.far + number * reach.step)
            onward, due = rows[number + 1] if number + 1 < len(rows) else None, number + first
            while due - since > LEAST and periods - since > LEAST:
                narrow, full = _narrowed(reach, motion.at, wider), due - since
                share = full if periods - since > full - LEAST else periods - since
                wish, then = reach.beside(row, motion.at), onward
                if share < full:
                    wish, then = motion.at + share / full * (wish - motion.at), wish
                elif then is not None:
                    then = reach.beside(then, wish)
                cut = periods - since - share <= LEAST
                following = full - share if share < full else 1.0
                motion, share = toward(wish, then, motion, narrow, share, following, cut)
                since += share
                points.append((since, motion))
        points += _to_rest(motion, reach, since, min(1.0, periods - since))
        if points[-1][0] < periods - LEAST:
            points.append((periods, points[-1][1]))
        return self._replace(begin, points, begin_ns, period_ns)

    def stop(self, reach: Reach, now_ns: int, period_ns: int, leash: Leash | None) -> Plan | None:
        """A plan that decelerates from now on along the way that the arm is on, then rests; at
        rest, that position. None: it decelerates already, or the arm's position is unknown."""
        start = self.at(now_ns, period_ns, reach, leash)
        if start is None or (self._stops and self.moves(now_ns)):
            return None
        motion = _moving(start)
        points = _to_rest(motion, reach) or [(1.0, motion)]
        plan = self._replace(start, points, now_ns, period_ns)
        self._stops = not motion.rests
        return replace(plan, at_once=True)

    def at(self, at_ns: int, period_ns: int, reach: Reach, leash: Leash | None) -> Commanded | None:
        """Position of the plan at that instant, and its step in a period: its velocity."""
        times, points, period_s = self._times, self._points, period_ns / SECOND
        if not times or at_ns < times[0] or paused(max(0, at_ns - times[-1]), period_ns):
            last = points[0 if at_ns < times[0] else -1].at if points else None
            return _at_rest(last, reach, leash)
        if at_ns >= times[-1]:
            return Commanded(points[-1].at, np.zeros(len(points[-1].at)))
        after = bisect_right(times, at_ns)
        one, other, span = points[after - 1], points[after], times[after] - times[after - 1]
        share, long = (at_ns - times[after - 1]) / span, span / SECOND
        segment = (other.at - one.at, one.velocity * long, other.velocity * long, share)
        velocity = curve.velocity(*segment) / long
        return Commanded(one.at + curve.along(*segment), velocity * period_s)

    def recount(self, counted: Callable[[Floats], Floats]) -> None:
        """The same course in numbers that are counted otherwise."""
        self._points = [
            PlanPoint(counted(point.at), _rate(counted, point.at, point.velocity))
            for point in self._points
        ]

    def _replace(
        self, begin: Commanded, points: list[tuple[float, PlanPoint]], begin_ns: int, period_ns: int
    ) -> Plan:
        """Take on new points; those before the begin are still followed until then."""
        period_s = period_ns / SECOND
        old = max(0, bisect_left(self._times, begin_ns - SECOND) - 1)
        kept = slice(old, bisect_left(self._times, begin_ns))
        first = _moving(begin)
        self._times = [*self._times[kept], begin_ns]
        self._points = [*self._points[kept], PlanPoint(first.at, first.velocity / period_s)]
        for periods, motion in points:
            self._times.append(begin_ns + round(periods * period_ns))
            self._points.append(PlanPoint(motion.at, motion.velocity / period_s))
        self._stops = False
        rows = zip(points, self._points[-len(points) :], strict=True)
        return Plan(tuple((at * period_s, row.at, row.velocity) for (at, _), row in rows))


def _rate(counted: Callable[[Floats], Floats], at: Floats, rate: Floats) -> Floats:
    """A rate of change at ``at`` in numbers that are counted otherwise."""
    far = _DIFFERENCE / max(1.0, float(np.abs(rate).max(initial=0.0)))
    out: Floats = (counted(at + far * rate) - counted(at - far * rate)) / (2 * far)
    return out


def _moving(commanded: Commanded) -> PlanPoint:
    still = np.zeros(len(commanded.at))
    return PlanPoint(commanded.at, still if commanded.step is None else commanded.step)


def _narrowed(reach: Reach, at: Floats, leash: Leash | None) -> Reach:
    """The limits with the bounds of the turns and of the leash that hold at a position."""
    here = reach.about(at)
    if leash is None:
        return here
    middle = reach.beside(leash.here, at)
    low = np.minimum(np.maximum(here.low, middle - leash.far), here.high)
    return replace(here, low=low, high=np.maximum(np.minimum(here.high, middle + leash.far), low))


def _to_rest(
    begin: PlanPoint, reach: Reach, after: float = 0.0, back: float = 0.0
) -> list[tuple[float, PlanPoint]]:
    """Points of a deceleration, each where a joint comes to rest; none of one that rests. Times in
    periods. See :func:`braking`."""
    length, way = braking(begin, reach.about(begin.at), back)
    ends = list[float]()
    for joint in np.argsort(-length):
        if length[joint] > 0.0:
            if not ends or ends[-1] - length[joint] > _CLOSE:
                ends.append(max(float(length[joint]), _CLOSE))
            way[joint] *= ends[-1] / length[joint]
            length[joint] = ends[-1]
    v, long = begin.velocity * length, np.where(length > 0.0, length, 1.0)
    points = list[tuple[float, PlanPoint]]()
    for at in reversed(ends):
        share = np.minimum(at / long, 1.0)
        velocity = np.where(share < 1.0, curve.velocity(way, v, 0.0 * v, share) / long, 0.0)
        motion = PlanPoint(begin.at + curve.along(way, v, 0.0 * v, share), velocity)
        points.append((after + at, motion))
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
