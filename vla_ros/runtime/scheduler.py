"""Scheduling of robots' frames on one model: by the age of their observation, not by a queue.

Of the robots the one is first whose observation, that of its last answer, would first become too
old. Of the batches that are done before the frames in them are too old, by what a batch of so many
costs, the one is taken that gives most answers a second. A robot that cannot be served beside those
that are is refused when it asks to come in, with the figures. Of one robot one frame waits: it asks
with its newest one when it has its answer.

Plain logic: no clock of its own, no thread, no torch. Times are nanoseconds of one steady clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Generic, TypeVar

from vla_ros.core.errors import UserError

SECOND = 1_000_000_000
LEARNED = 0.2  # the share of a new measurement in what a batch costs
BUSY = 0.9  # the most of the model's time that is promised: the rest is for what comes unevenly
DOUBTED = 3  # times that all frames were dropped, and one is answered: a pass may cost less by now
PATIENT_NS = SECOND  # the age by which robots without a limit are put in order

FrameT = TypeVar("FrameT")


class Refused(UserError):
    """Refusal of a robot that cannot be served beside the others. One line with the figures."""


class BatchCosts:
    """Seconds that one batch takes, by the number of robots in it, as measured at start.

    Between measured numbers it is a straight line, beyond the largest as the last piece goes on.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        if not seconds or min(seconds) < 1 or not all(0 < s < math.inf for s in seconds.values()):
            raise ValueError("costs are positive seconds by a number of robots from 1 on")
        self._seconds = dict(sorted(seconds.items()))
        self._at_start: Mapping[int, float] = self._seconds

    @property
    def at_start(self) -> Mapping[int, float]:
        """Seconds as measured at start, by number of robots."""
        return self._at_start

    @property
    def largest(self) -> int:
        """The largest batch that was measured, and may be taken."""
        return max(self._seconds)

    def of(self, robots: int) -> float:
        """Seconds of a batch of so many, with what was learned since."""
        return _between(self._seconds, robots)

    def promised(self, robots: int) -> float:
        """Seconds by which robots are refused and frames dropped: no more than at start, since a
        server that refused everything after a slow minute would never learn that it is over."""
        return min(self.of(robots), _between(self._at_start, robots))

    def learn(self, robots: int, seconds: float) -> None:
        """Take in the time of a batch of so many."""
        if robots >= 1 and 0 < seconds < math.inf:
            expected = self.of(robots)
            learned = {robots: expected + LEARNED * (seconds - expected)}
            self._seconds = dict(sorted({**self._seconds, **learned}.items()))


def _between(known: Mapping[int, float], robots: int) -> float:
    if robots in known:
        return known[robots]
    below = max((n for n in known if n < robots), default=None)
    above = min((n for n in known if n > robots), default=None)
    if below is None or above is None:  # in proportion, which is never too little
        nearest = max(known) if above is None else min(known)
        return known[nearest] * max(1.0, robots / nearest)
    share = (robots - below) / (above - below)
    return known[below] + share * (known[above] - known[below])


@dataclass(eq=False, slots=True)
class AdmittedRobot(Generic[FrameT]):
    """A robot that was admitted, at a rate and with an age limit; 0: it has none. ``stamp_ns``: of
    the ``frame`` that waits; ``acts_on``: of the last one that was answered, at first of the first
    one."""

    rate_hz: float
    max_age_ns: int
    stamp_ns: int = 0
    frame: FrameT | None = None
    acts_on: int | None = None

    @property
    def wanted_hz(self) -> float:
        """Answers a second; without a rate of its own the fewest that keep it moving."""
        return self.rate_hz or (SECOND / self.max_age_ns if self.max_age_ns else 0.0)

    @property
    def limit_ns(self) -> float:
        """Instant from which the observation of the waiting frame is too old."""
        return self.stamp_ns + self.max_age_ns if self.max_age_ns else math.inf

    @property
    def due_ns(self) -> int:
        """Instant from which the robot acts on too old an observation: the earliest is first."""
        return (self.acts_on or 0) + (self.max_age_ns or PATIENT_NS)


@dataclass(frozen=True, slots=True)
class DroppedFrame(Generic[FrameT]):
    """A frame that is not answered: it would be ``age_s`` old at best, and no more than
    ``max_age_s`` is allowed."""

    frame: FrameT
    age_s: float
    max_age_s: float

    def __str__(self) -> str:
        return (
            f"the observation would be {_ms(self.age_s)} old when it is answered, more than the age"
            f" limit of {_ms(self.max_age_s)}: the server has too much to do"
        )


