"""The rules of a motion: steps from one commanded position to the next, velocities, trajectories.

Each returns what was broken, as (rule, words with figures). Nothing is remembered here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from support.motion_limits import EPSILON, Flags, Floats, Limits, Measured, half_turn

PAUSE_S = 0.25  # without a message, or 3 periods: the next one may begin where the robot is
JITTER_S = 0.002  # between the instant that a step was made for and its stamp
NEAR = 0.02  # rad, m: between a reading and where the robot really is
LATENCY_S = 0.1  # of a robot and its readings, beside the leash
ROUNDING = 1 + 1e-6
_LEAST_S = 1e-3  # of a gap: less is no time to divide by

Break = tuple[str, str]
Away = tuple[float, Measured]  # from where it is measured to what is commanded


@dataclass(frozen=True)
class Instant:
    """When a message was made, by the clock of commands, and when it was sent, by its writer's."""

    at: float
    sent: float


@dataclass
class Stream:
    """What an output commanded last. ``values`` are None where there is nothing to compare with;
    ``step`` led there within each of ``gaps``, as the two clocks have it. ``rests``: the robot may
    have come to rest there. ``anew``: what comes next may begin where the robot is. ``stopped``: a
    STOP holds."""

    when: Instant | None = None
    values: Floats | None = None
    step: Floats | None = None
    gaps: tuple[float, ...] = ()
    rests: bool = True
    anew: bool = True
    moves: bool = False
    alone: bool = False  # no command dates it

    def forget(self) -> None:
        """A message was lost: the next one is compared with nothing."""
        self.values = self.step = self.when = None
        self.rests = self.anew = False

    def begins(self, when: Instant, limits: Limits) -> bool:
        """Whether a message of then begins anew, after a pause for one."""
        if self.anew or self.when is None:
            return self.anew
        by_stamp, by_sent = when.at - self.when.at, when.sent - self.when.sent
        gap = by_stamp if limits.simulated else by_sent
        return gap > max(3 * limits.period, PAUSE_S) or by_stamp < -1.0

    def lapses(self, when: Instant, limits: Limits) -> tuple[float, ...]:
        """Since the last message, by both clocks, at most one period: a late one buys no way."""
        period = limits.period
        if limits.simulated or self.when is None:
            return (period,)
        both = {when.at - self.when.at, when.sent - self.when.sent}
        return tuple(min(max(lapse, _LEAST_S), period) for lapse in both)


