"""The actions of a run, each made of the commands that moved the robot along it.

At a control rate above the data's several commands make one action: they follow each other with a
growing phase, and the first is at phase 0, though it may end the action before. An action that
takes over from another chunk's between two images begins at a later phase. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vla_ros.core.action_space import GRIPPER_UNIT, ActionKind
from vla_ros.core.types import Floats

_NEAR = 1e-6  # phases are sums of shares


@dataclass(frozen=True, slots=True)
class Rates:
    """The two rates of a run in Hz: of its policy's actions and of the robot's commands."""

    action_hz: float
    control_hz: float

    @property
    def share(self) -> float:
        """Share of an action that a command makes; 1: a command is an action, more: several."""
        return self.action_hz / self.control_hz

    @property
    def commands(self) -> int:
        """The most commands that make one action."""
        return max(1, math.ceil(1.0 / self.share - _NEAR))

    @property
    def row_hz(self) -> float:
        """The rate of actions that the robot executed one by one: of commands, where each of them
        makes several."""
        return min(self.action_hz, self.control_hz)


def displaced(kind: int, units: Sequence[str]) -> tuple[bool, ...]:
    """Whether each number of an action of this ActionKind is a displacement: no
    gripper's is."""
    moves = kind in (ActionKind.END_EFFECTOR_DELTA, ActionKind.JOINT_DELTA)
    return tuple(moves and unit != GRIPPER_UNIT for unit in units)


def grouped(commands: Sequence[tuple[Hashable, float]]) -> Iterator[range]:
    """The indices of each action's commands. A command is given by its key, which those of one
    action share, and its phase, which grows from one of them to the next."""
    first = 0
    for at in range(1, len(commands) + 1):
        if at < len(commands):
            (key, phase), (before, earlier) = commands[at], commands[at - 1]
            if key == before and phase > earlier + _NEAR:
                continue
        yield range(first, at)
        first = at


def executed(rows: Floats, sums: Sequence[bool]) -> Floats:
    """The action [D] that the robot executed over commands [n, D]: displacements (``sums``) are
    added, of targets and grippers the last counts."""
    if len(rows) == 1:
        return np.array(rows[0])
    return np.where(sums, rows.sum(0), rows[-1])


@dataclass(frozen=True, slots=True)
class ActionPeriod:
    """The commands of one action period by their indices. ``before``: the part of the first of them
    that ended the period before."""

    commands: tuple[int, ...]
    before: float = 0.0


def periods(commands: Sequence[tuple[Hashable, float]], share: float) -> list[ActionPeriod]:
    """The action periods of a motion that nothing interrupts, counted from its first action's
    begin, so that they last as long as it does. Commands are given as to :func:`grouped`; each
    makes this ``share`` of an action, more where its tick was late."""
    at, begins = _progress(commands, share)
    ends = [*begins[1:], begins[-1] + share]
    rows = [math.floor(here + _NEAR) for here in at]
    firsts = [i for i, row in enumerate(rows) if not i or row != rows[i - 1]]
    found = []
    for first, end in zip(firsts, [*firsts[1:], len(rows)], strict=True):
        length = max(ends[first] - begins[first], share)
        before = (rows[first] - begins[first]) / length if first else 0.0
        part = before if _NEAR < before < 1.0 else 0.0
        found.append(ActionPeriod(tuple(range(first, end)), part))
    return found


def _progress(
    commands: Sequence[tuple[Hashable, float]], share: float
) -> tuple[list[float], list[float]]:
    """Of each command the place of its phase, in actions from the begin of the first one, and where
    it begins itself: one that begins an action may end the action before."""
    at: list[float] = []
    begins: list[float] = []
    start = since = 0.0  # of the action that the command is of
    for i, (key, phase) in enumerate(commands):
        new = not i or key != commands[i - 1][0] or phase <= commands[i - 1][1] + _NEAR
        if new and i:  # the first may be in the middle of an action, if the record begins there
            start, since = start + 1.0 - since, phase
        at.append(start + phase - since)
        begins.append(min(at[-1], begins[-1] + share) if new and i else at[-1])
    return at, begins
