"""Cubic segments within the limits, apart from the limiter's steps: between two points of a
trajectory its controller moves by itself, so the limits hold there too.

A segment leads from a position and a velocity to others, in a share of a period; all numbers,
float64 [M], are per that period. Three facts of a cubic with the way D and the velocities v and w
at its ends, in units of its length:

- its acceleration is linear, so its largest are those at the ends, 6 D - 4 v - 2 w and
  4 w + 2 v - 6 D: within A if |6 D - 3 (v + w)| <= A - |w - v|;
- its velocity is a parabola, nowhere above V if 3 (V - D) >= p + q - sqrt(p q) with p = V - v and
  q = V - w: the smallest integral of a parabola that is not negative is that of a square;
- to be able to stop before a bound needs w^2 / 2 A of room behind it. Where no acceleration is
  limited the next segment is monotone if w is no more than three times its way.

Each is a convex set of (D, w), so between the two that brake and that accelerate most there is one
for every way between theirs. Pure functions; no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from vla_ros.core.types import Floats
from vla_ros.runtime import curve
from vla_ros.runtime.limiter import Reach

_Flags = npt.NDArray[np.bool_]
_ROUNDING = 1e-9
_NOTHING = 1e-12
_SHORTEST = 0.02  # of a segment: a joint that no limit of acceleration holds is not stopped faster


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """Positions and velocities of joints, float64 [M] each; velocities per period."""

    at: Floats
    velocity: Floats

    @property
    def rests(self) -> bool:
        return not self.velocity.any()


def toward(
    wish: Floats,
    onward: Floats | None,
    begin: PlanPoint,
    reach: Reach,
    share: float,
    following: float = 1.0,
    to_rest: bool = False,
) -> tuple[PlanPoint, float]:
    """End of the segment from ``begin`` that comes nearest to ``wish`` in a ``share`` of a period
    within the limits of a period, and the share that it takes: less where a joint has to stand at
    a bound before, which a point in between makes it.

    The velocity at its end leads on to ``onward``, which is reached a share ``following`` later;
    None: it goes on as it is. ``to_rest``: joints whose acceleration is not limited end at rest.
    Accelerations are exceeded only where the limits were narrowed beyond what they can follow.
    """
    high, low = np.maximum(reach.high, reach.low), reach.low
    wish = np.clip(wish, low, high)
    onward = None if onward is None else np.clip(onward, low, high)
    if not to_rest:
        end = _as_it_is(wish, onward, begin, reach, share, following)
        if end is not None:
            return PlanPoint(wish, end), share
    limits = _Limits.of(begin, replace(reach, high=high), share, to_rest)
    way, end = limits.nearest(wish - begin.at, onward, begin.at, share / following)
    stops = limits.stops(way, end)
    first = float(stops.min(initial=1.0))
    if first < 1.0:
        stands, share = stops <= first + _ROUNDING, share * first
        limits = _Limits.of(begin, replace(reach, high=high), share, to_rest=False)
        part = begin.at + first * (wish - begin.at)
        way, end = limits.nearest(part - begin.at, wish, begin.at, first / (1.0 - first))
        way[stands] = (limits.v * np.where(limits.free, 1 / 3, 1 / 2))[stands]
        end[stands] = 0.0
    end[np.abs(end) < _ROUNDING] = 0.0
    return PlanPoint(begin.at + way, end / share), share


def _as_it_is(
    wish: Floats,
    onward: Floats | None,
    begin: PlanPoint,
    reach: Reach,
    share: float,
    following: float,
) -> Floats | None:
    """Velocity at the end of a segment that no limit changes, which is soon known; None: one may.
    Nothing goes beyond the four numbers of which a cubic is a mean (Bezier)."""
    way, v = (wish - begin.at) / share, begin.velocity
    end = way if onward is None else curve.slope(way, (onward - wish) / following)
    if (np.abs(6 * way - 3 * (v + end)) > reach.change * share - np.abs(end - v)).any():
        return None
    fastest = np.maximum(np.maximum(np.abs(v), np.abs(end)), np.abs(3 * way - v - end))
    if (fastest > reach.step).any():  # of the parabola that its velocity is
        return None
    needed = np.where(np.isinf(reach.change), np.abs(end) / 3, end * end / (2 * reach.change))
    third = share / 3
    most = np.maximum(np.maximum(v * third, wish - begin.at + needed), 0.0)
    least = np.minimum(np.minimum(v * third, wish - begin.at - needed), 0.0)
    if (most > reach.high - begin.at).any() or (least < reach.low - begin.at).any():
        return None
    if (wish - begin.at - end * third > reach.high - begin.at).any():
        return None
    return None if (wish - begin.at - end * third < reach.low - begin.at).any() else end


def braking(begin: PlanPoint, reach: Reach, back: float = 0.0) -> tuple[Floats, Floats]:
    """Time that each joint takes to come to rest, in periods, and its way until then: as fast as
    its acceleration allows; where none is limited within a period, slowing down along its way, or
    within ``back`` periods and back to where it is; at a bound that is nearer within less."""
    v, change = begin.velocity, reach.change
    room = np.maximum(np.where(v > 0.0, reach.high - begin.at, begin.at - reach.low), 0.0)
    speed = np.maximum(np.abs(v), _NOTHING)
    farthest = 4 / 27 if back else 1 / 3  # of velocity times time
    free = np.clip(room / (farthest * speed), _SHORTEST * (back or 1.0), back or 1.0)
    length = np.where(v == 0.0, 0.0, np.where(np.isinf(change), free, speed / change))
    share = np.where(np.isinf(change), 0.0 if back else 1 / 3, 1 / 2)
    return length, v * length * share


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits of one segment in units of its length: of its velocity, forward and ``back``, and of
    the change of that. ``v``: velocity at its begin; ``up`` and ``down``: room to the bounds;
    ``least`` and ``most``: velocities at its end; ``free``: joints whose acceleration is not
    limited."""

    v: Floats
    step: Floats
    back: Floats
    change: Floats
    up: Floats
    down: Floats
    least: Floats
    most: Floats
    free: _Flags
    share: float

    @staticmethod
    def of(begin: PlanPoint, reach: Reach, share: float, to_rest: bool) -> _Limits:
        v, step, change = begin.velocity * share, reach.step * share, reach.change * share * share
        free = np.isinf(change)
        needed = np.where(free, 0.0, v * v / (2 * change))  # to stop in, whatever the bounds are
        up = np.maximum(reach.high - begin.at, np.where(v > 0.0, needed, 0.0))
        down = np.maximum(begin.at - reach.low, np.where(v < 0.0, needed, 0.0))
        most = np.maximum(np.minimum(v + change, step), v - change)
        least = np.minimum(np.maximum(v - change, -step), v + change)
        if to_rest:
            most, least = np.where(free, 0.0, most), np.where(free, 0.0, least)
        fastest, back = (np.where(free, step, np.maximum(step, one)) for one in (v, -v))
        return _Limits(v, fastest, back, change, up, down, least, most, free, share)

    def mirrored(self) -> _Limits:
        """The same with the other direction forward."""
        turned = replace(self, v=-self.v, step=self.back, back=self.step)
        return replace(turned, up=self.down, down=self.up, least=-self.most, most=-self.least)

    def nearest(
        self, wish: Floats, onward: Floats | None, at: Floats, ratio: float
    ) -> tuple[Floats, Floats]:
        """The way nearest to ``wish``, and the velocity at its end, float64 [M] each. ``ratio``:
        length of this segment in terms of the next one."""
        other = self.mirrored()
        far, near = self._farthest(), -other._farthest()
        way = np.clip(wish, near, far)
        way = np.where(near > far, np.where(self.v > 0.0, near, far), way)  # never turning back
        go_on = way if onward is None else curve.slope(way, (onward - at - way) * ratio)
        least = np.maximum(self.least, np.maximum(self._slowest(way), -other._fastest(-way)))
        most = np.minimum(self.most, np.minimum(self._fastest(way), -other._slowest(-way)))
        return way, np.clip(go_on, least, np.maximum(least, most))

    def stops(self, way: Floats, end: Floats) -> Floats:
        """The part of the segment after which each joint has to stand because it would go beyond a
        bound in between, float64 [M]; 1 where it need not."""
        out = np.ones(len(way))
        peaks = _peaks(way, self.v, end)
        for one, peak in ((self, peaks[0]), (self.mirrored(), -peaks[1])):
            moves = one.v > _NOTHING
            v = np.where(moves, one.v, 1.0)
            late = np.maximum(3 * one.up / v, _SHORTEST)
            out = np.where(moves & one.free & (late < 1.0), late, out)
            beyond = moves & ~one.free & (peak > one.up + _ROUNDING)
            out = np.where(beyond, np.clip(v / one.change, 1e-3, out), out)
        return out

    def _longest(self, end: Floats) -> Floats:
        """The longest way that ends with this velocity."""
        by_change = (self.v + end) / 2 + np.maximum(self.change - np.abs(end - self.v), 0.0) / 6
        p, q = np.maximum(self.step - self.v, 0.0), np.maximum(self.step - end, 0.0)
        out: Floats = np.minimum(by_change, self.step - (p + q - np.sqrt(p * q)) / 3)
        return out

    def _farthest(self) -> Floats:
        """The longest way after which it can stop before the bound: between the way that brakes
        most and the one that accelerates most."""
        start, goal = -self.mirrored()._longest(-self.least), self._longest(self.most)
        long, faster = np.maximum(goal - start, 0.0), self.most - self.least
        still = np.clip(-self.least / np.maximum(faster, _NOTHING), 0.0, 1.0)
        at, v = start + still * long, np.maximum(self.least, 0.0)  # where it ends at rest
        room = self.up - at - self._stopping(v)
        more_free = room / np.maximum(long + faster / (3 * self.share), _NOTHING)
        change = np.where(self.free, 1.0, self.change)
        a, b = faster * faster / (2 * change), long + faster * v / change
        root = np.sqrt(np.maximum(b * b + 4 * a * room, 0.0))
        with np.errstate(invalid="ignore"):
            more = 2 * room / np.maximum(b + root, _NOTHING)
        more = np.where(np.isinf(self.up), 1.0, np.where(self.free, more_free, more))
        goes = still + more
        turns = (self.up - start) / np.maximum(long, _NOTHING)  # it ends on its way back
        part = np.where((room < 0.0) & (still > 0.0), turns, goes)
        out: Floats = start + long * np.clip(part, 0.0, 1.0)
        return out

    def _stopping(self, v: Floats) -> Floats:
        change = np.where(self.free, 1.0, self.change)
        out: Floats = np.where(self.free, v / (3 * self.share), v * v / (2 * change))
        return out

    def _fastest(self, way: Floats) -> Floats:
        """The largest velocity at the end of a way."""
        by_change = np.minimum(
            3 * way - 2 * self.v + self.change / 2, (6 * way - 2 * self.v + self.change) / 4
        )
        p, e = np.maximum(self.step - self.v, 0.0), np.maximum(self.step - way, 0.0)
        least = (np.sqrt(p) - np.sqrt(np.maximum(12 * e - 3 * p, 0.0))) / 2
        by_step = self.step - np.maximum(least, 0.0) ** 2
        room = np.maximum(self.up - way, 0.0)
        change = np.where(self.free, 1.0, self.change)
        by_room = np.where(self.free, 3 * room * self.share, np.sqrt(2 * change * room))
        out: Floats = np.minimum(np.minimum(by_change, by_step), by_room)
        return out

    def _slowest(self, way: Floats) -> Floats:
        """The smallest velocity at the end of a way for which it is no faster before."""
        by_change = np.maximum(
            3 * way - 2 * self.v - self.change / 2, (6 * way - 2 * self.v - self.change) / 4
        )
        p, e = np.maximum(self.step - self.v, 0.0), np.maximum(self.step - way, 0.0)
        most = (np.sqrt(p) + np.sqrt(np.maximum(12 * e - 3 * p, 0.0))) / 2
        out: Floats = np.maximum(by_change, self.step - most**2)
        return out


def _peaks(way: Floats, begin: Floats, end: Floats) -> tuple[Floats, Floats]:
    """The farthest that a segment goes in between, forward and back, float64 [M] each."""
    b, c = 6 * way - 4 * begin - 2 * end, 3 * (begin + end) - 6 * way
    root = np.sqrt(np.maximum(b * b - 4 * c * begin, 0.0))
    q = -(b + np.copysign(root, b)) / 2
    places = [np.zeros(len(way)), way]
    with np.errstate(divide="ignore", invalid="ignore"):
        for share in (q / c, begin / q):
            s = np.clip(np.nan_to_num(share, posinf=0.0, neginf=0.0), 0.0, 1.0)
            places.append(curve.along(way, begin, end, s))
    return np.max(places, axis=0), np.min(places, axis=0)