class Step:
    """From the last commanded position to the next."""

    def __init__(
        self,
        limits: Limits,
        stream: Stream,
        position: Floats,
        idx: Sequence[int],
        when: Instant,
        jitter: float,
    ) -> None:
        assert stream.values is not None and stream.when is not None
        self._limits, self._idx, self._stream = limits, idx, stream
        self.before, self.after = stream.values, position
        self.way = limits.way(stream.values, position, idx)
        self.lapses, self._jitter = stream.lapses(when, limits), jitter
        rates = [stream.step / gap for gap in stream.gaps] if stream.step is not None else []
        late = max(when.at - stream.when.at, when.sent - stream.when.sent) > 1.5 * limits.period
        if stream.rests or late:  # a robot without a command stands at the last one
            rates.append(np.zeros(len(idx)))
        self._rates: list[Floats] = rates  # what it may have been before

    def judge(self, stops: bool, away: Sequence[Away | None]) -> list[Break]:
        """What this step breaks. ``stops``: the robot is to stop. ``away``: of the new position
        from the measured one."""
        limits, found = self._limits, list[Break]()
        brakes = self._brakes()
        if limits.velocity is not None:
            lapse = min(max(self.lapses) + self._jitter, limits.period)
            most = limits.velocity[self._idx] * lapse
            over = (limits.share(self.way, most, self._idx) > ROUNDING) & ~brakes
            found += self._words("speed", over, most)
            found += self._of_the_leash(away)
        if limits.acceleration is not None and self._rates:
            most = limits.acceleration[self._idx] * limits.period**2
            found += self._words("acceleration", self._jolts(limits.acceleration[self._idx]), most)
        if limits.absolute:
            before, after = (limits.outside(x, self._idx) for x in (self.before, self.after))
            over = (after > before + EPSILON) & (after > EPSILON) & ~brakes
            found += self._words("bounds", over, limits.low[self._idx], limits.high[self._idx])
        began = self._stream.moves and self._stream.step is None  # nobody knows how fast
        if stops and self._rates and not began:
            found += self._words("stop", self._goes_on(), np.max(np.abs(self._rates), axis=0))
        return found

    def _brakes(self) -> Flags:
        """Which numbers get slower by at least half of what their acceleration allows: those may
        still be faster, or go farther, than limits that have just changed."""
        limits, out = self._limits, np.zeros(len(self._idx), bool)
        if limits.acceleration is None:
            return out
        for rate, lapse in itertools.product(self._rates, self.lapses):
            least = limits.acceleration[self._idx] * lapse / 2
            speed = limits.size(self.way / lapse, self._idx)
            out |= speed <= limits.size(rate, self._idx) - least
        return out

    def _jolts(self, acceleration: Floats) -> Flags:
        """Which numbers change their speed by more than their acceleration allows: counted by time
        or by periods, whichever the limiter counts by."""
        limits, idx, period = self._limits, self._idx, self._limits.period
        slack = 2.0 if self._stream.rests else 1.0  # of a beginning the first step is not known
        shares = []
        unsure = self._jitter / 4  # of a lapse
        for rate, lapse in itertools.product(self._rates, self.lapses):
            most = acceleration * (lapse + unsure) ** 2 * slack + unsure * limits.size(rate, idx)
            shares.append(limits.share(limits.change(rate * lapse, self.way, idx), most, idx))
        steps = [np.zeros(len(idx))] if self._stream.step is None else [self._stream.step]
        for step in steps:
            most = acceleration * period**2 * slack
            shares.append(limits.share(limits.change(step, self.way, idx), most, idx))
        out: Flags = np.min(shares, axis=0) > ROUNDING
        return out

    def _goes_on(self) -> Flags:
        """Which numbers get faster, or turn back, although the robot is to stop."""
        limits, idx, ok = self._limits, self._idx, np.zeros(len(self._idx), bool)
        far = limits.size(self.way, idx)
        for rate in self._rates:
            speed, back = limits.size(rate, idx), self.way * rate
            for lapse in (*self.lapses, limits.period):
                ok |= (far <= speed * (lapse + self._jitter / 4) + EPSILON) & (back >= -EPSILON)
        return ~ok

    def _of_the_leash(self, away: Sequence[Away | None]) -> list[Break]:
        found: list[Break] = []
        for i, one in enumerate(away):
            if one is None or abs(self.way[i]) <= EPSILON or one[0] * self.way[i] <= 0:
                continue
            most = leash(self._limits, self._idx[i], one[1])
            if abs(one[0]) > most:
                words = f"{self._name(i)}, measured at {one[1].value:.4f}: {abs(one[0]):.4f} away"
                found.append(("leash", f"{words} and goes on, at most {most:.4f}"))
        return found

    def _name(self, i: int) -> str:
        name = self._limits.moving[self._idx[i]]
        return f"{name} {self.before[i]:.4f} -> {self.after[i]:.4f}"

    def _words(self, rule: str, over: Flags, *most: Floats) -> list[Break]:
        found = []
        for i in map(int, np.flatnonzero(over)):
            allowed = " to ".join(f"{float(one[i]):.4g}" for one in most)
            before = [f"{float(rate[i]):.4g}" for rate in self._rates[:1]]
            after = f"by {self.way[i]:.4f} in {1e3 * max(self.lapses):.0f} ms"
            was = f" after {before[0]}/s" if before else ""
            found.append((rule, f"{self._name(i)}, {after}{was}; allowed {allowed}"))
        return found


def beginning(
    limits: Limits,
    stream: Stream,
    position: Floats,
    idx: Sequence[int],
    away: Sequence[Away | None],
) -> list[Break]:
    """Where a motion begins: where the robot is, or where it was sent last."""
    if limits.velocity is None:
        return []
    found: list[Break] = []
    reach = limits.velocity[idx] * limits.period
    far = np.ones(len(idx), bool)
    if stream.values is not None:
        far = limits.share(limits.way(stream.values, position, idx), reach, idx) > ROUNDING
    for i, one in enumerate(away):
        if one is None or not far[i]:
            continue
        most = float(reach[i]) + doubt(limits, idx[i], one[1])
        if abs(one[0]) > most:
            words = f"{limits.moving[idx[i]]} begins at {position[i]:.4f}, measured at"
            words += f" {one[1].value:.4f}: {abs(one[0]):.4f} away, at most {most:.4f}"
            found.append(("begin", words))
    return found


