"""The last door: the limits of motion, and what an output was told last.

Every number of every output passes here at the moment of its publication, whoever it is from: a
step is no longer than the velocity allows for the time since the last one, it changes by no more
than the acceleration allows, it stays within the bounds or leads back to them, and it waits for an
arm that is behind. Pure functions of (numbers, time) and small states; no clock, no log.

The numbers of a space of places are places, their step is a velocity; those of a space of
displacements are velocities, their step is an acceleration: one rule holds both.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from vla_ros.core import rotation
from vla_ros.core.action_space import ActionSpace
from vla_ros.core.clock import SECOND
from vla_ros.core.types import Floats, Plan
from vla_ros.runtime.safety import ActionRefused, Limits, refuse_unless_numbers

_ROUNDING = 1e-9  # a rounding error is no excess
_JITTER = 0.02  # of a step: what a tick that is a little early takes from it is not counted
LEAST = 1e-3  # of a period: a shorter rest is no point of a trajectory
_PAUSE_S, _PAUSE_PERIODS = 0.25, 3  # after so long others may have moved the robot
_NOISE, _CREEP = 1e-3, 0.02  # of an arm that stands: rad or m, and seconds at the fastest
_STANDS_S, _TRIES_S = 1.0, 0.5  # so long an arm may stand, the first time and those after it
_MOST_POINTS = 1000
_TURN = 2 * np.pi
_NOTHING = 1e-12


@dataclass(frozen=True, slots=True)
class Reach:
    """What may be told in one control period, float64 [M] each, M numbers that move: from ``low``
    to ``high``, by a step of ``step`` at most that differs from the one before by ``change`` at
    most. Infinite: no such limit. ``stop``: the largest step of displacements towards none.

    ``turns``: the places of each arm's rotation of a pose, which is held to angles by the shorter
    way round, within ``radius`` [M] of the middle of its bounds. ``endless``: joints that turn
    without end, compared modulo a turn. ``loose``: how much of an excess of the bounds is not
    counted.
    """

    low: Floats
    high: Floats
    step: Floats
    change: Floats
    stop: Floats
    radius: Floats
    loose: Floats
    absolute: bool
    turns: tuple[npt.NDArray[np.intp], ...] = ()
    endless: tuple[int, ...] = ()

    @property
    def middle(self) -> Floats:
        out: Floats = (self.low + self.high) / 2
        return out

    def beside(self, motion: Floats, at: Floats) -> Floats:
        """Endless joints in the turn that is nearest to ``at``."""
        out = motion
        for joint in self.endless:
            turns = round((float(motion[joint]) - float(at[joint])) / _TURN)
            if turns:
                out = out.copy() if out is motion else out
                out[joint] -= turns * _TURN
        return out

    def about(self, at: Floats) -> Reach:
        """The same with the bounds of endless joints in the turn that is nearest to ``at``; bounds
        of a whole turn are none."""
        if not self.endless:
            return self
        low, high = self.low.copy(), self.high.copy()
        for joint in self.endless:
            if high[joint] - low[joint] >= _TURN - _ROUNDING:
                low[joint], high[joint] = -np.inf, np.inf
            else:
                middle = (low[joint] + high[joint]) / 2
                shift = round((float(at[joint]) - middle) / _TURN) * _TURN
                low[joint], high[joint] = low[joint] + shift, high[joint] + shift
        return replace(self, low=low, high=high, endless=())


@dataclass(frozen=True, slots=True)
class Told:
    """What an output was told last, float64 [M]: the numbers, and the step that led there, in a
    whole period; None: there was none yet."""

    at: Floats
    step: Floats | None = None


@dataclass(frozen=True, slots=True)
class Leash:
    """Where the joints are, float64 [M], and how far from there they may be told to go."""

    here: Floats
    far: Floats


@dataclass(frozen=True, slots=True)
class Passed:
    """What may be told, float64 [M]. ``over``: the limits that changed it, in words; ``far``: by
    more than a tolerance. ``bounded``: held to its bounds alone. ``leashed``: places [M] that wait
    for the arm."""

    told: Told
    over: str = ""
    far: bool = False
    bounded: Floats | None = None
    leashed: npt.NDArray[np.bool_] | None = None


@lru_cache(maxsize=64)
def reach_of(limits: Limits, endless: tuple[int, ...] = ()) -> Reach:
    """Of the numbers of an action that move."""
    space, period = limits.space, limits.period_s
    turns = _turns(space)
    low, high = np.array(limits.low, np.float64), np.array(limits.high, np.float64)
    radius = (high - low) / 2
    for arm in turns:
        radius[arm] = radius[arm].max()  # rotations are bounded by an angle: a ball, not a box
    step, change = limits.jump * 2 * radius, limits.jerk * 2 * radius
    stop = np.full(len(low), np.inf)
    velocity = np.array(limits.velocity or (np.inf,) * len(low)) * period
    accelerated = np.array(limits.acceleration or (np.inf,) * len(low)) * period * period
    if space.absolute:
        step, change = np.minimum(step, velocity), np.minimum(change, accelerated)
    else:
        low, high = np.maximum(low, -velocity), np.minimum(high, velocity)
        step, stop = np.minimum(step, accelerated), accelerated
    for arm in turns:
        step[arm], change[arm] = step[arm].min(), change[arm].min()
    change[np.isinf(accelerated) & (change >= 2 * step)] = np.inf  # two steps differ by less
    loose = limits.clamp_tolerance * 2 * radius
    endless = endless if space.absolute else ()
    return Reach(low, high, step, change, stop, radius, loose, space.absolute, turns, endless)


@lru_cache(maxsize=64)
def joints_reach_of(limits: Limits, endless: tuple[int, ...] = ()) -> Reach:
    """Of the places that displacements of joints lead to, which have no bounds here."""
    period, count = limits.period_s, len(limits.low)
    step = np.maximum(np.abs(limits.low), np.abs(limits.high))
    if limits.velocity:
        step = np.minimum(step, np.array(limits.velocity) * period)
    change = np.array(limits.acceleration or (np.inf,) * count) * period * period
    free = np.full(count, np.inf)
    return Reach(-free, free, step, change, free, free, free, True, (), endless)


def _turns(space: ActionSpace) -> tuple[npt.NDArray[np.intp], ...]:
    if not space.absolute:
        return ()
    motion = space.motion
    return tuple(np.array([motion.index(p) for p in arm], np.intp) for arm in space.rotations)


# ------------------------------------------------------------------------------ one step


def pass_through(
    wish: Floats,
    told: Told | None,
    reach: Reach,
    share: float = 1.0,
    leash: Leash | None = None,
    brakes: bool = True,
) -> Passed:
    """The numbers ``wish``, float64 [M], or as near to them as may be told after ``told``.

    ``share`` of a period has passed since. Raises :class:`ActionRefused` for numbers that are not
    finite. ``brakes``: places are approached so that the change of
    the step suffices to stop at their bounds.
    """
    motion = np.array(wish, np.float64)
    if not np.isfinite(motion).all():
        raise ActionRefused("a command has numbers that are not finite")
    if reach.endless:
        at = motion if told is None else told.at
        motion = reach.beside(motion, at)
        leash = None if leash is None else replace(leash, here=reach.beside(leash.here, at))
        reach = reach.about(at)
    over: list[str] = []
    far, bounded, leashed = False, None, None
    for name, confined, tolerance in _confined(motion, told, reach, share, leash, brakes):
        excess = apart(motion, confined, reach)
        if excess.max(initial=0.0) > _ROUNDING:
            if (excess > _ROUNDING + (_JITTER if share < 1.0 else 0.0) * reach.step).any():
                over.append(name)
            far |= bool((excess > tolerance + _ROUNDING).any())
            motion = confined
        if name == "leash":
            leashed = excess > _ROUNDING
        bounded = motion if bounded is None else bounded
    step = None if told is None else step_between(told.at, motion, reach) / share
    return Passed(Told(motion, step), ", ".join(dict.fromkeys(over)), far, bounded, leashed)


def stand(told: Told, reach: Reach, share: float = 1.0) -> Told:
    """What stops the motion: displacements of nothing, or the place as it was; as near to that as
    the limits allow, so that it decelerates along the way that it was on."""
    if not reach.absolute:
        motion = np.clip(0.0, told.at - reach.stop * share, told.at + reach.stop * share)
        return Told(motion, (motion - told.at) / share)
    before = np.zeros(len(told.at)) if told.step is None else told.step
    step = _shortened(before, reach.change * share, reach) * share
    return Told(_moved(told.at, step, reach), step / share)


def _confined(
    motion: Floats,
    told: Told | None,
    reach: Reach,
    share: float,
    leash: Leash | None,
    brakes: bool,
) -> Iterator[tuple[str, Floats, Floats]]:
    """What limits there are, one after the other: a name, the numbers within it, and how much of
    an excess is not counted. ``motion`` is looked at anew for each: what is yielded is taken."""
    none = np.zeros(len(motion))
    low, high = reach.low, reach.high
    taken = _bounded(motion, reach)
    yield "bounds", taken, reach.loose
    if told is None:
        return
    balls = [(reach.middle, reach.radius)] if reach.turns else []
    if leash is not None:
        taken = _within(taken, leash.here, leash.far, reach)
        yield "leash", taken, none
        low = np.maximum(low, leash.here - leash.far)
        high = np.minimum(high, leash.here + leash.far)
        balls += [(leash.here, leash.far)] if reach.turns else []
    taken = _within(taken, told.at, reach.step * share, reach)
    yield "jump", taken, none
    if told.step is None:
        return
    if brakes and reach.absolute:
        taken = _braking(taken, told.at, low, high, balls, reach, share)
        yield "jerk", taken, none
    expected = _moved(told.at, told.step * share, reach)
    taken = _within(taken, expected, reach.change * share * share, reach)
    yield "jerk", taken, none
    if not reach.absolute:
        yield "jerk", _within(_bounded(taken, reach), told.at, reach.stop * share, reach), none
    for arm in reach.turns if brakes else ():  # a ball is left by the side that braking looked at
        out = max(reach.radius[arm[0]], _angle(reach.middle[arm], told.at[arm]))
        taken = taken.copy()
        taken[arm] = rotation.towards(reach.middle[arm], taken[arm], out)
        yield "bounds", taken, none


def _braking(
    motion: Floats,
    at: Floats,
    low: Floats,
    high: Floats,
    balls: list[tuple[Floats, Floats]],
    reach: Reach,
    share: float,
) -> Floats:
    """No faster towards a bound than one can stop before it."""
    up = _fastest(np.maximum(high - at, 0.0), reach.change, share)
    down = _fastest(np.maximum(at - low, 0.0), reach.change, share)
    out = np.clip(motion, at - down, at + up)
    for arm in reach.turns:
        out[arm] = motion[arm]
        wish = rotation.way(at[arm], motion[arm])
        length = float(np.linalg.norm(wish))
        if length < _ROUNDING or np.isinf(reach.change[arm[0]]):
            continue
        room = min(_exit(at[arm], wish / length, c[arm], float(r[arm[0]])) for c, r in balls)
        most = float(_fastest(np.array([room]), reach.change[arm[:1]], share)[0])
        if length > most:
            out[arm] = rotation.turned(at[arm], wish * (most / length))
    return out


def _fastest(room: Floats, change: Floats, share: float) -> Floats:
    """The longest step after which what is left of ``room`` suffices to stop in: u dt + u^2 / 2a
    fills it, whatever the lengths of the periods that follow."""
    with np.errstate(invalid="ignore"):
        limited = change * share * (np.sqrt(share * share + 2 * room / change) - share)
    out: Floats = np.where(np.isinf(change) | np.isinf(room), room, limited)
    return np.minimum(out, room)


def _exit(at: Floats, way: Floats, center: Floats, radius: float) -> float:
    """How far along ``way`` (a unit vector) a ball of rotations ends, as if it were flat."""
    off = rotation.way(center, at)
    along = float(off @ way)
    inside = radius * radius - float(off @ off)
    if inside <= 0.0:  # on its edge, or outside of it: inward as far as the other side
        return max(0.0, -2.0 * along)
    return -along + float(np.sqrt(along * along + inside))


def _bounded(motion: Floats, reach: Reach) -> Floats:
    out = np.clip(motion, reach.low, reach.high)
    for arm in reach.turns:
        out[arm] = rotation.towards(reach.middle[arm], motion[arm], float(reach.radius[arm[0]]))
    return out


def _within(motion: Floats, center: Floats, radius: Floats, reach: Reach) -> Floats:
    out: Floats = np.clip(motion, center - radius, center + radius)
    for arm in reach.turns:
        out[arm] = rotation.towards(center[arm], motion[arm], float(radius[arm[0]]))
    return out


def _moved(at: Floats, step: Floats, reach: Reach) -> Floats:
    out: Floats = at + step
    for arm in reach.turns:
        out[arm] = rotation.turned(at[arm], step[arm])
    return out


def step_between(at: Floats, motion: Floats, reach: Reach) -> Floats:
    """What leads from one to the other; rotations of poses as the turn that is needed."""
    out: Floats = motion - at
    for arm in reach.turns:
        out[arm] = rotation.way(at[arm], motion[arm])
    return out


def _shortened(step: Floats, by: Floats, reach: Reach) -> Floats:
    """A step that is shorter by so much, or none."""
    out: Floats = step - np.clip(step, -by, by)
    out[np.abs(out) < _NOTHING] = 0.0  # what rounding leaves is no motion
    for arm in reach.turns:
        length = float(np.linalg.norm(step[arm]))
        out[arm] = step[arm] * max(0.0, 1.0 - float(by[arm[0]]) / max(length, _ROUNDING))
    return out


def _angle(one: Floats, other: Floats) -> float:
    return float(np.linalg.norm(rotation.way(one, other)))


def apart(motion: Floats, confined: Floats, reach: Reach) -> Floats:
    """By how much each number that moves was beyond; rotations of poses by an angle."""
    excess = np.abs(confined - motion)
    for arm in reach.turns:
        excess[arm] = _angle(confined[arm], motion[arm])
    return excess


def wrapped(angles: Floats) -> Floats:
    """The same angles from -pi to pi."""
    out: Floats = angles - np.round(angles / _TURN) * _TURN
    return out


def near(leash: Leash, at: Floats, reach: Reach) -> bool:
    """Whether a place is within the leash."""
    return bool((apart(reach.beside(leash.here, at), at, reach) <= leash.far + _ROUNDING).all())


# ------------------------------------------------------------------------------ the policy's motion


@dataclass(frozen=True, slots=True)
class Judged:
    """An action as the policy's own motion has it: ``bounded``, float64 [D], held to its bounds
    alone; ``over``: the limits that it exceeded, in words; ``far``: by more than a tolerance."""

    bounded: Floats
    over: str
    far: bool


def judge(
    action: Floats, before: tuple[Floats, ...], limits: Limits, endless: tuple[int, ...] = ()
) -> Judged:
    """Whether an action makes sense after those ``before`` it, newest first, at most two are used.
    Raises :class:`ActionRefused`."""
    refuse_unless_numbers(action, limits.space)
    motion = list(limits.space.motion)
    reach, out = reach_of(limits, endless), np.array(action, np.float64)
    told = None
    if before:
        last = before[0][motion]
        step = step_between(before[1][motion], last, reach) if len(before) > 1 else None
        told = Told(last, step)
    passed = pass_through(out[motion], told, reach, brakes=False)
    out[motion] = passed.bounded
    return Judged(out, passed.over, passed.far)


# ------------------------------------------------------------------------------ what was told last


def paused(since_ns: int, period_ns: int) -> bool:
    """Whether an output was silent for so long that others may have moved the robot."""
    return not 0 <= since_ns <= max(_PAUSE_S * SECOND, _PAUSE_PERIODS * period_ns)


def _at_rest(told: Floats | None, reach: Reach, leash: Leash | None) -> Told | None:
    """Where a motion begins: at the place that was told last, which a servo that sags is behind,
    or where the robot is measured to be if that is farther away."""
    at = told
    if leash is not None and (at is None or not near(leash, at, reach)):
        at = leash.here
    return None if at is None else Told(at, np.zeros(len(at)))


class Door:
    """One output that is told a step at a time. ``told`` is what it was told last, None before
    the first time and after :meth:`forget`. Not thread-safe."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Others may have moved the robot."""
        self.told: Told | None = None
        self._at_ns = 0
        self.moves = False

    def begin(
        self, reach: Reach, now_ns: int, period_ns: int, leash: Leash | None
    ) -> tuple[Told, float] | None:
        """What the next step is one from, and the share of a period that it may make use of; after
        a pause it begins at rest. None: it is a place, and nobody says where the robot is."""
        since_ns = now_ns - self._at_ns
        if self.told is not None and not paused(since_ns, period_ns):
            return self.told, max(LEAST, min(1.0, since_ns / period_ns))
        if not reach.absolute:
            zero = np.zeros(len(reach.low))
            return Told(zero, zero), 1.0
        rest = _at_rest(None if self.told is None else self.told.at, reach, leash)
        return None if rest is None else (rest, 1.0)

    def take(self, told: Told, reach: Reach, now_ns: int) -> None:
        """This was told now."""
        self.told, self._at_ns = told, now_ns
        numbers = told.step if reach.absolute else told.at
        self.moves = numbers is not None and bool(numbers.any())


