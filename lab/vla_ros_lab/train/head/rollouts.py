"""The target acts in the simulation, and what a draft head needs is kept.

Episodes to learn from have seeds of the training's range, those to judge by seeds that nothing is
trained on (:mod:`vla_ros.data.episodes.plan`). A recording that was cut short goes on.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from vla_ros.core.clock import Clock
from vla_ros.core.errors import UserError
from vla_ros.core.types import Floats, Observation, Timeline
from vla_ros.data.episodes.plan import dagger_seed, validation_seed
from vla_ros.engine.engine import Engine
from vla_ros.sim.env import AGENTVIEW, WRIST, Environment, SimObservation
from vla_ros_lab.train.collect import CollectedEpisode, play
from vla_ros_lab.train.head.features import TargetReader, write_episode
from vla_ros_lab.train.units import scales, to_environment

ROUND = 49  # of the training's seeds: no round of on-policy correction has come so far
OPTIONS_FILE = "rollouts.json"
LEARN, JUDGE = "learn", "judge"


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """``target``: the digest of the checkpoint that acts. ``learn`` and ``judge``: episodes of
    every task to train on, and to judge by. ``executed`` actions of a chunk are carried out before
    the target looks again. ``data``: what was recorded elsewhere, where it only answers."""

    target: str
    learn: int = 4
    judge: int = 1
    executed: int = 1
    data: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Recorded:
    """Progress: ``done`` of ``total`` episodes, and whether the last one was solved (None: it was
    there already)."""

    done: int
    total: int
    success: bool | None


def record(
    options: RolloutOptions,
    directory: Path,
    engine: Engine,
    environment: Environment,
    clock: Clock,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Recorded]:
    """Play what is not there yet, one file an episode: ``learn-0000.safetensors`` and so on."""
    claim(options, directory)
    tasks = len(environment.spec.tasks)
    wanted = [(JUDGE, n) for n in range(options.judge * tasks)]
    wanted += [(LEARN, n) for n in range(options.learn * tasks)]
    seer = TargetReader(engine)
    for done, (part, number) in enumerate(wanted, start=1):
        path = path_of(directory, part, number)
        success = None
        if not path.exists():
            episode = _episode(environment, part, number)
            success = _act(episode, environment, engine, seer, clock, options.executed)
            write_episode(path, seer.take())
        yield Recorded(done, len(wanted), success)
        if stop():
            return


def path_of(directory: Path, part: str, number: int) -> Path:
    """The file of an episode."""
    return directory / f"{part}-{number:04d}.safetensors"


def claim(options: RolloutOptions, directory: Path) -> None:
    """Write the options, or check that what is there was made with the same.

    More episodes may be asked for than are there. UserError: of another target or other data, or
    executed otherwise.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / OPTIONS_FILE
    there = json.loads(path.read_text()) if path.exists() else asdict(options)
    if there.get("target") != options.target:
        raise UserError(f"{directory} holds rollouts of another checkpoint: take another --out")
    if tuple(there.get("data", ())) != options.data:
        raise UserError(f"{directory} holds answers to other frames: take another --out")
    before = there.get("executed", "an unknown number of")
    if before != options.executed:
        raise UserError(
            f"{directory} holds rollouts that execute {before} actions of a chunk, not"
            f" {options.executed}: take another --out"
        )
    path.write_text(json.dumps(asdict(options), indent=1) + "\n")


def _episode(environment: Environment, part: str, number: int) -> CollectedEpisode:
    tasks = environment.spec.tasks
    task = tasks[number % len(tasks)]
    seed = dagger_seed(ROUND, number) if part == LEARN else validation_seed(number)
    state = number // len(tasks) % task.initial_states
    return CollectedEpisode(task.name, task.instruction, state, seed, task.max_steps, part)


def _act(
    episode: CollectedEpisode,
    environment: Environment,
    engine: Engine,
    seer: TargetReader,
    clock: Clock,
    executed: int,
) -> bool:
    """Play one episode in lock-step; returns whether it was solved."""
    engine.reset(episode.instruction)
    scale, stamp = scales(environment.spec), 0
    planned: deque[Floats] = deque()

    def drive(seen: SimObservation) -> tuple[None, Floats]:
        nonlocal stamp
        if not planned:
            stamp += 1
            now = clock.steady_ns()
            image, wrist = seen.images[AGENTVIEW], seen.images.get(WRIST)
            observation = Observation(stamp, stamp, now, image, wrist)
            said = seer.step(observation, Timeline(now).mark("queue", now), clock)
            planned.extend(said.actions[:executed])
        return None, to_environment(planned.popleft(), scale)

    return play(environment, episode, drive)
