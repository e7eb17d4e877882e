"""Motion between actions: what a control period makes of actions that come at their own rate.

Time is counted in actions: a control period makes ``Limits.actions_a_period`` of one, and an action
begins when the one before it is over. Targets are followed along a cubic through the chunk;
displacements are spread so that their commands sum to the action. A chunk of targets is met from
what was commanded last, in position and velocity: the offset fades out over a named time. Where a
command is an action and nothing fades, it is the action, to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from vla_ros.core.action_space import ActionSpace
from vla_ros.core.types import Floats, Inference, Timeline
from vla_ros.runtime import curve
from vla_ros.runtime.control.queue import ChunkAction, PolicyAnswer
from vla_ros.runtime.limiter import Commanded, Reach

_NOTHING = 1e-6  # of an action: rounding
_NO_OFFSET = 1e-9
_STRETCHES = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0)  # of the named time; longer were no answer
_MOST_FADES = 4  # at once
_EXCESS = 1.05  # of the largest acceleration within the chunk
_GENTLE = 0.5  # rad/s^2, m/s^2: an acceleration that is none too many for any chunk


@dataclass(frozen=True, slots=True)
class MotionStep:
    """What one control period makes of the actions.

    ``wish``, float64 [D]: the command, before its limits. ``action``: the newest that it is of, of
    which the part ``phase`` was made before, 0 to 1; ``begins``: this period begins it. ``share``:
    how much of actions it makes. ``rows`` [n, D], where asked for: that action and those after it,
    as they will be commanded; ``left``: the part of that action that is left after this period.
    """

    wish: Floats
    action: ChunkAction
    phase: float
    begins: bool
    share: float
    rows: Floats | None = None
    left: float = 0.0


@dataclass(frozen=True, slots=True)
class _Segment:
    """The way through one action, in numbers that move [M]: from ``start`` by ``step``, with the
    velocities ``begin`` and ``end``, per action. ``even``: how much of the way is followed at the
    mean velocity, 0 to 1 [M]: displacements at their bounds."""

    start: Floats
    step: Floats
    begin: Floats
    end: Floats
    even: Floats | None = None

    def way(self, share: float) -> Floats:
        out = curve.along(self.step, self.begin, self.end, share)
        return out if self.even is None else out + self.even * (self.step * share - out)

    def velocity(self, share: float) -> Floats:
        out = curve.velocity(self.step, self.begin, self.end, share)
        return out if self.even is None else out + self.even * (self.step - out)


class _Fade:
    """An offset [M] that fades out over ``length`` [M] actions from its value, velocity and
    acceleration at the begin: the polynomial of fifth degree, of least jerk. ``age``: actions since
    then."""

    def __init__(
        self, offset: Floats, velocity: Floats, length: Floats, acceleration: Floats | None = None
    ) -> None:
        a, b = offset, velocity * length
        c = np.zeros_like(a) if acceleration is None else acceleration * length**2
        zero = np.zeros_like(offset)
        third = -10 * a - 6 * b - 1.5 * c
        fourth = 15 * a + 8 * b + 1.5 * c
        fifth = -6 * a - 3 * b - 0.5 * c
        self.length, self.ends, self.age = length, float(length.max()), 0.0
        self._value = np.array((a, b, c / 2, third, fourth, fifth))
        self._velocity = np.array((b, c, 3 * third, 4 * fourth, 5 * fifth, zero)) / length
        self._acceleration = (
            np.array((c, 6 * third, 12 * fourth, 20 * fifth, zero, zero)) / length**2
        )

    def at(self, later: float = 0.0) -> Floats:
        """Offset, float64 [M], so many actions later than now."""
        return self._of(self._value, self.age + later)

    def velocity(self) -> Floats:
        return self._of(self._velocity, self.age)

    def joined(self, other: _Fade) -> _Fade:
        """Both as one, which ends when the later one would."""
        left = np.maximum(self.length - self.age, other.length - other.age)
        offset, velocity = self.at() + other.at(), self.velocity() + other.velocity()
        curved = self._of(self._acceleration, self.age)
        curved = curved + other._of(other._acceleration, other.age)
        return _Fade(offset, velocity, np.maximum(left, _NOTHING), curved)

    def accelerations(self, times: Floats) -> Floats:
        """Accelerations [n, M] at times [n] from now on."""
        x = (self.age + times[:, None]) / self.length
        out = np.zeros_like(x)
        for coefficient in self._acceleration[::-1]:
            out = out * x + coefficient
        return np.where(x < 1.0, out, 0.0)

    def _of(self, coefficients: Floats, time: float) -> Floats:
        x = time / self.length
        out = coefficients[-1]
        for coefficient in coefficients[-2::-1]:
            out = out * x + coefficient
        return np.where(x < 1.0, out, 0.0)


def _fade(
    offset: Floats,
    velocity: Floats,
    length: float,
    times: Floats,
    within: Floats,
    most: Floats,
) -> _Fade:
    """The fade, of each number as short as this length or longer, with which the acceleration stays
    below ``most`` [M], or nearest to that. ``within`` [n, M]: what it is at ``times`` [n] without
    it."""
    own = np.maximum.accumulate(np.abs(within)[::-1])[::-1]  # the largest from each time on
    lengths = np.full(len(offset), length)
    least = np.full(len(offset), np.inf)
    for stretch in _STRETCHES:
        tried = np.full(len(offset), stretch * length)
        found = _Fade(offset, velocity, tried)
        count = int(np.searchsorted(times, stretch * length))  # behind it nothing fades
        excess = np.abs(within[:count] + found.accelerations(times[:count])).max(0)
        excess = np.maximum(excess, own[count]) if count < len(times) else excess
        better = (excess < least) & (least > most)
        lengths, least = np.where(better, tried, lengths), np.where(better, excess, least)
        if (least <= most).all():
            break
    return _Fade(offset, velocity, lengths)


class _Chunk:
    """The curve through a chunk of targets: positions [n, M] from action ``first`` on. ``beside``:
    the position that continuous joints are unwrapped beside. ``rests``: it ends at rest."""

    def __init__(self, rows: Floats, first: int, reach: Reach, beside: Floats, rests: bool) -> None:
        knots = np.array(rows, np.float64)
        if reach.endless:
            for row in range(len(knots)):
                knots[row] = reach.beside(knots[row], knots[row - 1] if row else beside)
        turns = reach.turns
        ahead = curve.difference(knots[0], knots[1], turns) if len(knots) > 1 else None
        before = knots[0] if ahead is None else curve.moved(knots[0], -ahead, turns)
        self._knots = np.concatenate((before[None], knots))
        self._steps, self._slopes = (
            curve.steps(self._knots, turns),
            curve.slopes(self._knots, turns),
        )
        if rests:
            self._slopes[-1] = 0.0
        self._ends = self._slopes[1:]
        if len(turns):
            ways = zip(self._steps, self._ends, strict=True)
            self._ends = np.array([curve.arriving(step, end, turns) for step, end in ways])
        self._first = first

    def segment(self, index: int) -> _Segment:
        """The way to the action of that index."""
        row = index - self._first
        return _Segment(self._knots[row], self._steps[row], self._slopes[row], self._ends[row])

    def knots(self, index: int) -> Floats:
        """Positions [n, M] of the action of that index and those after it."""
        return self._knots[index - self._first + 1 :]

    def accelerations(self, index: int, since: float) -> tuple[Floats, Floats]:
        """Accelerations [n, M] of the segments from an action on, at the times [n] after the part
        ``since`` of that action."""
        row, shares = index - self._first, (0.0, 0.5, 1.0)
        step, begin, end = self._steps[row:], self._slopes[row:-1], self._ends[row:]
        found = [curve.acceleration(step, begin, end, share) for share in shares]
        times = np.arange(len(step), dtype=np.float64)[:, None] - since + shares
        return times.ravel(), np.stack(found, 1).reshape(-1, step.shape[1])


class Motion:
    """The motion along the actions of a policy, or of a person. Not thread-safe.

    ``period_s``: the action period. ``blend_s``: the time over which an offset fades. ``exact``:
    where a command is an action nothing fades, as in lock-step.
    """

    def __init__(
        self, space: ActionSpace, period_s: float, blend_s: float = 0.0, exact: bool = False
    ) -> None:
        self._space, self.period_s, self.blend_s, self.exact = space, period_s, blend_s, exact
        self._motion = list(space.motion)
        self._low_pass: LowPass | None = None
        self._turns: curve.Turns = ()
        self.clear()

    def clear(self) -> None:
        """The robot does something else: what is left of the action is void."""
        self._action: ChunkAction | None = None
        self._at = 1.0  # part of it that was made
        self._segment: _Segment | None = None  # None: the action as it is
        self._chunk: _Chunk | None = None
        self._fades: list[_Fade] = []  # each ends in its own time, whatever chunks follow
        self._state: tuple[Floats, Floats] | None = None  # position and velocity
        self._room = (np.zeros(0), np.zeros(0))  # that a target stays within
        self._wish: Floats | None = None  # of this period so far
        self._share = self._period = self.made = 0.0
        self._phase, self._begins = 1.0, False
        if self._low_pass is not None:
            self._low_pass.clear()

    def smooth(self, hz: float) -> None:
        """Use a low-pass of that cutoff from now on; 0: none."""
        if (0.0 if self._low_pass is None else self._low_pass.hz) != hz:
            self._low_pass = LowPass(hz) if hz else None

    @property
    def left(self) -> float:
        """Part of the action that is left, 0 to 1."""
        return 1.0 - self._at

    @property
    def blend(self) -> float:
        """The time over which an offset fades, in actions."""
        return self.blend_s / self.period_s

    # One control period

    def open(self, share: float, periods: int = 1) -> None:
        """Begin a command for so many control periods, each of which makes ``share`` of an action;
        ``made`` counts what it has made."""
        self._share, self._period = share, share * periods
        self._wish, self.made = None, 0.0
        self._phase, self._begins = self._at, False

    def wants(self) -> bool:
        """Go on through the action that is there; True: the next one is needed for this period."""
        rest = self._period - self.made
        if rest > _NOTHING and self._at < 1.0:
            self._go_on(min(rest, 1.0 - self._at))
        return self._period - self.made > _NOTHING

    def begin(
        self, action: ChunkAction, commanded: Commanded | None, reach: Reach, rests: bool = False
    ) -> None:
        """Begin the next action. ``commanded``: the output's last command, from which a motion that
        was held to its limits goes on; None: unknown. ``reach``: an action's limits. ``rests``: the
        robot stands still after this chunk."""
        state = self._anchor(commanded)
        planned = self._is_planned(action)
        self._action, self._at = action, action.since
        self._phase, self._begins = self._at, True
        whole = self._period == 1.0 and self.made == 0.0 and not self._at
        if whole and (self.exact or not self._space.absolute or self.blend <= 1.0):
            self._segment = self._chunk = None
            self._fades = []
        elif self._space.absolute:
            self._begin_target(action, planned, state, reach, rests)
        else:
            self._begin_displacement(action, state[1], reach, rests)

    def person(self, values: Floats, commanded: Commanded, reach: Reach) -> None:
        """Begin a person's action, float64 [D], at once: a target replaces the one before it, and
        what is left of a displacement is added."""
        self.begin(_person_action(values, self._rest(reach)), commanded, reach)

    def _rest(self, reach: Reach) -> Floats:
        """What is left of a displacement, float64 [D]; of a target nothing."""
        out = np.zeros(self._space.width)
        if not reach.absolute and self._segment is not None and self._at < 1.0:
            out[self._motion] = self._segment.step - self._segment.way(self._at)
        return out

    def close(self, seconds: float, plan: bool = False) -> MotionStep | None:
        """The command of the period, ``seconds`` long; None: there was no action. ``plan``: with
        the rows after it."""
        if self._wish is None or self._action is None:
            return None
        wish = np.array(self._action.action, np.float64)
        moving = self._wish
        if self._low_pass is not None:
            turns = self._turns if self._space.absolute else ()
            moving = self._low_pass.pass_on(moving, seconds, self._space.absolute, turns)
        wish[self._motion] = moving
        rows = self._rows() if plan else None
        step = MotionStep(wish, self._action, self._phase, self._begins, self.made, rows)
        return replace(step, left=self.left)

    def held(self) -> None:
        """The command was held to its limits: the next action begins where that leads."""
        self._state = None

    def _anchor(self, commanded: Commanded | None) -> tuple[Floats, Floats]:
        """Position and velocity, per action, from which the next action begins."""
        none = np.zeros(len(self._motion))
        if self._state is not None:
            return self._state
        if commanded is None:
            return none, none
        if not self._space.absolute:
            return none, commanded.at / self._share
        return commanded.at, none if commanded.step is None else commanded.step / self._share

    def _is_planned(self, action: ChunkAction) -> bool:
        """True of the action that the chunk has after the one before."""
        before = self._action
        if before is None or self._chunk is None or not action.plain or not before.plain:
            return False
        return action.answer is before.answer and action.index == before.index + 1

    def _begin_target(
        self,
        action: ChunkAction,
        planned: bool,
        state: tuple[Floats, Floats],
        reach: Reach,
        rests: bool,
    ) -> None:
        self._turns, (position, velocity) = reach.turns, state
        if planned and self._chunk is not None:
            self._segment = self._chunk.segment(action.index)
            self._room = _room(self._segment, position, reach)
            return
        rows, first = action.rows, action.index
        if action.plain:
            rows, first = action.answer.inference.actions[: first + len(rows)], 0
        if len(rows) == 1:
            goal = reach.beside(np.array(rows[0][self._motion], np.float64), position)
            step = curve.difference(position, goal, reach.turns)
            self._segment = _Segment(position, step, velocity, step)
            self._room = _room(self._segment, position, reach)
            self._chunk, self._fades = None, []
            return
        self._chunk = _Chunk(rows[:, self._motion], first, reach, position, rests)
        self._segment = self._chunk.segment(action.index)
        self._room = _room(self._segment, position, reach)
        way = self._segment.way(self._at)
        here = curve.moved(self._segment.start, way, reach.turns)
        velocity = velocity - curve.turning(way, self._segment.velocity(self._at), reach.turns)
        for fade in self._fades:
            here, velocity = curve.moved(here, fade.at(), reach.turns), velocity - fade.velocity()
        offset = curve.difference(here, position, reach.turns)
        if max(np.abs(offset).max(), np.abs(velocity).max()) > _NO_OFFSET:
            self._fades.append(self._fade(action, offset, velocity))
        if len(self._fades) > _MOST_FADES:
            self._fades[:2] = [self._fades[0].joined(self._fades[1])]

    def _fade(self, action: ChunkAction, offset: Floats, velocity: Floats) -> _Fade:
        """Fade of what is between the motion and a new chunk."""
        if self.blend <= 1.0 or self._chunk is None:
            return _Fade(offset, velocity, np.full(len(offset), 1.0 - self._at))
        times, within = self._chunk.accelerations(action.index, self._at)
        most = np.maximum(_EXCESS * np.abs(within).max(0), _GENTLE * self.period_s**2)
        for fade in self._fades:
            within = within + fade.accelerations(times)
        return _fade(offset, velocity, self.blend, times, within, most)

    def _begin_displacement(
        self, action: ChunkAction, velocity: Floats, reach: Reach, rests: bool
    ) -> None:
        """Spread a displacement; as evenly as its bounds ask for."""
        step = np.array(action.action[self._motion], np.float64)
        last = len(action.rows) == 1
        after = step if last else action.rows[1][self._motion]
        end = np.zeros_like(step) if last and rests else curve.slope(step, after)
        even = _evenness(step, velocity, end, reach)
        self._segment = _Segment(np.zeros_like(step), step, velocity, end, even)

    def _go_on(self, share: float) -> None:
        assert self._action is not None
        begin, self._at = self._at, self._at + share
        if self._at > 1.0 - _NOTHING:
            self._at = 1.0
        self.made += share
        segment = self._segment
        if segment is None:
            self._wish, self._state = np.array(self._action.action[self._motion]), None
        elif self._space.absolute:
            self._wish, velocity = self._target(segment, share)
            self._state = self._wish, velocity
        else:
            way = segment.way(self._at) - segment.way(begin)
            self._wish = way if self._wish is None else self._wish + way
            self._state = segment.start, segment.velocity(self._at)

    def _target(self, segment: _Segment, share: float) -> tuple[Floats, Floats]:
        """Position and velocity at the end of this share of the action."""
        way = segment.way(self._at)
        position = curve.moved(segment.start, way, self._turns)
        velocity = curve.turning(way, segment.velocity(self._at), self._turns)
        for fade in self._fades:
            fade.age += share
            position = curve.moved(position, fade.at(), self._turns)
            velocity = velocity + fade.velocity()
        self._fades = [fade for fade in self._fades if fade.age < fade.ends]
        return np.clip(position, *self._room), velocity

    def _rows(self) -> Floats:
        """The action and those after it, targets with what fades of their offset."""
        assert self._action is not None
        rows = np.array(self._action.rows, np.float64)
        if self._chunk is None:
            return rows
        knots = self._chunk.knots(self._action.index)[: len(rows)]
        for fade in self._fades:
            faded = [fade.at(1.0 - self._at + number) for number in range(len(knots))]
            knots = np.array(
                [curve.moved(k, f, self._turns) for k, f in zip(knots, faded, strict=True)]
            )
        rows[:, self._motion] = knots
        return rows


def _room(segment: _Segment, position: Floats, reach: Reach) -> tuple[Floats, Floats]:
    """Bounds [M] that a curve does not overshoot by itself: those of an action, and where it begins
    and ends."""
    goal = curve.moved(segment.start, segment.step, reach.turns)
    low = np.minimum(np.minimum(reach.low, position), goal)
    high = np.maximum(np.maximum(reach.high, position), goal)
    for free in (*reach.turns, np.array(reach.endless, np.intp)):  # bounded by an angle, or a turn
        low[free], high[free] = -np.inf, np.inf
    return low, high


def _evenness(step: Floats, begin: Floats, end: Floats, reach: Reach) -> Floats:
    """Share [M] of the mean velocity in a displacement's, so much that its bounds hold within the
    action too."""
    linear, square = 6 * step - 4 * begin - 2 * end, 3 * begin + 3 * end - 6 * step
    with np.errstate(all="ignore"):
        middle = np.where(square != 0.0, -linear / (2 * square), 0.0)
    middle = np.clip(np.nan_to_num(middle), 0.0, 1.0)
    off = np.array((begin, end, begin + middle * (linear + middle * square))) - step
    with np.errstate(all="ignore"):  # a tiny excess, or none
        up = np.maximum(reach.high - step, 0.0) / np.maximum(off.max(0), 0.0)
        down = np.maximum(step - reach.low, 0.0) / np.maximum(-off.min(0), 0.0)
    kept = np.minimum(np.nan_to_num(up, nan=1.0), np.nan_to_num(down, nan=1.0))
    out: Floats = 1.0 - np.minimum(1.0, kept)
    return out


class LowPass:
    """A critically damped low-pass of second order on what is commanded, for policies that tremble.
    It is behind by 2 / omega. Not thread-safe."""

    def __init__(self, hz: float) -> None:
        self.hz, self._omega = hz, 2 * np.pi * hz
        self.clear()

    def clear(self) -> None:
        self._at: Floats | None = None  # of targets
        self._off = self._velocity = np.zeros(0)  # from the input, and per second

    def pass_on(
        self, wish: Floats, seconds: float, absolute: bool, turns: curve.Turns = ()
    ) -> Floats:
        """The numbers [M] after so many seconds of this input: targets, or displacements, whose
        sum comes out of it later."""
        if len(self._off) != len(wish):
            self._off = self._velocity = np.zeros(len(wish))
        if not absolute:
            self._off = self._off - wish
        elif self._at is None:
            self._at = wish
        else:
            self._off = -curve.difference(self._at, wish, turns)
        fading = np.exp(-self._omega * seconds)
        change = (self._velocity + self._omega * self._off) * seconds
        off = (self._off + change) * fading
        self._velocity = (self._velocity - self._omega * change) * fading
        way, self._off = off - self._off, off
        if not absolute or self._at is None:
            return way
        self._at = curve.moved(self._at, way, turns)
        return self._at


def _person_action(values: Floats, rest: Floats) -> ChunkAction:
    """A person's action, which rests on no observation of ours; NaN of a gripper stays."""
    rows = np.array([values + rest], np.float64)
    nobody = PolicyAnswer(Inference(0, rows, Timeline(0)), 0, 0)
    return ChunkAction((nobody,), 0, rows)
