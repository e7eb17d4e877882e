"""A whole run: demonstrations encoded by the policy, own episodes, training, the folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from vla_ros.core.console import Report
from vla_ros.core.errors import UserError
from vla_ros.data.episodes.plan import dagger_seed
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.engine import Engine
from vla_ros.engine.load import corrector_for
from vla_ros.engine.models.corrector import FOLDER, Corrector, CorrectorConfig, save_corrector
from vla_ros.runtime.control.observation import LIBERO_STATE
from vla_ros.sim.env import Environment
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.tasks import parse_instruction
from vla_ros_lab.train.collect import RENDER_SIZE, CollectedEpisode, play
from vla_ros_lab.train.corrector.examples import (
    Example,
    LateActor,
    Reader,
    of_demonstrations,
)
from vla_ros_lab.train.corrector.training import CorrectorOptions, train_corrector
from vla_ros_lab.train.demonstrations import digest, shards
from vla_ros_lab.train.frames import wordings
from vla_ros_lab.train.units import scales

TRAINING = "training.json"


@dataclass(frozen=True, slots=True)
class CorrectorResult:
    """Result of a run: the corrector's folder, its parameters, and of each round how many of its
    episodes were solved."""

    folder: Path
    parameters: int
    solved: tuple[int, ...]


def run(
    target: str,
    data: tuple[Path, ...],
    options: CorrectorOptions,
    directory: Path,
    report: Report,
    stop: Callable[[], bool] = lambda: False,
) -> CorrectorResult:
    """Train a corrector for ``target`` and write ``directory/corrector``. In one sitting: where
    ``stop`` ends it, what was learned until then is written. UserError: a target that can have
    none."""
    engine = load_engine(EngineOptions(target))
    config = _config(engine, target)
    environment = EnvConfig("tabletop", RENDER_SIZE, wrist=False, nudge_m=options.nudge_m)()
    try:
        reader = Reader(engine, scales(environment.spec))
        examples: list[Example] = []
        for found in of_demonstrations(data, reader, config.ahead):
            examples += found
            report(f"{len(examples)} frames of demonstrations", 0, 0)
            if stop():
                break
        own, corrector, solved = len(examples), None, []
        for number in range(options.rounds + 1):
            if number and not stop():
                assert corrector is not None
                found, good = _round(number, options, environment, reader, corrector, report)
                examples += found
                solved.append(good)

            def trained(step: int, loss: float) -> None:
                report(f"loss {loss:.3f}", step, options.steps)

            corrector = train_corrector(config, options, examples, own, corrector, trained, stop)
    finally:
        environment.close()
    assert corrector is not None
    save_corrector(directory, corrector)
    count = sum(p.numel() for p in corrector.parameters())
    record = {
        "target": target,
        "target_sha256": engine.info.checkpoint_sha256,
        "data_sha256": digest([path for one in data for path in shards(one)]),
        "examples": len(examples),
        "parameters": count,
        "solved": solved,
        "options": asdict(options),
    }
    (directory / FOLDER / TRAINING).write_text(json.dumps(record, indent=1) + "\n")
    return CorrectorResult(directory / FOLDER, count, tuple(solved))


def _config(engine: Engine, target: str) -> CorrectorConfig:
    config = corrector_for(engine.policy)
    if config is None or config.state != LIBERO_STATE:
        raise UserError(f"{target} is no flow policy of the tabletop: correctors are for these")
    return config


def _round(
    number: int,
    options: CorrectorOptions,
    environment: Environment,
    reader: Reader,
    corrector: Corrector,
    report: Report,
) -> tuple[list[Example], int]:
    """Episodes of round ``number`` from 1, and how many of them were solved."""
    found: list[Example] = []
    solved = 0
    spec, scale = environment.spec, scales(environment.spec)
    for index in range(options.round_episodes):
        task = spec.tasks[index % len(spec.tasks)]
        rng = np.random.default_rng([options.seed, number, index])
        worded = wordings(parse_instruction(task.instruction))
        delay = int(rng.choice(options.delays))
        instruction, most = worded[int(rng.integers(len(worded)))], task.max_steps
        actor = LateActor(
            reader, corrector, instruction, delay, max(delay, options.executed),
            corrector.config.ahead, options.expert_share, rng, number * 1_000_000 + index,
        )  # fmt: skip
        episode = CollectedEpisode(
            task.name, instruction, index % task.initial_states, dagger_seed(number, index), most
        )
        solved += play(environment, episode, actor.drive(scale))
        found += actor.found
        report(f"round {number}: {solved} solved", index + 1, options.round_episodes)
    return found, solved
