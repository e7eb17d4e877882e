"""Which robots' frames one model answers next: by the age of their evidence, not by a queue.

Of a robot the newest frame waits, no other. Of the robots the one is first whose evidence, that of
its last answer, would first become too old. Of the batches that are done before the frames in them
are too old, by what a batch of so many costs, the one is taken that gives most answers a second. A
robot that cannot be served beside those that are is refused when it asks to come in, with the
figures.

Plain logic: no clock of its own, no thread, no torch. Times are nanoseconds of one steady clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Generic, TypeVar

from vla_ros.core.errors import UserError

SECOND = 1_000_000_000
LEARNED = 0.2  # the share of a new measurement in what a batch costs
BUSY = 0.9  # the most of the model's time that is promised: the rest is for what comes unevenly

FrameT = TypeVar("FrameT")


class Refused(UserError):
    """A robot cannot be served beside those that are. One line with the figures."""


class Costs:
    """Seconds that one batch takes, by the number of robots in it, as measured at start.

    Between measured numbers it is a straight line, beyond the largest as the last piece goes on.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        if not seconds or min(seconds) < 1 or not all(0 < s < math.inf for s in seconds.values()):
            raise ValueError("costs are positive seconds by a number of robots from 1 on")
        self._seconds = dict(sorted(seconds.items()))

    @property
    def largest(self) -> int:
        """The largest batch that was measured: none is larger."""
        return max(self._seconds)

    def of(self, robots: int) -> float:
        """Seconds of a batch of so many."""
        known = self._seconds
        if robots in known:
            return known[robots]
        below = max((n for n in known if n < robots), default=None)
        above = min((n for n in known if n > robots), default=None)
        if below is None or above is None:  # in proportion, which is never too little
            nearest = max(known) if above is None else min(known)
            return known[nearest] * max(1.0, robots / nearest)
        share = (robots - below) / (above - below)
        return known[below] + share * (known[above] - known[below])

    def learn(self, robots: int, seconds: float) -> None:
        """A batch of so many took so long."""
        if robots >= 1 and 0 < seconds < math.inf:
            expected = self.of(robots)
            self._seconds[robots] = expected + LEARNED * (seconds - expected)
            self._seconds = dict(sorted(self._seconds.items()))


@dataclass(slots=True)
class Robot(Generic[FrameT]):
    """One that was admitted; ``stamp_ns`` is when the ``frame`` that waits was seen, ``acts_on``
    that of the last one that was answered, at first of the first one."""

    rate_hz: float
    max_age_ns: int
    stamp_ns: int = 0
    frame: FrameT | None = None
    acts_on: int | None = None
    replaced: int = 0
    dropped: int = 0
    answered: int = 0

    @property
    def limit_ns(self) -> int:
        """When the evidence of the waiting frame is too old."""
        return self.stamp_ns + self.max_age_ns

    @property
    def due_ns(self) -> int:
        """When what the robot acts on is too old: whoever had no answer for long is first."""
        return (self.acts_on or 0) + self.max_age_ns


@dataclass(frozen=True, slots=True)
class Dropped(Generic[FrameT]):
    """A frame that nobody will answer: it would be ``age_s`` old at best, more than allowed."""

    name: str
    frame: FrameT
    age_s: float


@dataclass(slots=True)
class Scheduler(Generic[FrameT]):
    """See the module. One thread calls it."""

    costs: Costs
    robots: dict[str, Robot[FrameT]] = field(default_factory=dict)
    _dropped: list[Dropped[FrameT]] = field(default_factory=list)

    def admit(self, name: str, rate_hz: float, max_age_s: float) -> None:
        """Let a robot in that wants an answer at this rate, none older than that.

        Refused: the model has not the time for all of them, or not the speed for one.
        """
        if not (0 < rate_hz < math.inf and 0 < max_age_s < math.inf):
            raise Refused(f"{name}: rate and age limit must be positive, not {rate_hz} Hz and"
                          f" {max_age_s} s")  # fmt: skip
        if name in self.robots:
            raise Refused(f"{name} is served already: choose another name")
        asked = [*self.robots.values(), Robot[FrameT](rate_hz, round(max_age_s * SECOND))]
        wanted, ages = sum(r.rate_hz for r in asked), min(r.max_age_ns for r in asked) / SECOND
        alone = self.costs.of(1)
        # A frame that has just missed a batch is answered by the next.
        size = self._best([ages / 2] * len(asked))
        if not size:
            others = f"; {len(asked) - 1} others are served" if len(asked) > 1 else ""
            raise Refused(
                f"{name}: an answer takes {_ms(alone)} and may have to wait for the batch before"
                f" it: {_ms(2 * alone)}, more than the age limit of {_ms(ages)}{others}"
            )
        most = BUSY * size / self.costs.of(size)
        if wanted > most:
            raise Refused(
                f"{name}: with it {len(asked)} robots want {wanted:.1f} answers a second, and"
                f" batches of {size} give {most:.1f} within the age limit of {_ms(ages)}: ask for"
                f" at most {max(0.0, most - wanted + rate_hz):.1f} Hz, a higher age limit, or"
                " another server"
            )
        self.robots[name] = asked[-1]

    def release(self, name: str) -> None:
        """The robot is gone, and what waits of it. Nothing where it is not there."""
        self.robots.pop(name, None)

    def submit(self, name: str, stamp_ns: int, frame: FrameT) -> FrameT | None:
        """A frame seen at ``stamp_ns``; the frame that nobody will answer now, if any: of two the
        older one."""
        robot = self.robots[name]
        if robot.frame is not None:
            robot.replaced += 1
            if stamp_ns < robot.stamp_ns:
                return frame
        if robot.acts_on is None:
            robot.acts_on = stamp_ns
        old, robot.frame, robot.stamp_ns = robot.frame, frame, stamp_ns
        return old

    def next(self, now_ns: int) -> list[tuple[str, FrameT]]:
        """The frames to answer now as one batch, the most urgent first; none: nothing waits.

        A frame that even alone would be too old when it is answered is dropped: a newer one of the
        same robot comes, and others can still be in time.
        """
        waiting = sorted(
            ((n, r) for n, r in self.robots.items() if r.frame is not None),
            key=lambda each: each[1].due_ns,
        )
        alone = self.costs.of(1) * SECOND
        for name, robot in waiting:
            if now_ns + alone > robot.limit_ns:
                assert robot.frame is not None
                age = (now_ns + alone - robot.stamp_ns) / SECOND
                self._dropped.append(Dropped(name, robot.frame, age))
                robot.frame, robot.dropped = None, robot.dropped + 1
        waiting = [(name, robot) for name, robot in waiting if robot.frame is not None]
        batch: list[tuple[str, FrameT]] = []
        limits = [(robot.limit_ns - now_ns) / SECOND for _, robot in waiting]
        for name, robot in waiting[: self._best(list(accumulate(limits, min)))]:
            assert robot.frame is not None
            batch.append((name, robot.frame))
            robot.acts_on, robot.frame = robot.stamp_ns, None
            robot.answered += 1
        return batch

    def take_dropped(self) -> list[Dropped[FrameT]]:
        """The frames that were dropped since the last call: their robots are to be told."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def _best(self, within_s: Sequence[float]) -> int:
        """Of batches of 1, 2, ... robots, each with so long, the one that gives most answers
        a second; of equal ones the smaller, whose answers are younger. 0: none is short enough."""
        best, rate = 0, 0.0
        for size, most in enumerate(within_s[: self.costs.largest], 1):
            took = self.costs.of(size)
            if took <= most and size / took > 1.01 * rate:
                best, rate = size, size / took
        return best


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"
