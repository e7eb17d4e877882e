"""A collection of demonstrations: which episodes, who acts in them, shard by shard.

Every shard is a function of the options and its number alone: a collection that was cut short
goes on where it stopped, and any number of workers makes the same demonstrations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path

import numpy as np

from vla_ros.core import Floats
from vla_ros.errors import UserError
from vla_ros.sim.env import AGENTVIEW, WRIST, Environment, EnvSpec, SimObservation, Task
from vla_ros.sim.expert import Expert
from vla_ros.sim.goals import Family, instruction_of, parse_instruction
from vla_ros.train.data.noise import Disturbance
from vla_ros.train.data.projection import Projection
from vla_ros.train.data.relabel import INSTRUCTIONS, labels
from vla_ros.train.data.rollout import (
    Driver,
    Episode,
    Late,
    Recorder,
    Taught,
    forget_policy,
    play,
    shared_environment,
    shared_policy,
)
from vla_ros.train.data.seeds import dagger_seed, expert_seed
from vla_ros.train.data.shards import (
    EXPERT,
    SUFFIX,
    Demonstration,
    SetInfo,
    read_tracks,
    write_shard,
)
from vla_ros.train.data.units import scales, to_environment
from vla_ros.train.data.wordings import wordings
from vla_ros.train.data.workers import pool

OPTIONS_FILE = "collection.json"
OBJECTS = ("blue_cube", "green_cube", "plate", "red_cube", "yellow_cube", "gripper")
_SWITCH = 0.05  # chance per step that the one who acts is drawn anew, in on-policy rounds


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """What a collection is. ``policy``: a checkpoint that acts while the expert labels.

    ``demonstrations`` episodes are spread evenly over ``families``, and within a family over
    its tasks. ``seed`` is the number of the collection, or of the on-policy round.
    ``interpolation``: how images are made smaller; "box" gives what LeRobot's pi0 sees of them.
    ``expert_share`` of a policy's steps are the expert's own, so that late stages are seen.
    ``delays``: the policy acts on images that are 0 to so many steps old, each episode another.
    ``two_ways``: the expert swings out to the left or to the right, each episode anew.
    """

    demonstrations: int
    families: tuple[str, ...] = tuple(family.value for family in Family)
    seed: int = 0
    image_size: int = 128
    wrist: bool = False
    policy: str = ""
    expert_share: float = 0.3
    interpolation: str = "bicubic"
    per_shard: int = 20
    delays: int = 0
    two_ways: bool = False

    @property
    def cameras(self) -> tuple[str, ...]:
        return (AGENTVIEW, WRIST) if self.wrist else (AGENTVIEW,)

    @property
    def shard_count(self) -> int:
        return -(-self.demonstrations // self.per_shard)


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What came of a shard. ``failed`` demonstrations of the expert are not in it."""

    kept: int
    failed: int
    succeeded: int
    frames: int


@dataclass(frozen=True, slots=True)
class Made:
    """One more shard is there."""

    report: ShardReport
    shards_done: int
    shards: int


def collect(options: CollectOptions, directory: Path, workers: int = 1) -> Iterator[Made]:
    """Make every shard that is missing, yielding after each.

    UserError: ``directory`` holds a collection with other options.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _claim(options, directory)
    missing = [n for n in range(options.shard_count) if not _path(directory, n).exists()]
    done = options.shard_count - len(missing)
    for report in _each(options, directory, missing, workers):
        done += 1
        yield Made(report, done, options.shard_count)


def _each(
    options: CollectOptions, directory: Path, numbers: list[int], workers: int
) -> Iterator[ShardReport]:
    if workers == 1 or len(numbers) < 2:
        forget_policy()  # the directory may have been written anew
        for number in numbers:
            yield make_shard(options, directory, number)
        return
    with pool(min(workers, len(numbers))) as processes:
        waiting = [processes.submit(make_shard, options, directory, n) for n in numbers]
        try:
            for one in as_completed(waiting):
                yield one.result()
        finally:
            for one in waiting:
                one.cancel()


def make_shard(options: CollectOptions, directory: Path, number: int) -> ShardReport:
    """Run a shard's episodes and write it."""
    environment = shared_environment(options.wrist)
    projection = _projection(options.image_size)
    kept: list[Demonstration] = []
    failed = 0
    first = number * options.per_shard
    for index in range(first, min(first + options.per_shard, options.demonstrations)):
        episode = episode_of(options, environment.spec, index)
        recorder = Recorder(
            options.image_size, options.cameras, OBJECTS, projection, options.interpolation
        )
        success = play(environment, episode, _driver(options, episode, environment), recorder)
        if success or options.policy:  # a policy's failures are what its teacher is for
            kept.append(recorder.demonstration(episode, success))
        else:
            failed += 1
    write_shard(_path(directory, number), set_info(options, environment.spec), kept)
    tracks = [one.track for one in kept]
    succeeded = sum(track.success for track in tracks)
    return ShardReport(len(kept), failed, succeeded, sum(map(len, tracks)))