def doubt(limits: Limits, place: int, measured: Measured) -> float:
    """How far a joint may be from where it was measured last."""
    speed = 0.0 if limits.velocity is None else float(limits.velocity[place])
    return NEAR + measured.moved + speed * min(measured.age, LATENCY_S)


def leash(limits: Limits, place: int, measured: Measured) -> float:
    """How far a command may lead away from the measured joint: the leash, the way that a joint goes
    until it is measured again, and what it takes to brake."""
    assert limits.velocity is not None
    speed = float(limits.velocity[place])
    way = speed * (limits.leash_s + LATENCY_S + measured.age) + NEAR + measured.moved
    if limits.acceleration is not None:
        way += speed**2 / (2 * float(limits.acceleration[place]))
    return way


def away_from(
    position: Floats, measured: Sequence[Measured | None], names: Sequence[str], limits: Limits
) -> list[Away | None]:
    """How far positions are from where the joints are measured."""
    out: list[Away | None] = []
    for value, found, name in zip(position, measured, names, strict=True):
        if found is None:
            out.append(None)
            continue
        away = float(value) - found.value
        out.append((half_turn(away) if name in limits.continuous else away, found))
    return out


def velocities(
    limits: Limits,
    stream: Stream,
    rate: Floats,
    idx: Sequence[int],
    stops: bool,
    when: Instant,
) -> list[Break]:
    """What a message of velocities breaks: each holds for one period."""
    found: list[Break] = []
    rests, period = np.zeros(len(idx)), limits.period
    if stream.begins(when, limits):
        befores = [rests] if stream.values is None else [rests, stream.values]
    elif stream.values is None or stream.when is None:
        befores = []
    else:
        late = max(when.at - stream.when.at, when.sent - stream.when.sent) > 1.5 * period
        befores = [stream.values, rests] if late else [stream.values]

    def words(rule: str, over: Flags, *most: Floats) -> None:
        for i in map(int, np.flatnonzero(over)):
            was = f" after {befores[0][i]:.4g}" if befores else ""
            allowed = " to ".join(f"{float(one[i]):.4g}" for one in most)
            found.append((rule, f"{limits.moving[idx[i]]} {rate[i]:.4g}/s{was}; allowed {allowed}"))

    brakes = np.zeros(len(idx), bool)
    if limits.acceleration is not None and befores:
        most = limits.acceleration[idx] * period
        speeds = [np.abs(before) for before in befores]
        brakes = np.any([np.abs(rate) <= speed - most / 2 for speed in speeds], axis=0)
        jolts = [np.abs(rate - before) > most * ROUNDING + EPSILON for before in befores]
        words("acceleration", np.all(jolts, axis=0), most)
    if limits.velocity is not None:
        most = limits.velocity[idx]
        words("speed", (np.abs(rate) > most * ROUNDING + EPSILON) & ~brakes, most)
    if not limits.absolute:
        low, high = limits.low[idx] / period, limits.high[idx] / period
        over = (rate < low * ROUNDING - EPSILON) | (rate > high * ROUNDING + EPSILON)
        words("bounds", over & ~brakes, low, high)
    if stops and befores:
        ok = [
            (np.abs(rate) <= np.abs(b) * ROUNDING + EPSILON) & (rate * b >= -EPSILON)
            for b in befores
        ]
        words("stop", ~np.any(ok, axis=0), np.max(np.abs(befores), axis=0))
    return found


# Trajectories


