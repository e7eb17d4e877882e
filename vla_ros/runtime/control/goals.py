"""A goal: a task that is asked for once, with an end. How it goes, and how it ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from vla_ros.control.intake import check_instruction
from vla_ros.timing import SECOND, Clock, Distribution, Window

_AGES_S = 600.0
_AGES = 2_000  # of the newest actions: percentiles are made five times a second


class Outcome(IntEnum):
    """How a goal ended; the values are those of ExecuteInstruction.action."""

    SUCCESS = 1
    TIME_LIMIT = 2
    CANCELED = 3
    PREEMPTED = 4
    FAILED = 5


class GoalRefused(ValueError):
    """A goal that cannot begin; the text says why in one line."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What to do. ``time_limit_s`` is the caller's patience, by the steady clock; 0: no limit."""

    text: str
    time_limit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How a goal goes. ``ages`` in seconds: capture to publication of its newest actions."""

    elapsed_s: float
    actions: int
    ages: Distribution


@dataclass(frozen=True, slots=True)
class Ending:
    """How a goal ended. ``actions``: new ones that were published for it."""

    outcome: Outcome
    message: str
    duration_s: float
    actions: int


def check_goal(text: str, time_limit_s: float) -> Goal:
    """The goal that was asked for. Raises :class:`GoalRefused`."""
    try:
        text = check_instruction(text)
    except ValueError as error:
        raise GoalRefused(str(error)) from None
    if not text:
        raise GoalRefused("the instruction is empty: to stop, cancel the goal or call ~/stop")
    if "\ufffd" in text:  # what rclpy makes of bytes that are none
        raise GoalRefused("the instruction is not UTF-8")
    if not math.isfinite(time_limit_s) or time_limit_s < 0.0:
        raise GoalRefused(f"time_limit_s is {time_limit_s:g}, must be finite and 0 or more")
    return Goal(text, time_limit_s)


class GoalCourse:
    """One goal at a time. Guarded by the lock of the loop that serves it.

    ``ended`` is told of every end, with that lock held, from whatever thread brought it about:
    it must not wait. ``topic_preempts``: another text on the topic ends a goal.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ns = 0
        self._actions = 0
        self._ages = Window(_AGES_S, _AGES)
        self.current: Goal | None = None
        self.topic_preempts = False
        self.ended: Callable[[Ending], None] = lambda _: None

    def begin(self, goal: Goal) -> None:
        """Time and actions count from now on. The one before has ended."""
        assert self.current is None
        self.current = goal
        self._began_ns, self._actions = self._clock.steady_ns(), 0
        self._ages = Window(_AGES_S, _AGES)

    def acted(self, age_ns: int) -> None:
        """A new action was published, on evidence of this age."""
        if self.current is not None:
            self._actions += 1
            self._ages.add(self._clock.steady_ns(), age_ns / SECOND)

    @property
    def overdue(self) -> bool:
        """Whether the time limit has passed."""
        if self.current is None or not self.current.time_limit_s:
            return False
        return self._elapsed_s >= self.current.time_limit_s

    @property
    def progress(self) -> Progress:
        ages = self._ages.distribution(self._clock.steady_ns())
        return Progress(self._elapsed_s, self._actions, ages)

    def end(self, outcome: Outcome, message: str) -> bool:
        """The goal is over. False: there was none."""
        if self.current is None:
            return False
        self.current = None
        self.ended(Ending(outcome, message, self._elapsed_s, self._actions))
        return True

    @property
    def _elapsed_s(self) -> float:
        return (self._clock.steady_ns() - self._began_ns) / SECOND
