"""The limiter of motion: how far one number may go from the one before it.

A step is no longer than the velocity allows for the time since the last one, it changes by no more
than the acceleration allows, it stays within the bounds or leads back to them, and it waits for an
arm that is behind. Pure functions of (numbers, time); no clock, no log.

The numbers of a space of targets are positions, their step is a velocity; those of a space of
displacements are velocities, their step is an acceleration: one rule holds both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isfinite

import numpy as np
import numpy.typing as npt

from vla_ros.core import rotation
from vla_ros.core.action_space import ActionSpace
from vla_ros.core.types import Floats
from vla_ros.runtime.safety import ActionRefused, Limits, refuse_unless_numbers

_ROUNDING = 1e-9  # a rounding error is no excess
_OTHER_UNIT = 3.0  # times its bounds: a number of another unit, degrees say
_JITTER = 0.02  # of a step: what a tick that is a little early takes from it is not counted
_TURN = 2 * np.pi
_NOTHING = 1e-12


@dataclass(frozen=True, slots=True)
class Reach:
    """The limits of one control period, float64 [M] each, M numbers that move: from
    ``low`` to ``high``, by a step of ``step`` at most that differs from the one before by
    ``change`` at most. Infinite: no such limit. ``stop``: the largest step of displacements towards
    none.

    ``turns``: the indices of each arm's rotation of a pose, which is held to angles by the shorter
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
        """These limits with the bounds of endless joints in the turn nearest to ``at``; bounds of a
        whole turn are none."""
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
class Commanded:
    """The last command of an output, float64 [M]: its numbers, and the step that led there, in a
    whole period; None: there was none yet."""

    at: Floats
    step: Floats | None = None


@dataclass(frozen=True, slots=True)
class Leash:
    """Measured joints, float64 [M], and how far from there they may be commanded."""

    here: Floats
    far: Floats


@dataclass(frozen=True, slots=True)
class Passed:
    """A limited command, float64 [M]. ``over``: names of the limits that changed it; ``far``: by
    more than a tolerance. ``bounded``: the wish held to its bounds alone."""

    commanded: Commanded
    over: str = ""
    far: bool = False
    bounded: Floats | None = None


@lru_cache(maxsize=64)
def reach_of(limits: Limits, endless: tuple[int, ...] = ()) -> Reach:
    """Limits of a command's numbers that move, for one control period."""
    return _reach(limits, endless, limits.period_s, limits.actions_a_period)


@lru_cache(maxsize=64)
def action_reach_of(limits: Limits, endless: tuple[int, ...] = ()) -> Reach:
    """Limits of an action's numbers that move, from one action to the next."""
    return _reach(limits, endless, limits.action_period_s, 1.0)


def _reach(limits: Limits, endless: tuple[int, ...], period: float, share: float) -> Reach:
    """Limits for a ``period`` in seconds, which makes this ``share`` of an action: bounds of
    displacements and the jump from one action to the next are an action's."""
    space = limits.space
    turns = _turns(space)
    low, high = np.array(limits.low, np.float64), np.array(limits.high, np.float64)
    if not space.absolute:
        low, high = low * share, high * share
    radius = (high - low) / 2
    for arm in turns:
        radius[arm] = radius[arm].max()  # rotations are bounded by an angle: a ball, not a box
    jump, jerk = limits.jump, limits.jerk
    if space.absolute:  # of displacements the change is an acceleration, which a tick may make
        jump *= share if jump < 1.0 else 1.0
        jerk *= share * share if jerk < 2.0 else 1.0
    step, change = jump * 2 * radius, jerk * 2 * radius
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
    """Limits of the positions that displacements of joints lead to, which have no bounds here, for
    one control period."""
    return _joints_reach(limits, endless, limits.period_s, limits.actions_a_period)


@lru_cache(maxsize=64)
def action_joints_reach_of(limits: Limits, endless: tuple[int, ...] = ()) -> Reach:
    """Limits of those positions from one action to the next."""
    return _joints_reach(limits, endless, limits.action_period_s, 1.0)


def _joints_reach(limits: Limits, endless: tuple[int, ...], period: float, share: float) -> Reach:
    count = len(limits.low)
    step = np.maximum(np.abs(limits.low), np.abs(limits.high)) * share
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


# One step