def episode_of(options: CollectOptions, spec: EnvSpec, index: int) -> Episode:
    """Episode ``index`` of a collection: task, wording, initial state and seed."""
    family = Family(options.families[index % len(options.families)])
    tasks = tasks_of(spec, family)
    turn = index // len(options.families)
    task = tasks[turn % len(tasks)]
    said = wordings(parse_instruction(task.instruction))
    return Episode(
        task=task.name,
        instruction=said[(turn // len(tasks)) % len(said)],
        initial_state=index % task.initial_states,
        seed=episode_seed(options, index),
        max_steps=task.max_steps,
        source=f"round {options.seed}" if options.policy else EXPERT,
    )


def episode_seed(options: CollectOptions, index: int) -> int:
    """Seed of an episode, from the ranges of training; ValueError when there is none left."""
    seed = dagger_seed if options.policy else expert_seed
    return seed(options.seed, index)


def tasks_of(spec: EnvSpec, family: Family) -> list[Task]:
    """The tasks of a family, in the environment's order."""
    return [t for t in spec.tasks if parse_instruction(t.instruction).family is family]


def set_info(options: CollectOptions, spec: EnvSpec) -> SetInfo:
    """What the shards of this collection say about themselves."""
    return SetInfo(
        environment=spec.name,
        image_size=options.image_size,
        cameras=options.cameras,
        objects=OBJECTS,
        scale=tuple(scales(spec).tolist()),
        control_rate_hz=spec.control_rate_hz,
        instructions=INSTRUCTIONS,
        two_ways=options.two_ways,
    )


def totals(directory: Path) -> tuple[int, int]:
    """Demonstrations and frames of the shards that are there."""
    tracks = [t for path in sorted(directory.glob(f"*{SUFFIX}")) for t in read_tracks(path)]
    return len(tracks), sum(len(track) for track in tracks)


def _driver(options: CollectOptions, episode: Episode, environment: Environment) -> Driver:
    scale = scales(environment.spec)
    rng = np.random.default_rng([episode.seed, episode.initial_state])
    side = float(rng.choice((-1.0, 1.0))) if options.two_ways else 0.0
    expert = Expert(episode.instruction, side)
    if not options.policy:
        disturb = Disturbance(rng)

        def demonstrate(seen: SimObservation) -> tuple[Taught, Floats]:
            label = _taught(expert, seen, scale, side)
            return label, disturb(label.action)

        return demonstrate
    policy = shared_policy(options.policy)
    policy.reset(episode.instruction)
    delay = int(rng.integers(options.delays + 1)) if options.delays else 0
    late = Late(policy.act, delay, policy.interrupt)
    return _mixed(expert, side, late, scale, rng, options.expert_share)


def _mixed(
    expert: Expert,
    side: float,
    policy: Late,
    scale: Floats,
    rng: np.random.Generator,
    expert_share: float,
) -> Driver:
    """The policy acts, for stretches the expert does; the expert labels every step.

    Source: Ross et al. 2011 (DAgger), whose mixture is drawn per step; stretches go further.
    """
    expert_acts = False

    def drive(seen: SimObservation) -> tuple[Taught, Floats]:
        nonlocal expert_acts
        label = _taught(expert, seen, scale, side)
        if rng.uniform() < _SWITCH:
            expert_acts = bool(rng.uniform() < expert_share)
        policy.see(seen)
        if expert_acts:
            policy.interrupt()
        said = None if expert_acts else policy.act()
        return label, label.action if said is None else to_environment(said, scale)

    return drive


def _taught(expert: Expert, seen: SimObservation, scale: Floats, side: float) -> Taught:
    every = labels(seen.poses, scale, side)
    action = to_environment(expert.act(seen.poses), scale)
    every[INSTRUCTIONS.index(instruction_of(expert.goal))] = action
    return Taught(action, every)


def _claim(options: CollectOptions, directory: Path) -> None:
    """Write the options, or check that they are those of the shards already there."""
    path = directory / OPTIONS_FILE
    wanted = json.loads(json.dumps(asdict(options)))
    if not path.exists():
        path.write_text(json.dumps(wanted, indent=1) + "\n")
        return
    there = json.loads(path.read_text())
    new = {f.name: f.default for f in fields(CollectOptions)}  # of sets older than an option
    differing = sorted(n for n in wanted if wanted[n] != there.get(n, new[n]))
    if differing:
        said = ", ".join(f"{n} {there.get(n, new[n])}" for n in differing)
        raise UserError(f"{directory} holds a collection with {said}: take another directory")


def _path(directory: Path, number: int) -> Path:
    return directory / f"shard-{number:04d}{SUFFIX}"


@lru_cache(maxsize=1)
def _projection(size: int) -> Projection:
    return Projection(size)
