"""Shadow mode: what a policy would command, held against what a person does meanwhile. ROS-free.

Nothing executes the policy's commands. What the person does comes as actions of one control period,
or as positions: those that they command, or those that are measured.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from vla_ros.core.action_space import GRIPPER_UNIT, ActionKind, ActionSpace
from vla_ros.core.clock import SECOND
from vla_ros.core.rotation import relative
from vla_ros.core.types import Floats


class ShadowComparison:
    """Differences between a policy's commands of ``space`` and what a person does. Not thread-safe.

    ``timeout_s``: for so long what the person gave last counts. ``late``: positions are measured,
    and a command is compared with where the robot is one command later. ``seconds``: means are
    those of so long.
    """

    def __init__(
        self, space: ActionSpace, timeout_s: float, late: bool = False, seconds: int = 10
    ) -> None:
        self._space, self._late = space, late
        self._timeout_ns, self._seconds = round(timeout_s * SECOND), seconds
        self._given: tuple[Floats, bool, int] | None = None  # numbers, positions or not, steady ns
        self._was: Floats | None = None  # the positions at the last command
        self._before: Floats | None = None  # the last command
        self._sums: deque[tuple[int, Floats, Floats]] = deque()  # of each second: |d|, and how many

    def given(self, values: Floats, steady_ns: int, *, positions: bool = False) -> None:
        """Take in what the person does, float64 [D], NaN for a number that it does not say: an
        action of one control period, or ``positions`` of joints or end effectors."""
        self._given = values, positions, steady_ns

    def compare(self, action: Floats, steady_ns: int) -> Floats | None:
        """The policy's command [D] minus what the person did, NaN for numbers that are not known;
        None: nothing is. Once a command."""
        person = self._person(steady_ns)
        if self._late:
            action, self._before = self._before, action  # type: ignore[assignment]
        if person is None or action is None or np.isnan(person).all():
            return None
        out = action - person
        if self._space.kind is ActionKind.END_EFFECTOR_POSE:
            for axes in map(list, self._space.rotations):
                out[axes] = relative(person[axes], action[axes])
        self._count(np.abs(out), steady_ns)
        return out

    def _person(self, steady_ns: int) -> Floats | None:
        """What the person did in this control period, as an action."""
        was, self._was = self._was, None
        if self._given is None or steady_ns - self._given[2] > self._timeout_ns:
            return None
        values, positions, _ = self._given
        if not positions or self._space.absolute:
            return values
        self._was = values
        if was is None:
            return None
        moved, motion = values.copy(), list(self._space.motion)
        moved[motion] -= was[motion]
        return moved

    def _count(self, away: Floats, steady_ns: int) -> None:
        second, there = steady_ns // SECOND, np.isfinite(away)
        if not self._sums or self._sums[-1][0] != second:
            self._sums.append((second, np.zeros(len(away)), np.zeros(len(away))))
        self._sums[-1][1][there] += away[there]
        self._sums[-1][2][there] += 1.0

    def means(self, steady_ns: int) -> Floats:
        """Mean absolute difference of each number [D] in its unit; NaN where nothing was
        compared."""
        while self._sums and self._sums[0][0] <= steady_ns // SECOND - self._seconds:
            self._sums.popleft()
        total = count = np.zeros(self._space.width)
        for _, one, many in self._sums:
            total, count = total + one, count + many
        return np.where(count > 0, total / np.maximum(count, 1.0), np.nan)

    def line(self, steady_ns: int) -> str:
        """The largest mean difference in each unit with its number's name; "" for none."""
        means, space = self.means(steady_ns), self._space
        parts = []
        for unit in dict.fromkeys(space.units):
            own = [i for i in range(space.width) if space.units[i] == unit]
            known = [i for i in own if np.isfinite(means[i])]
            if known:
                worst = max(known, key=lambda i: float(means[i]))
                called = "" if unit == GRIPPER_UNIT else f" {unit}"
                parts.append(f"{means[worst]:.2g}{called} ({space.names[worst]})")
        return ", ".join(parts)