def pass_through(
    wish: Floats,
    commanded: Commanded | None,
    reach: Reach,
    share: float = 1.0,
    leash: Leash | None = None,
    brakes: bool = True,
) -> Passed:
    """The command nearest to ``wish``, float64 [M], that is allowed after ``commanded``.

    ``share`` of a period has passed since. ``brakes``: bounds of targets are approached so that the
    change of the step suffices to stop at them. Raises :class:`ActionRefused` for numbers that are
    not finite.
    """
    motion = np.array(wish, np.float64)
    if not all(map(isfinite, motion.tolist())):
        raise ActionRefused("a command has numbers that are not finite")
    if reach.endless:
        at = motion if commanded is None else commanded.at
        motion = reach.beside(motion, at)
        leash = None if leash is None else replace(leash, here=reach.beside(leash.here, at))
        reach = reach.about(at)
    over: list[str] = []
    far, bounded = False, None
    for name, confined, tolerance in _confined(motion, commanded, reach, share, leash, brakes):
        if confined.tobytes() != motion.tobytes():  # the same mostly, which is seen soonest so
            excess = apart(motion, confined, reach)
            if excess.max(initial=0.0) > _ROUNDING:
                if (excess > _ROUNDING + (_JITTER if share < 1.0 else 0.0) * reach.step).any():
                    over.append(name)
                far |= bool((excess > tolerance + _ROUNDING).any())
                motion = confined
        bounded = motion if bounded is None else bounded
    step = None if commanded is None else step_between(commanded.at, motion, reach) / share
    return Passed(Commanded(motion, step), ", ".join(dict.fromkeys(over)), far, bounded)


def stand(commanded: Commanded, reach: Reach, share: float = 1.0) -> Commanded:
    """The command that stops the motion: no displacement, or the position as it was; as near to
    that as the limits allow, so that it decelerates along its path."""
    if not reach.absolute:
        motion = np.clip(0.0, commanded.at - reach.stop * share, commanded.at + reach.stop * share)
        return Commanded(motion, (motion - commanded.at) / share)
    before = np.zeros(len(commanded.at)) if commanded.step is None else commanded.step
    step = _shortened(before, reach.change * share, reach) * share
    return Commanded(_moved(commanded.at, step, reach), step / share)


def _confined(
    motion: Floats,
    commanded: Commanded | None,
    reach: Reach,
    share: float,
    leash: Leash | None,
    brakes: bool,
) -> Iterator[tuple[str, Floats, Floats]]:
    """The limits, one after the other, each within those before it: a name, the numbers held to it,
    and how much of an excess is not counted."""
    none = np.zeros(len(motion))
    low, high = reach.low, reach.high
    taken = _bounded(motion, reach)
    yield "bounds", taken, reach.loose
    if commanded is None:
        return
    balls = [(reach.middle, reach.radius)] if reach.turns else []
    if leash is not None:
        taken = _within(taken, leash.here, leash.far, reach)
        yield "leash", taken, none
        low = np.maximum(low, leash.here - leash.far)
        high = np.minimum(high, leash.here + leash.far)
        balls += [(leash.here, leash.far)] if reach.turns else []
    taken = _within(taken, commanded.at, reach.step * share, reach)
    yield "jump", taken, none
    if commanded.step is None:
        return
    if brakes and reach.absolute:
        taken = _braking(taken, commanded.at, low, high, balls, reach, share)
        yield "jerk", taken, none
    expected = _moved(commanded.at, commanded.step * share, reach)
    taken = _within(taken, expected, reach.change * share * share, reach)
    yield "jerk", taken, none
    if not reach.absolute:
        yield "jerk", _within(_bounded(taken, reach), commanded.at, reach.stop * share, reach), none
    for arm in reach.turns if brakes else ():  # a ball is left by the side that braking looked at
        out = max(reach.radius[arm[0]], _angle(reach.middle[arm], commanded.at[arm]))
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
    """The motion, no faster towards a bound than it can stop before it."""
    up, down = _fastest(np.maximum((high - at, at - low), 0.0), reach.change, share)
    out = motion.clip(at - down, at + up)
    for arm in reach.turns:
        out[arm] = motion[arm]
        wish = rotation.relative(at[arm], motion[arm])
        length = float(np.linalg.norm(wish))
        if length < _ROUNDING or np.isinf(reach.change[arm[0]]):
            continue
        room = min(_exit(at[arm], wish / length, c[arm], float(r[arm[0]])) for c, r in balls)
        most = float(_fastest(np.array([room]), reach.change[arm[:1]], share)[0])
        if length > most:
            out[arm] = rotation.turned(at[arm], wish * (most / length))
    return out


def _fastest(room: Floats, change: Floats, share: float) -> Floats:
    """The longest step after which what is left of ``room``, [..., M], suffices to stop in:
    u dt + u^2 / 2a fills it, whatever the lengths of the periods that follow."""
    with np.errstate(invalid="ignore"):
        limited = change * share * (np.sqrt(share * share + 2 * room / change) - share)
    out: Floats = np.where(np.isinf(change) | np.isinf(room), room, limited)
    return np.minimum(out, room)


