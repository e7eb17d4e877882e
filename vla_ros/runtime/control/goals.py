"""Tasks of the robot: goals with an end, tasks that were stopped, episodes of a simulation; and
what of them outlives a control loop."""

from __future__ import annotations

import math
import unicodedata
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from vla_ros.core.clock import SECOND, Clock, Distribution, Window

MAX_INSTRUCTION = 1000  # characters; the longest of the LIBERO benchmark has 130
_AGES_S = 600.0
_AGES = 2_000  # of the newest actions: percentiles are made five times a second
_WITHHELD = 8  # texts at most: upstream nodes that repeat themselves, and more


class GoalOutcome(IntEnum):
    """End of a goal; the values are those of ExecuteInstruction.action."""

    SUCCESS = 1
    TIME_LIMIT = 2
    CANCELED = 3
    PREEMPTED = 4
    FAILED = 5


class GoalRefused(ValueError):
    """A goal that cannot begin; the text is the reason, in one line."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A task with an end. ``time_limit_s`` is the caller's patience, by the steady clock; 0: no
    limit."""

    text: str
    time_limit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a goal. ``ages`` in seconds: capture to publication of its newest actions."""

    elapsed_s: float
    actions: int
    ages: Distribution


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a goal. ``actions``: new ones that were published for it."""

    outcome: GoalOutcome
    message: str
    duration_s: float
    actions: int


def check_instruction(text: str) -> str:
    """An instruction, stripped of surrounding white space.

    Raises ValueError for text that is no instruction: too long, control characters
    (NUL, newlines, escape sequences) or bidirectional overrides, which show one instruction to
    a person and another to the policy.
    """
    text = text.strip()
    if len(text) > MAX_INSTRUCTION:
        raise ValueError(f"instruction has {len(text)} characters, at most {MAX_INSTRUCTION}")
    for character in text:
        # Cc: control, Cf: format (bidi marks, zero-width), Cs: lone surrogates
        if unicodedata.category(character) in ("Cc", "Cf", "Cs"):
            raise ValueError(f"instruction has the control character U+{ord(character):04X}")
    return text


def check_goal(text: str, time_limit_s: float) -> Goal:
    """A goal, checked. Raises :class:`GoalRefused`."""
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


class GoalTracker:
    """The goal that runs, one at a time. Guarded by the lock of the loop that serves it.

    ``ended`` is called at every end, with that lock held, from whatever thread brought it about:
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
        """Begin a goal: time and actions count from now on. The one before has ended."""
        assert self.current is None
        self.current = goal
        self._began_ns, self._actions = self._clock.steady_ns(), 0
        self._ages = Window(_AGES_S, _AGES)

    def acted(self, age_ns: int) -> None:
        """Count a new action, made for an observation of this age."""
        if self.current is not None:
            self._actions += 1
            self._ages.add(self._clock.steady_ns(), age_ns / SECOND)

    @property
    def overdue(self) -> bool:
        """True once the time limit has passed."""
        if self.current is None or not self.current.time_limit_s:
            return False
        return self._elapsed_s >= self.current.time_limit_s

    @property
    def progress(self) -> Progress:
        ages = self._ages.distribution(self._clock.steady_ns())
        return Progress(self._elapsed_s, self._actions, ages)

    def end(self, outcome: GoalOutcome, message: str) -> bool:
        """End the goal. False: there was none."""
        if self.current is None:
            return False
        self.current = None
        self.ended(Ending(outcome, message, self._elapsed_s, self._actions))
        return True

    @property
    def _elapsed_s(self) -> float:
        return (self._clock.steady_ns() - self._began_ns) / SECOND


class StopLatch:
    """The tasks that are withheld after a stop: re-publishing a stopped instruction does not
    restart it, nor one that a goal overruled. Not thread-safe.

    ``task`` is what :meth:`release` gives back, "" where nothing was stopped.
    """

    def __init__(self) -> None:
        self.task = ""
        self._texts: deque[str] = deque(maxlen=_WITHHELD)  # that task, and what a goal overruled
        self._same = False  # those are withheld
        self._all = False  # every task is

    @property
    def holds(self) -> bool:
        """True if there is something to resume."""
        return bool(self.task) or self._all

    def catch(self, task: str) -> None:
        """Stop this task; "" where none was running, so that what was stopped before stays so."""
        self.task = task or self.task
        self.overrule(self.task)

    def overrule(self, text: str) -> None:
        """Withhold a text of the topic that a goal goes before, also after the goal."""
        if text and text not in self._texts:
            self._texts.append(text)
        self._same = True

    def give_way(self) -> None:
        """Let a goal begin: nothing is left to resume. Texts withheld stay so."""
        self.task, self._all = "", False

    def close(self) -> None:
        """Withhold every task from now on, whatever it will be."""
        self._all = True

    def new_episode(self) -> None:
        """Let the task be given again. It does not start by itself."""
        self._same = False

    def withholds(self, task: str) -> bool:
        """True of a task that must not start; the newest one withheld is the one to resume."""
        withheld = self._all or (self._same and task in self._texts)
        if withheld:
            self.task = task
        return withheld

    def release(self) -> str:
        """Forget the stop; returns the task that it held."""
        task, self.task, self._same, self._all = self.task, "", False, False
        self._texts.clear()
        return task


@dataclass(slots=True)
class PersistentState:
    """State that outlives a control loop (a reload of the policy): the stop latch, and the numbers
    of its commands and epochs."""

    latch: StopLatch = field(default_factory=StopLatch)
    sequence: int = 0  # of the next command
    epoch: int = 0  # the newest


class EpisodeTracker:
    """The episode of a simulation that runs, as far as it was reported; a robot has none. Not
    thread-safe.

    Topics and services overtake each other, so an end counts only for an episode that was reported
    to run since :meth:`begin`: a late message about the one before ends nothing.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget whatever ran or ended: after a reset, or at the start."""
        self._running: int | None = None
        self._ended: int | None = None
        self.over = ""  # how it ended, between two episodes
        self.solved = False  # that end was a success

    def is_echo(self, number: int, step: int) -> bool:
        """True of an "it runs", of this episode after ``step`` steps, published before its end."""
        return number == self._ended and step > 0

    def runs(self, number: int) -> None:
        self._running, self._ended, self.over = number, None, ""

    def ends(self, number: int, how: str, solved: bool = False) -> bool:
        """End the episode; False if another one runs. ``how`` in one line."""
        if number != self._running:
            return False
        self._running, self._ended, self.over, self.solved = None, number, how, solved
        return True
