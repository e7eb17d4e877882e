"""Ways from actions to commands at a higher rate, a servo that executes them, and how smooth it is.

Actions are float64 [n, M] and commands [T, M], positions unless it says displacements. A command
is for the end of its control period, so at an action's time the command is the action. Rates in Hz.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vla_ros.core.action_space import ActionSpace
from vla_ros.core.types import Floats, Inference, Timeline
from vla_ros.runtime import limiter
from vla_ros.runtime.control.motion import Motion
from vla_ros.runtime.control.queue import ChunkAction, PolicyAnswer
from vla_ros.runtime.limiter import Commanded
from vla_ros.runtime.safety import Limits

STEP_S = 0.001  # of the servo


@dataclass(frozen=True, slots=True)
class Part:
    """The actions of a chunk that are executed: ``count`` from number ``first`` on of its rows,
    float64 [n, M]. So many were executed since its observation."""

    rows: Floats
    first: int
    count: int

    @property
    def executed(self) -> Floats:
        """Actions, float64 [count, M]."""
        return self.rows[self.first : self.first + self.count]

    def moved(self, by: Floats) -> Part:
        """The same targets moved by so much [M]."""
        return Part(self.rows + by, self.first, self.count)

    @property
    def begin(self) -> Floats:
        """Position [M] of targets where the first of them begins."""
        if self.first:
            return self.rows[self.first - 1]
        out: Floats = 2 * self.rows[0] - self.rows[1] if len(self.rows) > 1 else self.rows[0]
        return out


# Commands


class Way(Protocol):
    """What makes commands of actions. ``at`` [M]: the last action's, or the last command's."""

    @property
    def at(self) -> Floats: ...

    def follow(self, part: Part) -> Floats:
        """Commands [T, M] of all periods that are over before another action is needed."""
        ...


class Stairs:
    """Each action at once, and held until the next; ``ratio`` control periods an action."""

    def __init__(self, start: Floats, ratio: float) -> None:
        self.at, self._ratio, self._count = start, ratio, 0

    def follow(self, part: Part) -> Floats:
        ticks = [int((self._count + n) * self._ratio + 1e-9) for n in (0, part.count)]
        rows = np.concatenate((self.at[None], part.executed))  # a period may have begun before it
        actions = (np.arange(*ticks) / self._ratio + 1e-9).astype(int) - self._count + 1
        self.at, self._count = rows[-1], self._count + part.count
        return rows[actions]


class Lines:
    """The straight line from the action before to each one, as LeRobot's ActionInterpolator has it
    with the multiplier ``ratio``; to the first one from ``start`` [M], where that leaps to it."""

    def __init__(self, start: Floats, ratio: int) -> None:
        self.at, self._ratio = start, ratio

    def follow(self, part: Part) -> Floats:
        actions = part.executed
        before = np.concatenate((self.at[None], actions[:-1]))
        shares = np.arange(1, self._ratio + 1)[:, None] / self._ratio
        out = before[:, None] + shares * (actions - before)[:, None]
        out[:, -1] = actions
        self.at = actions[-1]
        return out.reshape(-1, actions.shape[1])


class Ours:
    """The real motion along the actions, from rest at ``start`` [M]; nothing is limited. ``step``
    [M]: the last period's."""

    def __init__(
        self, start: Floats, limits: Limits, blend_s: float, step: Floats | None = None
    ) -> None:
        self._limits = limits
        self._motion = Motion(limits.space, limits.action_period_s, blend_s)
        self._share, self._reach = limits.actions_a_period, limiter.action_reach_of(limits)
        still = np.zeros(len(start))
        self._commanded = Commanded(start, still if step is None else step)
        if not limits.space.absolute:
            self._commanded = Commanded(still)
        self._owed = False  # the period that is open wants another action

    @property
    def at(self) -> Floats:
        return self._commanded.at

    def follow(self, part: Part) -> Floats:
        answer = PolicyAnswer(Inference(1, part.rows, Timeline(0)), 1, 1)
        numbers = iter(range(part.first, part.first + part.count))
        out: list[Floats] = []
        while True:
            if not self._owed:
                self._motion.open(self._share)
            while self._owed or self._motion.wants():
                number = next(numbers, None)
                if number is None:
                    self._owed = True
                    return np.array(out).reshape(-1, part.rows.shape[1])
                self._owed = False
                action = ChunkAction((answer,), number, part.rows[number:])
                self._motion.begin(action, self._commanded, self._reach)
            made = self._motion.close(self._limits.period_s)
            assert made is not None
            wish, before = made.wish, self._commanded.at
            absolute = self._limits.space.absolute
            self._commanded = Commanded(wish, wish - before) if absolute else Commanded(wish)
            out.append(wish)