@dataclass
class Plan:
    """Where trajectories lead, linear between instants ``at`` [n] and positions [n, k]. ``sent``:
    the newest, by the clock of commands. ``vague``: from when until when it leads from a place that
    is not exactly known, where the robot began."""

    at: Floats
    positions: Floats
    sent: float
    vague: tuple[float, float] = (0.0, 0.0)
    begin: float = 0.0  # of the newest, where what was before it ends
    loose: float = 0.0  # how well that is known, s

    @property
    def end(self) -> float:
        return float(self.at[-1])

    def where(self, at: float) -> Floats:
        return np.array([np.interp(at, self.at, joint) for joint in self.positions.T])

    def doubt(self, at: float) -> float:
        """How much of a first step from rest is unknown of where it leads."""
        since, until = self.vague
        return (until - at) / (until - since) if since <= at < until else 0.0

    def speed(self, at: float, limits: Limits, idx: Sequence[int]) -> Floats:
        """Just before ``at``; 0 before its begin and after its end."""
        i = int(np.searchsorted(self.at, at, side="left"))
        if i == 0 or i == len(self.at):
            return np.zeros(self.positions.shape[1])
        way = limits.way(self.positions[i - 1], self.positions[i], idx)
        out: Floats = way / (self.at[i] - self.at[i - 1])
        return out


