"""The sentences of a simulation's tasks, to choose from."""

from __future__ import annotations

import functools

from vla_ros.sim.env import SimError
from vla_ros.sim.libero.suites import find_package, tasks_of


@functools.cache
def sentences_of(environment: str, suite: str = "") -> tuple[str, ...]:
    """In the order of the tasks, each once; () for an environment that nobody knows here."""
    if environment == "tabletop":
        from vla_ros.sim.tasks import TASKS

        return tuple(dict.fromkeys(task.instruction for task in TASKS))
    if environment == "libero":
        try:
            tasks = tasks_of(suite, find_package())
        except SimError:
            return ()
        return tuple(dict.fromkeys(task.instruction for task in tasks))
    return ()