def _exit(at: Floats, direction: Floats, center: Floats, radius: float) -> float:
    """Distance to the edge of a ball of rotations along a unit vector, as if it were flat."""
    off = rotation.relative(center, at)
    along = float(off @ direction)
    inside = radius * radius - float(off @ off)
    if inside <= 0.0:  # on its edge, or outside of it: inward as far as the other side
        return max(0.0, -2.0 * along)
    return -along + float(np.sqrt(along * along + inside))


def _bounded(motion: Floats, reach: Reach) -> Floats:
    out = motion.clip(reach.low, reach.high)
    for arm in reach.turns:
        out[arm] = rotation.towards(reach.middle[arm], motion[arm], float(reach.radius[arm[0]]))
    return out


def _within(motion: Floats, center: Floats, radius: Floats, reach: Reach) -> Floats:
    out: Floats = motion.clip(center - radius, center + radius)
    for arm in reach.turns:
        out[arm] = rotation.towards(center[arm], motion[arm], float(radius[arm[0]]))
    return out


def _moved(at: Floats, step: Floats, reach: Reach) -> Floats:
    out: Floats = at + step
    for arm in reach.turns:
        out[arm] = rotation.turned(at[arm], step[arm])
    return out


def step_between(at: Floats, motion: Floats, reach: Reach) -> Floats:
    """Step from one to the other; rotations of poses as the relative rotation."""
    out: Floats = motion - at
    for arm in reach.turns:
        out[arm] = rotation.relative(at[arm], motion[arm])
    return out


def _shortened(step: Floats, by: Floats, reach: Reach) -> Floats:
    """A step shortened by so much, or none."""
    out: Floats = step - step.clip(-by, by)
    out[np.abs(out) < _NOTHING] = 0.0  # what rounding leaves is no motion
    for arm in reach.turns:
        length = float(np.linalg.norm(step[arm]))
        out[arm] = step[arm] * max(0.0, 1.0 - float(by[arm[0]]) / max(length, _ROUNDING))
    return out


def _angle(one: Floats, other: Floats) -> float:
    return float(np.linalg.norm(rotation.relative(one, other)))


def apart(motion: Floats, confined: Floats, reach: Reach) -> Floats:
    """Excess of each number that moves; of rotations of poses an angle."""
    excess = np.abs(confined - motion)
    for arm in reach.turns:
        excess[arm] = _angle(confined[arm], motion[arm])
    return excess


def wrapped(angles: Floats) -> Floats:
    """Angles from -pi to pi."""
    out: Floats = angles - np.round(angles / _TURN) * _TURN
    return out


def near(leash: Leash, at: Floats, reach: Reach) -> bool:
    """True of a position within the leash."""
    return bool((apart(reach.beside(leash.here, at), at, reach) <= leash.far + _ROUNDING).all())


# The policy's motion


@dataclass(frozen=True, slots=True)
class LimitedAction:
    """An action judged within the policy's own motion: ``bounded``, float64 [D], held to its bounds
    alone; ``over``: names of the limits that it exceeded; ``far``: by more than a tolerance, and
    then ``worst`` names the number that did most."""

    bounded: Floats
    over: str
    far: bool
    worst: str = ""


def judge(
    action: Floats, before: tuple[Floats, ...], limits: Limits, endless: tuple[int, ...] = ()
) -> LimitedAction:
    """Judgement of an action after those ``before`` it, newest first, of which two are used.
    Raises :class:`ActionRefused`."""
    refuse_unless_numbers(action, limits.space)
    motion = list(limits.space.motion)
    reach, out = action_reach_of(limits, endless), np.array(action, np.float64)
    commanded = None
    if before:
        last = before[0][motion]
        step = step_between(before[1][motion], last, reach) if len(before) > 1 else None
        commanded = Commanded(last, step)
    passed = pass_through(out[motion], commanded, reach, brakes=False)
    worst = ""
    if passed.far:
        worst = _worst(action[motion], passed.commanded.at, reach, limits) + f" ({passed.over})"
    out[motion] = passed.bounded
    return LimitedAction(out, passed.over, passed.far, worst)


def _worst(wish: Floats, held: Floats, reach: Reach, limits: Limits) -> str:
    """The number of an action that exceeded its limits most, by the width of its bounds, and what
    it was held to."""
    low, high = np.array(limits.low), np.array(limits.high)
    at = int(np.argmax(apart(wish, held, reach) / np.maximum(high - low, _ROUNDING)))
    index = limits.space.motion[at]
    unit = limits.space.units[index]
    found = f"{limits.space.names[index]} {wish[at]:.4g} {unit}, held to {held[at]:.4g}"
    if abs(wish[at]) > _OTHER_UNIT * max(abs(low[at]), abs(high[at])):
        found += f"; its bounds are {low[at]:g} to {high[at]:g}: is it in {unit}?"
    return found