@dataclass
class Course:
    """A trajectory that replaces what is left of ``old`` at its begin: points [n, k] at so many
    seconds after it. ``rests``: there is no motion to replace, the robot stands. ``until``: the end
    of its command. ``measured``: where each joint is. ``slack``: how well the begin is known."""

    limits: Limits
    idx: Sequence[int]
    begin: float
    times: Floats
    rows: Floats
    old: Plan | None
    rests: bool
    made: float
    measured: Sequence[Measured | None]
    until: float | None = None
    slack: float = 0.0
    found: list[Break] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._names = [self.limits.moving[i] for i in self.idx]
        self.here = self._begins_at()

    def _begins_at(self) -> Floats:
        """Where the motion is taken up."""
        if self.old is not None and not self.rests:
            return self.old.where(self.begin)
        here: Floats = self.rows[0].copy()
        for i, one in enumerate(self._away(here)):
            if one is not None:  # from the measured position or the last commanded one
                doubtful = doubt(self.limits, self.idx[i], one[1])
                left = np.sign(one[0]) * max(0.0, abs(one[0]) - doubtful)
                if self.old is not None:
                    left = min(left, here[i] - self.old.positions[-1][i], key=abs)
                here[i] -= left
        return here

    def _away(self, position: Floats) -> list[Away | None]:
        return away_from(position, self.measured, self._names, self.limits)

    def plan(self) -> Plan:
        """The motion from now on: what was before until this begins, then this."""
        if self.old is None or self.rests:
            at, positions = [np.array([self.begin])], [self.here[None]]
        else:
            kept = (self.old.at < self.begin) & (self.old.at > self.begin - 2.0)
            at = [self.old.at[kept], np.array([self.begin])]
            positions = [self.old.positions[kept], self.here[None]]
        vague = self.old.vague if self.old is not None else (0.0, 0.0)
        if self.rests:
            vague = (self.begin, self.begin + float(self.times[0]))
        path = np.vstack([*positions, self.rows])
        if self.limits.wrapped:  # between -pi and pi lies no way
            ways = [self.limits.way(a, b, self.idx) for a, b in itertools.pairwise(path)]
            path = np.cumsum([path[0], *ways], axis=0)
        return Plan(
            np.concatenate([*at, self.begin + self.times]),
            path,
            self.made,
            vague,
            self.begin,
            self.slack + JITTER_S / 4,
        )

    def judge(self, stops: bool) -> list[Break]:
        """What it breaks."""
        limits, idx = self.limits, self.idx
        rates = [np.zeros(len(idx))]
        if self.old is not None and not self.rests:  # at a corner there are several
            around = (self.begin, self.begin - JITTER_S, self.begin + JITTER_S)
            rates = [self.old.speed(at, limits, idx) for at in around]
            self._judge_the_end(self.old)
            self._judge_the_leash(self.old)
        before, start = self.here, 0.0
        for number, (row, end) in enumerate(zip(self.rows, self.times, strict=True)):
            self._judge_point(number, before, row, float(end) - start, rates, stops)
            rates = [limits.way(before, row, idx) / (end - start)]
            before, start = row, float(end)
        return self.found

    def _judge_point(
        self,
        number: int,
        start: Floats,
        row: Floats,
        length: float,
        rates: list[Floats],
        stops: bool,
    ) -> None:
        limits, idx = self.limits, self.idx
        rate = limits.way(start, row, idx) / length
        speed, speeds = limits.size(rate, idx), [limits.size(one, idx) for one in rates]

        def words(rule: str, over: Flags, *most: Floats) -> None:
            for i in map(int, np.flatnonzero(over)):
                text = f"{self._names[i]} {start[i]:.4f} -> {row[i]:.4f} in {length:.3f} s, point"
                text += f" {number + 1}: {rate[i]:.4g}/s after {rates[0][i]:.4g}/s; allowed "
                text += " to ".join(f"{float(one[i]):.4g}" for one in most)
                self.found.append((rule, text))

        brakes = np.zeros(len(idx), bool)
        loose = self.slack if number == 0 else 0.0
        # Two clocks are read one after the other: where the motion was taken up is not exact.
        unsure = np.max(speeds, axis=0) * (loose + (JITTER_S / 2 if number < 2 else 0.0)) / length
        old = None if self.rests or number > 1 else self.old
        vague = 0.0 if old is None else old.doubt(self.begin)
        begun = 1.0 if vague and number == 0 else 0.0
        if limits.acceleration is not None:
            least = limits.acceleration[idx] * min(limits.period, length) / 2
            brakes = np.any([speed <= one - least for one in speeds], axis=0)
            lapse = length if number < 2 else self.times[number - 1] - self.times[number - 2]
            lapse = max(limits.period, min(length, lapse) if number else 0.0)
            if number == 1 and self.rests:
                lapse *= 2  # how fast it began is not known
            lapse += limits.period * (vague + begun)
            most = limits.acceleration[idx] * lapse + unsure
            shares = [limits.share(limits.change(one, rate, idx), most, idx) for one in rates]
            words("acceleration", np.min(shares, axis=0) > 1 + 1e-4, most)
        if limits.velocity is not None:
            loose += vague * limits.period + (JITTER_S if number == 0 else 0.0)
            most = limits.velocity[idx] * (1 + loose / length)
            words("speed", (limits.share(rate, most, idx) > ROUNDING) & ~brakes, most)
        if limits.absolute:
            before, after = limits.outside(start, idx), limits.outside(row, idx)
            over = (after > before + EPSILON) & (after > EPSILON) & ~brakes
            words("bounds", over, limits.low[idx], limits.high[idx])
        if stops and not begun:
            ok = [
                (speed <= one * (1 + 1e-4) + 1e-4)
                & ((rate * before >= -EPSILON) | (speed <= unsure + EPSILON))
                for one, before in zip(speeds, rates, strict=True)
            ]
            words("stop", ~np.any(ok, axis=0), np.max(speeds, axis=0))
        late = 0.0 if self.until is None else self.begin + self.times[number] - self.until
        if late > 1e-3:
            moves = (speed > EPSILON) & ~brakes
            words("valid_until", moves, np.full(len(idx), self.times[number] - late))

    def _judge_the_end(self, old: Plan) -> None:
        """A motion that nothing replaced in time ends at its last point, and stands there."""
        limits, idx = self.limits, self.idx
        if limits.acceleration is None or min(self.begin, self.made) <= old.end + JITTER_S:
            return
        rate, most = old.speed(old.end, limits, idx), limits.acceleration[idx] * limits.period
        if old.at[-2] <= old.begin:  # it had one point
            before = old.speed(old.begin, limits, idx)
            most = most + limits.size(before, idx) * old.loose / (old.end - old.begin)
        for i in map(int, np.flatnonzero(limits.share(rate, most, idx) > 1 + 1e-4)):
            text = f"{self._names[i]} came to its last point at {rate[i]:.4g}/s"
            self.found.append(("acceleration", f"{text}; allowed {float(most[i]):.4g}"))

    def _judge_the_leash(self, old: Plan) -> None:
        """Readings are of now: what was planned since the plan before may be farther away."""
        if self.limits.velocity is None:
            return
        here = old.where(self.begin)
        for i, one in enumerate(self._away(here)):
            if one is None:
                continue
            planned = float(self.limits.velocity[self.idx[i]]) * max(0.0, self.begin - old.sent)
            most = leash(self.limits, self.idx[i], one[1]) + planned
            farther = float(np.max((self.rows[:, i] - here[i]) * np.sign(one[0])))
            if abs(one[0]) > most and farther > EPSILON:
                text = f"{self._names[i]} {here[i]:.4f} -> {self.rows[-1][i]:.4f}, measured at"
                text += f" {one[1].value:.4f}: {abs(one[0]):.4f} away and goes on,"
                self.found.append(("leash", f"{text} at most {most:.4f}"))
