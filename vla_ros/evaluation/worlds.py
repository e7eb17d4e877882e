"""The simulations an evaluation can run in, known without building them."""

from __future__ import annotations

from dataclasses import dataclass

from vla_ros.evaluation.plan import TABLETOP
from vla_ros.evaluation.records import Setup
from vla_ros.sim.env import Task
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.libero.assets import find_assets, placeholder_note
from vla_ros.sim.libero.suites import find_package, tasks_of
from vla_ros.sim.tasks import TASKS


@dataclass(frozen=True, slots=True)
class World:
    """``note``: what a reader of its figures must know, or ""."""

    tasks: tuple[Task, ...]
    note: str = ""


def world_of(environment: str, suite: str = "") -> World:
    """What it offers. SimError: there is no such environment or suite, or it is not installed."""
    EnvConfig(environment, suite=suite)
    if environment == TABLETOP:
        return World(TASKS)
    package = find_package()
    tasks = tuple(task.as_task(one_suite=bool(suite)) for task in tasks_of(suite, package))
    return World(tasks, placeholder_note(find_assets(package)))


def config_of(setup: Setup) -> EnvConfig:
    """What builds the environment of a setup."""
    return EnvConfig(setup.environment, setup.image_size, setup.wrist, setup.suite, setup.nudge_m)