def commands(way: Way, parts: Sequence[Part]) -> Floats:
    """Commands [T, M] of chunks that are there beforehand."""
    return np.concatenate([way.follow(part) for part in parts])


def within(parts: Sequence[Part], limits: Limits) -> Floats:
    """Largest acceleration [M] within a chunk of targets: each followed from its begin to its end
    without another before it."""
    most = np.zeros(parts[0].rows.shape[1])
    for part in parts:
        if len(part.rows) < 2:
            continue
        whole = Part(part.rows, 0, len(part.rows))
        step = (part.rows[1] - part.rows[0]) * limits.actions_a_period
        made = Ours(whole.begin, limits, 0.0, step).follow(whole)
        begin = np.array((whole.begin - step, whole.begin))
        most = np.maximum(most, accelerations(np.concatenate((begin, made)), limits).max(0))
    return most


def space_of(names: Sequence[str], absolute: bool) -> ActionSpace:
    """Space of so many numbers that move."""
    from vla_ros.core.action_space import ActionKind, joints

    kind = ActionKind.JOINT_POSITION if absolute else ActionKind.JOINT_DELTA
    return joints(kind, tuple(names))


# Execution


class Servo:
    """A critically damped second order of ``hz``, at rest at ``start`` [M], that is given its
    commands ``dead_s`` late; exact at 1 kHz. ``found``: positions [M] at the ends of its
    periods."""

    def __init__(
        self, start: Floats, rate_hz: float, hz: float = 5.0, dead_s: float = 0.02
    ) -> None:
        self._omega, self._dead = 2 * np.pi * hz, round(dead_s / STEP_S)
        self._fading, self._steps = np.exp(-self._omega * STEP_S), round(1 / rate_hz / STEP_S)
        if abs(self._steps * STEP_S * rate_hz - 1.0) > 1e-9:
            raise ValueError(f"a period of {rate_hz:g} Hz has no whole number of milliseconds")
        self._at, self._velocity = np.array(start, np.float64), np.zeros(len(start))
        self._late = deque([self._at] * self._dead)
        self.found: list[Floats] = []

    def execute(self, commands: Floats) -> bool:
        """Go on by so many periods [T, M]; True: and more."""
        for command in commands:
            for _ in range(self._steps):
                self._late.append(command)
                goal = self._late.popleft()
                off = self._at - goal
                change = (self._velocity + self._omega * off) * STEP_S
                self._at = goal + (off + change) * self._fading
                self._velocity = (self._velocity - self._omega * change) * self._fading
            self.found.append(self._at)
        return True


# How smooth it is


def accelerations(positions: Floats, limits: Limits) -> Floats:
    """Second differences [T - 2, M] at the control rate, as they are, per second squared."""
    out: Floats = np.abs(np.diff(positions, n=2, axis=0)) * limits.control_rate_hz**2
    return out


@dataclass(frozen=True, slots=True)
class Smoothness:
    """Largest acceleration of any number, per second squared, and the root of the mean square of
    the jerk over all of them, per second cubed: finite differences at ``rate_hz``."""

    acceleration: float
    jerk: float

    @classmethod
    def of(cls, runs: Sequence[Floats], rate_hz: float) -> Smoothness:
        """Of positions [T, M] of several runs."""
        most = max(float(np.abs(np.diff(run, n=2, axis=0)).max(initial=0.0)) for run in runs)
        jerks = np.concatenate([np.diff(run, n=3, axis=0).ravel() for run in runs])
        return cls(most * rate_hz**2, float(np.sqrt(np.mean(jerks**2))) * rate_hz**3)