@dataclass(slots=True)
class Scheduler(Generic[FrameT]):
    """Scheduler of robots' frames on one model (see the module). Called by one thread."""

    costs: BatchCosts
    robots: dict[Hashable, AdmittedRobot[FrameT]] = field(default_factory=dict)
    _dropped: list[DroppedFrame[FrameT]] = field(default_factory=list)
    _passed_over: int = 0  # times in a row that all were dropped

    @property
    def waits(self) -> bool:
        """True while a frame waits."""
        return any(robot.frame is not None for robot in self.robots.values())

    def admit(self, name: Hashable, rate_hz: float = 0.0, max_age_s: float = 0.0) -> None:
        """Admit a robot that wants answers at this rate, none older than that; 0: any, which is
        never refused.

        Refused: the model has not the time for all of them, or not the speed for one.
        """
        if not (0 <= rate_hz < math.inf and 0 <= max_age_s < math.inf):
            raise Refused(f"rate and age limit are {rate_hz} Hz and {max_age_s} s: give 0 or more")
        new = AdmittedRobot[FrameT](rate_hz, round(max_age_s * SECOND))
        if new.wanted_hz:
            self._refuse_unless_served([*self.robots.values(), new])
        self.robots[name] = new

    def _refuse_unless_served(self, asked: Sequence[AdmittedRobot[FrameT]]) -> None:
        """Raise Refused unless all of them can be served; the last one is new."""
        wanted = sum(robot.wanted_hz for robot in asked)
        age = min((r.max_age_ns / SECOND for r in asked if r.max_age_ns), default=math.inf)
        cost = self.costs.promised
        # Among others a frame that has just missed a batch is answered by the next.
        waits = 1 if len(asked) == 1 else 2
        size = self._best([age / waits] * len(asked), cost)
        within = f" within the age limit of {_ms(age)}" if age < math.inf else ""
        if not size:
            wait = f" and may have to wait for the one before it: {_ms(2 * cost(1))}"
            others = f"; {len(asked) - 1} others are served" if len(asked) > 1 else ""
            raise Refused(
                f"an answer takes {_ms(cost(1))}{wait if others else ''}, more than the age limit"
                f" of {_ms(age)}{others}"
            )
        most, own = BUSY * size / cost(size), asked[-1].wanted_hz
        if wanted > most:
            raise Refused(
                f"{len(asked)} robots want {wanted:.1f} answers a second, and batches of {size}"
                f" give {most:.1f}{within}: ask for at most {max(0.0, most - wanted + own):.1f} Hz,"
                " a higher age limit, or another server"
            )

    def release(self, name: Hashable) -> FrameT | None:
        """Remove a robot; returns its frame that waited, if any."""
        robot = self.robots.pop(name, None)
        return None if robot is None else robot.frame

    def submit(self, name: Hashable, stamp_ns: int, frame: FrameT) -> None:
        """Let a frame stamped ``stamp_ns`` wait, of a robot of which none does."""
        robot = self.robots[name]
        assert robot.frame is None, "one frame of a robot waits"
        if robot.acts_on is None:
            robot.acts_on = stamp_ns
        robot.frame, robot.stamp_ns = frame, stamp_ns

    def next(self, now_ns: int) -> list[FrameT]:
        """The frames to answer now as one batch, the most urgent first; none: nothing waits.

        A frame that even alone would be too old when it is answered is dropped: a newer one of the
        same robot comes, and others can still be in time.
        """
        robots = (robot for robot in self.robots.values() if robot.frame is not None)
        waiting = sorted(robots, key=lambda robot: robot.due_ns)
        alone = round(self.costs.promised(1) * SECOND)
        timely = [robot for robot in waiting if now_ns + alone <= robot.limit_ns]
        if not timely and self._passed_over >= DOUBTED:
            young = [robot for robot in waiting if now_ns <= robot.limit_ns]
            timely = sorted(young, key=lambda robot: robot.stamp_ns)[-1:]
        self._passed_over = 0 if timely else self._passed_over + bool(waiting)
        for robot in waiting:
            if robot not in timely:
                age = (now_ns + alone - robot.stamp_ns) / SECOND
                assert robot.frame is not None
                self._dropped.append(DroppedFrame(robot.frame, age, robot.max_age_ns / SECOND))
                robot.frame = None
        limits = [(robot.limit_ns - now_ns) / SECOND for robot in timely]
        size = self._best(list(accumulate(limits, min)), self.costs.of)
        batch: list[FrameT] = []
        for robot in timely[: max(1, size)]:
            assert robot.frame is not None
            batch.append(robot.frame)
            robot.acts_on, robot.frame = robot.stamp_ns, None
        return batch

    def take_dropped(self) -> list[DroppedFrame[FrameT]]:
        """The frames that were dropped since the last call, for their robots."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def _best(self, within_s: Sequence[float], cost: Callable[[int], float]) -> int:
        """Size of the batch that gives most answers a second; batches of 1, 2, ... robots may take
        ``within_s`` each. Of equal ones the smaller, whose answers are younger; 0: none fits."""
        best, rate = 0, 0.0
        for size, most in enumerate(within_s[: self.costs.largest], 1):
            took = cost(size)
            if took <= most and size / took > 1.01 * rate:
                best, rate = size, size / took
        return best


def capacity(costs: BatchCosts, rate_hz: float, max_age_s: float = 0.0, most: int = 256) -> int:
    """Number of robots with these wishes that are admitted, of ``most``."""
    scheduler = Scheduler[None](costs)
    for number in range(most):
        try:
            scheduler.admit(number, rate_hz, max_age_s)
        except Refused:
            return number
    return most


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"