class Course:
    """The plan that a trajectory's controller follows by its own clock, whether this process is
    late or not: instants and places [n, M], straight lines between them, rest behind the last.
    Instants are of the clock that lapses are measured by. Not thread-safe."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Others may have moved the robot."""
        self._times: list[int] = []
        self._places: list[Floats] = []
        self._stops = False

    def moves(self, now_ns: int) -> bool:
        """Whether the controller was told to move on beyond that instant."""
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
        """A plan of the places ``rows`` [n, M], one a period from ``begin_ns`` on, which replaces
        the one before it there. It is cut off after ``left_s``: the period that is cut gets as far
        as it would by then, rows that end before are held until then; the deceleration to rest, if
        there is a limit of it, follows. None: nothing is left, or nobody says where the arm is."""
        start = self.at(begin_ns, period_ns, reach, leash)
        if start is None:
            return None
        told, points, period_s = start, list[tuple[float, Floats]](), period_ns / SECOND
        periods = max(left_s, 0.0) / period_s
        for number in range(max(0, math.ceil(periods - LEAST))):
            share = 1.0 if periods - number > 1.0 - LEAST else periods - number
            at_s = (number + 1) * period_s if share == 1.0 else left_s
            wider = None if leash is None else Leash(leash.here, leash.far + number * reach.step)
            if number < len(rows):
                wish = rows[number] if share == 1.0 else told.at + share * (rows[number] - told.at)
                told = pass_through(wish, told, reach, share, wider).told
            else:
                told = stand(told, reach, share)
                if not _goes_on(told):
                    points.append((left_s, told.at))
                    break
            points.append((at_s, told.at))
        if not points:
            return None
        points += _to_rest(told, reach, period_s, points[-1][0])
        self._replace(start.at, points, begin_ns)
        return Plan(tuple(points))

    def stop(self, reach: Reach, now_ns: int, period_ns: int, leash: Leash | None) -> Plan | None:
        """A plan that decelerates from now on along the way that the arm is on, then rests; at
        rest, the place of that. None: it is on its way to rest, or nobody says where the arm is."""
        start = self.at(now_ns, period_ns, reach, leash)
        if start is None or (self._stops and self.moves(now_ns)):
            return None
        period_s = period_ns / SECOND
        points = _to_rest(start, reach, period_s, 0.0) or [(period_s, start.at)]
        self._replace(start.at, points, now_ns)
        self._stops = _goes_on(start)
        return Plan(tuple(points), at_once=True)

    def at(self, at_ns: int, period_ns: int, reach: Reach, leash: Leash | None) -> Told | None:
        """Where the plan is then, and its step in a period."""
        times, places = self._times, self._places
        if not times or at_ns < times[0] or paused(max(0, at_ns - times[-1]), period_ns):
            last = places[0 if at_ns < times[0] else -1] if places else None
            return _at_rest(last, reach, leash)
        if at_ns >= times[-1]:
            return Told(places[-1], np.zeros(len(places[-1])))
        after = bisect_right(times, at_ns)
        span, way = times[after] - times[after - 1], places[after] - places[after - 1]
        share = (at_ns - times[after - 1]) / span
        return Told(places[after - 1] + share * way, way * (period_ns / span))

    def _replace(self, at: Floats, points: list[tuple[float, Floats]], begin_ns: int) -> None:
        """What lies before the begin is still followed until then."""
        old = max(0, bisect_left(self._times, begin_ns - SECOND) - 1)
        kept = slice(old, bisect_left(self._times, begin_ns))
        self._times = [*self._times[kept], begin_ns]
        self._places = [*self._places[kept], at]
        for seconds, place in points:
            self._times.append(begin_ns + round(seconds * SECOND))
            self._places.append(place)
        self._stops = False


