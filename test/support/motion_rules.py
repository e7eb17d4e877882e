"""The rules of a motion: steps from one commanded position to the next, velocities, trajectories.

Each returns what was broken, as (rule, words with figures). Nothing is remembered here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from support.motion_limits import (
    EPSILON,
    Flags,
    Floats,
    Limits,
    Measured,
    Spline,
    half_turn,
)

PAUSE_S = 0.25  # without a message, or 3 periods: the next one may begin where the robot is
JITTER_S = 0.002  # between the instant that a step was made for and its stamp
NEAR = 0.02  # rad, m: between a reading and where the robot really is
LATENCY_S = 0.1  # of a robot and its readings, beside the leash
ROUNDING = 1 + 1e-6
_LEAST = 0.02  # of a period: less is no time to divide by

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
        return tuple(min(max(lapse, _LEAST * period), period) for lapse in both)


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
        if (fastest := limits.fastest) is not None:
            most = fastest[self._idx] * min(max(self.lapses) + self._jitter, limits.period)
            over = (limits.share(self.way, most, self._idx) > ROUNDING) & ~brakes
            found += self._words("jump" if limits.absolute else "bounds", over, most)
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
        low, high = (end[idx] / limits.action_period for end in (limits.low, limits.high))
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
    """Where trajectories lead, as a controller makes it of their points. ``sent``: the newest, by
    the clock of commands. ``vague``: from when until when it leads from a place that is not exactly
    known, where the robot began. ``begin``: of the newest, where what was before it ends."""

    spline: Spline
    sent: float
    vague: tuple[float, float] = (0.0, 0.0)
    begin: float = 0.0

    @property
    def end(self) -> float:
        return float(self.spline.at[-1])

    def where(self, at: float) -> tuple[Floats, Floats]:
        """Position and velocity; it stands before its begin and after its end."""
        if not self.spline.at[0] <= at < self.end:
            row = self.spline.positions[0 if at < self.spline.at[0] else -1]
            return row, np.zeros(len(row))
        row, rate, _ = self.spline(np.array([at]))
        return row[0], rate[0]

    def doubt(self, at: float) -> float:
        """How much of a first step from rest is unknown of where it leads."""
        since, until = self.vague
        return (until - at) / (until - since) if since <= at < until else 0.0


@dataclass
class Course:
    """A trajectory that replaces what is left of ``old`` at its begin: points and their velocities
    [n, k] at so many seconds after it. ``stands``: there is no motion to replace, the robot is at
    rest. ``until``: the end of its command. ``measured``: where each joint is. ``slack``: how well
    the begin is known."""

    limits: Limits
    idx: Sequence[int]
    begin: float
    times: Floats
    rows: Floats
    rates: Floats
    old: Plan | None
    stands: bool
    made: float
    measured: Sequence[Measured | None]
    until: float | None = None
    slack: float = 0.0
    found: list[Break] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._names = [self.limits.moving[i] for i in self.idx]
        self.here, self.rate = self._begins_at()
        path = np.vstack([self.here, self.rows])
        if self.limits.wrapped:  # between -pi and pi lies no way
            ways = [self.limits.way(a, b, self.idx) for a, b in itertools.pairwise(path)]
            path = np.cumsum([path[0], *ways], axis=0)
        at = self.begin + np.append(0.0, self.times)
        self.spline = Spline(at, path, np.vstack([self.rate, self.rates]))

    def _begins_at(self) -> tuple[Floats, Floats]:
        """Where the motion is taken up, and how fast it is there."""
        rest = np.zeros(len(self.idx))
        if self.old is not None and not self.stands:
            return self.old.where(self.begin)
        here: Floats = self.rows[0] - self.rates[0] * self.times[0] / 2  # what leads there best
        for i, one in enumerate(self._away(here)):
            if one is not None:  # from the measured position or the last commanded one
                doubtful = doubt(self.limits, self.idx[i], one[1])
                left = np.sign(one[0]) * max(0.0, abs(one[0]) - doubtful)
                if self.old is not None:
                    left = min(left, here[i] - self.old.spline.positions[-1][i], key=abs)
                here[i] -= left
        return here, rest

    def _away(self, position: Floats) -> list[Away | None]:
        return away_from(position, self.measured, self._names, self.limits)

    def plan(self) -> Plan:
        """The motion from now on: what was before until this begins, then this."""
        spline, vague = self.spline, (0.0, 0.0)
        if self.old is not None and not self.stands:
            old, vague = self.old.spline, self.old.vague
            kept = (old.at < self.begin - 1e-6) & (old.at > self.begin - 2.0)
            spline = Spline(
                np.append(old.at[kept], spline.at),
                np.vstack([old.positions[kept], spline.positions]),
                np.vstack([old.rates[kept], spline.rates]),
            )
        if self.stands:
            vague = (self.begin, self.begin + float(self.times[0]))
        return Plan(spline, self.made, vague, self.begin)

    def judge(self, stops: bool) -> list[Break]:
        """What it breaks, at its points and every millisecond between them."""
        if self.old is not None and not self.stands:
            self._judge_the_leash(self.old)
        moves = [self._names[i] for i in map(int, np.flatnonzero(np.abs(self.rates[-1]) > EPSILON))]
        if moves:
            self.found.append(("rest", f"{', '.join(moves)} is in motion at the last point"))
        ends = self.spline.at
        for number, (start, end) in enumerate(itertools.pairwise(ends)):
            at = np.append(np.arange(start, end, 1e-3), end - 1e-9)
            self._judge_segment(number, at, float(end - start), stops)
        return self.found

    def _judge_segment(self, number: int, at: Floats, length: float, stops: bool) -> None:
        limits, idx = self.limits, self.idx
        rows, rates, changes = self.spline(at)
        speeds, began = np.abs(rates), np.abs(self.rate)

        def words(rule: str, over: Flags, *most: Floats) -> None:
            for i in map(int, np.flatnonzero(over.any(axis=0))):
                k = int(over[:, i].argmax())
                text = f"{self._names[i]} {self.here[i]:.4f} at {self.rate[i]:.4g}/s -> "
                text += f"{rows[k, i]:.4f} at {rates[k, i]:.4g}/s and {changes[k, i]:.4g}/s2 after"
                text += f" {at[k] - self.begin:.3f} s, point {number + 1}; allowed "
                text += " to ".join(f"{float(one[i]):.4g}" for one in most)
                self.found.append((rule, text))

        # Two clocks are read one after the other: where the motion was taken up is not exact.
        loose = self.slack + JITTER_S / 2 if number == 0 else 0.0
        vague = 0.0 if self.stands or self.old is None else self.old.doubt(self.begin)
        unsure = began * loose  # of the position
        if limits.velocity is not None and number == 0:
            unsure = unsure + (vague * limits.period + JITTER_S / 4) * limits.velocity[idx]
        faster = 1.5 * unsure / length
        since, brakes = (at - self.begin)[:, None], np.zeros(rates.shape, bool)
        if limits.acceleration is not None:
            most = limits.acceleration[idx]
            brakes = speeds <= began - since * most / 2 + EPSILON
            # A duration is of whole nanoseconds, in which a short segment's way is another one.
            unsure_too = unsure + 1e-9 * speeds
            jolts = np.abs(changes) > most * (1 + 1e-3) + 6 * unsure_too / length**2 + EPSILON
            if number == 0:
                jolts &= np.abs(changes) > most * (1 + vague + self.stands + 4 * loose / length)
            words("acceleration", jolts, most)
        if limits.velocity is not None:
            most = limits.velocity[idx]
            words("speed", (speeds > most * ROUNDING + faster + EPSILON) & ~brakes, most)
        if limits.absolute:
            self._judge_bounds(rows, rates, brakes, words)
        if stops and not self.stands:
            slower = (speeds <= began + faster + 1e-4) & (rates * self.rate >= -EPSILON - faster)
            words("stop", ~slower, began)
        if self.until is not None and at[-1] > self.until + 1e-3:
            late = (at > self.until + 1e-3)[:, None] & (speeds > EPSILON)
            if limits.acceleration is not None:  # what brakes may end later
                late &= np.sign(changes) == np.sign(rates)
            words("valid_until", late, np.full(len(idx), self.until - self.begin))

    def _judge_bounds(self, rows: Floats, rates: Floats, brakes: Flags, words: Any) -> None:
        limits, idx = self.limits, self.idx
        inside = (rows >= limits.low[idx] - EPSILON) & (rows <= limits.high[idx] + EPSILON)
        if inside.all():
            return
        before = limits.outside(self.here, idx)
        after = np.array([limits.outside(row, idx) for row in rows])
        over = (after > before + EPSILON) & (after > EPSILON) & ~brakes
        words("bounds", over, limits.low[idx], limits.high[idx])

    def _judge_the_leash(self, old: Plan) -> None:
        """Readings are of now: what was planned since the plan before may be farther away."""
        if self.limits.velocity is None:
            return
        here = old.where(self.begin)[0]
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
