"""Environments for tests: a fast one without physics, and ones that hang or crash.

They are built in other processes too, so they live in an importable module.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vla_ros.core.types import Floats
from vla_ros.sim.env import (
    AGENTVIEW,
    EnvSpec,
    RefusedAction,
    SimObservation,
    SimStep,
    Task,
    checked_action,
)

TASKS = (Task("count", "count to four", 3, 20), Task("wait", "wait for ever", 3, 4))


@dataclass
class CountingEnvironment:
    """Solves "count" at its fourth step. Remembers what it executed. ``action_rate_hz`` 0: its
    control rate."""

    rate_hz: float = 200.0
    action_rate_hz: float = field(default=0.0, kw_only=True)
    actions: list[Floats] = field(default_factory=list)
    resets: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def spec(self) -> EnvSpec:
        rates = {"action_rate_hz": self.action_rate_hz or self.rate_hz}
        rates["control_rate_hz"] = self.rate_hz
        return EnvSpec("counting", TASKS, (AGENTVIEW,), 4, **rates)

    def reset(
        self, task: str, initial_state: int, seed: int = 0, render: bool = True
    ) -> SimObservation:
        self.resets.append((task, initial_state, seed))
        self.actions.clear()
        return self._observe(render)

    def step(self, action: npt.ArrayLike, render: bool = True) -> SimStep:
        self.actions.append(checked_action(action))
        done = self.resets[-1][0] == "count" and len(self.actions) == 4
        return SimStep(self._observe(render), success=done, done=done)

    def close(self) -> None:
        pass

    def _observe(self, render: bool) -> SimObservation:
        image = np.full((4, 4, 3), len(self.actions), np.uint8)
        zeros = np.zeros(3)
        return SimObservation(
            {AGENTVIEW: image} if render else {}, (), np.zeros(0), zeros, np.zeros(4), zeros[:2]
        )


@dataclass(frozen=True)
class Troubled:
    """Builds an environment that misbehaves in its own process, where a file does not exist yet.

    ``trouble`` is "hang", "crash", "raise" or "refuse"; it happens in ``where``: "start", "reset"
    or "step". The file makes it happen once only.
    """

    trouble: str
    where: str
    once: str

    def __call__(self) -> CountingEnvironment:
        self.maybe("start")
        return _TroubledEnvironment(self)

    def maybe(self, where: str) -> None:
        if where != self.where or os.path.exists(self.once):
            return
        with open(self.once, "w"):
            pass
        if self.trouble == "hang":
            time.sleep(1000)
        if self.trouble == "crash":
            os._exit(3)
        if self.trouble == "raise":
            raise ZeroDivisionError("a bug of the simulation")
        raise RefusedAction("not now")


class _TroubledEnvironment(CountingEnvironment):
    def __init__(self, trouble: Troubled) -> None:
        super().__init__()
        self._trouble = trouble

    def reset(
        self, task: str, initial_state: int, seed: int = 0, render: bool = True
    ) -> SimObservation:
        self._trouble.maybe("reset")
        return super().reset(task, initial_state, seed, render)

    def step(self, action: npt.ArrayLike, render: bool = True) -> SimStep:
        self._trouble.maybe("step")
        return super().step(action, render)