def _goes_on(told: Told) -> bool:
    return told.step is not None and bool(told.step.any())


def _to_rest(
    told: Told, reach: Reach, period_s: float, after_s: float
) -> list[tuple[float, Floats]]:
    """The points of a deceleration; none where nothing limits it."""
    points: list[tuple[float, Floats]] = []
    told = stand(told, reach)
    while _goes_on(told) and len(points) < _MOST_POINTS:
        points.append((after_s + (len(points) + 1) * period_s, told.at))
        told = stand(told, reach)
    return points


class Following:
    """Whether an arm goes where it is told to. Not thread-safe."""

    def __init__(self) -> None:
        self._stands_ns: int | None = None  # since when
        self._tried_ns = 0
        self._from = np.zeros(0)

    def look(self, far: bool, here: Floats, reach: Reach, now_ns: int, period_ns: int) -> int:
        """For how long, ns, it has stood since what it is told was ``far`` from it."""
        if self._stands_ns is not None and self.moved(here, reach, period_ns):
            self._stands_ns = None
        if self._stands_ns is None and far:
            self._stands_ns, self._from = now_ns, here.copy()
            self._tried_ns = now_ns + round(_STANDS_S * SECOND)
        return 0 if self._stands_ns is None else now_ns - self._stands_ns

    def tries(self, now_ns: int) -> bool:
        """Whether it may take its time yet."""
        return now_ns < self._tried_ns

    def try_again(self, now_ns: int) -> None:
        """It is told to move once more, for a moment."""
        self._tried_ns = now_ns + round(_TRIES_S * SECOND)

    def moved(self, here: Floats, reach: Reach, period_ns: int) -> bool:
        """Whether it has gone farther than noise since it was seen to stand."""
        noise = np.maximum(_NOISE, _CREEP * reach.step * (SECOND / period_ns))
        return bool((np.abs(here - self._from) > noise).any())
