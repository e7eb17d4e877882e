"""Success of a checkpoint on held-out initial states, in lock-step, to watch training.

It is a thermometer: few episodes, no intervals, seeds of their own. The evaluation proper has
other initial states and goes through the ROS graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vla_ros.core import Floats
from vla_ros.sim.env import SimObservation
from vla_ros.sim.goals import Family
from vla_ros.train.data.collection import tasks_of
from vla_ros.train.data.rollout import (
    Episode,
    forget_policy,
    play,
    shared_environment,
    shared_policy,
)
from vla_ros.train.data.seeds import validation_seed
from vla_ros.train.data.units import scales, to_environment
from vla_ros.train.data.workers import pool


@dataclass(frozen=True, slots=True)
class Outcome:
    """One held-out episode."""

    family: Family
    task: str
    success: bool


@dataclass(frozen=True, slots=True)
class CheckJob:
    """Episode ``number`` of ``family`` with a checkpoint."""

    checkpoint: str
    family: Family
    number: int


def check(
    checkpoint: str,
    episodes: int,
    families: tuple[Family, ...] = tuple(Family),
    workers: int = 1,
) -> Iterator[Outcome]:
    """Play ``episodes`` held-out initial states of every family."""
    jobs = [CheckJob(checkpoint, family, n) for n in range(episodes) for family in families]
    if workers == 1:
        forget_policy()  # the directory may have been written anew
        yield from map(run_one, jobs)
        return
    with pool(workers) as processes:
        yield from processes.map(run_one, jobs)


def run_one(job: CheckJob) -> Outcome:
    """Play one episode in this process."""
    policy = shared_policy(job.checkpoint)
    environment = shared_environment(policy.engine.model.config.images == 2)
    tasks = tasks_of(environment.spec, job.family)
    task = tasks[job.number % len(tasks)]
    state = job.number % task.initial_states
    episode = Episode(
        task.name, task.instruction, state, validation_seed(job.number), task.max_steps
    )
    policy.reset(task.instruction)
    scale = scales(environment.spec)
    gripper = -1.0  # as last told; -1 open

    def drive(seen: SimObservation) -> tuple[None, Floats]:
        nonlocal gripper
        said = policy.act(seen)
        if said is None:  # no action: stand still, as the gate of the node does
            return None, np.array([0, 0, 0, 0, 0, 0, gripper], dtype=np.float64)
        action = to_environment(said, scale)
        gripper = float(action[-1])
        return None, action

    return Outcome(job.family, task.name, play(environment, episode, drive))


def success_by_family(outcomes: list[Outcome]) -> dict[str, tuple[int, int]]:
    """Family -> (successes, episodes)."""
    out: dict[str, tuple[int, int]] = {}
    for one in outcomes:
        good, count = out.get(one.family.value, (0, 0))
        out[one.family.value] = (good + one.success, count + 1)
    return out
