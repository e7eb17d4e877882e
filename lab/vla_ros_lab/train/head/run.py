"""A whole run: rollouts of the target, training, the head where the target finds it.

pi0-FAST does not act: it answers recorded frames (:mod:`.recorded`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from vla_ros.core.clock import SystemClock
from vla_ros.core.errors import UserError
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.decoding.draft_head_folder import save_head
from vla_ros.engine.engine import Engine
from vla_ros.engine.layers.linear import LowBit, plain, rows_of
from vla_ros.engine.models.language.base import tap_layers
from vla_ros.engine.options import FAST, FLOW
from vla_ros_lab.train.collect import shared_environment
from vla_ros_lab.train.head.features import HeadEpisode, padded, read_episode
from vla_ros_lab.train.head.judge import ends_of
from vla_ros_lab.train.head.options import HeadOptions
from vla_ros_lab.train.head.recorded import answer
from vla_ros_lab.train.head.rollouts import JUDGE, LEARN, Recorded, RolloutOptions, path_of, record
from vla_ros_lab.train.head.target import Target
from vla_ros_lab.train.head.training import Step, TrainedHead, train_head
from vla_ros_lab.train.options import HeadRun

ROLLOUTS, HEAD = "rollouts", "draft_head"  # folders of a run
TRAINING = "training.json"


@dataclass(frozen=True, slots=True)
class Reporter:
    """Progress: an episode that was recorded, a step of the training."""

    recorded: Callable[[Recorded], None]
    step: Callable[[Step], None]


def run(
    wanted: HeadRun,
    options: HeadOptions,
    directory: Path,
    report: Reporter,
    stop: Callable[[], bool] = lambda: False,
) -> TrainedHead | None:
    """Record what is not there yet, train, and write ``directory/draft_head``. None: told to stop
    before there was anything to train on. UserError: a target that has no use for a head."""
    engine = load_engine(
        EngineOptions(
            wanted.target,
            device=wanted.device,
            dtype=wanted.dtype,
            unnorm_key=wanted.unnorm_key,
            state_in_prompt=wanted.state_in_prompt,
        )
    )
    fast = engine.policy.group == FAST
    if engine.policy.group == FLOW:
        raise UserError(f"{wanted.target} is a flow policy: draft heads are for token policies")
    if engine.info.decoding == "parallel":
        raise UserError(f"{wanted.target} says all its actions in one pass: nothing to draft")
    if fast != bool(wanted.data):
        raise UserError(
            f"{wanted.target} says FAST tokens, for a robot of its own: give --data, bags or"
            " LeRobotDatasets whose frames it is to answer"
            if fast
            else "--head takes no --data: it learns from the target's own rollouts"
        )
    chunk = engine.info.chunk_length
    executed = wanted.executed or max(chunk // 2, 1)
    if executed > chunk:
        raise UserError(f"{wanted.target} gives {chunk} actions: {executed} cannot be executed")
    data = tuple(str(path.absolute()) for path in wanted.data)
    rollouts = RolloutOptions(
        engine.info.checkpoint_sha256, wanted.learn, wanted.judge, executed, data
    )
    place = directory / ROLLOUTS
    most: tuple[int | None, int | None] = None, None
    if fast:
        made_by = answer(rollouts, place, wanted.data, engine, SystemClock(), stop)
    else:
        environment = shared_environment(engine.model.config.images == 2)
        made_by = record(rollouts, place, engine, environment, SystemClock(), stop)
        tasks = len(environment.spec.tasks)
        most = wanted.learn * tasks, wanted.judge * tasks
    done = False
    for made in made_by:
        report.recorded(made)
        done = made.done == made.total
    if not done:
        return None
    target = target_of(engine, executed)
    learn, judge = _read(place, LEARN, most[0]), _read(place, JUDGE, most[1])
    if (ends := ends_of(target.actions)) is not None:
        both = padded([*learn, *judge], ends)
        learn, judge = both[: len(learn)], both[len(learn) :]
    device = torch.device(wanted.device)
    trained = train_head(options, target, learn, judge, device, report.step, stop)
    _write(directory / HEAD, trained, wanted, options, rollouts.target, learn)
    return trained


def target_of(engine: Engine, executed: int = 1) -> Target:
    """A token policy as its draft head sees it."""
    text = engine.model.text
    # A copy that gradients may meet: what is made in inference mode they may not.
    table = engine.model.decoder.embed(torch.arange(text.vocab_size, device=engine.model.device))
    table = table.detach().float().cpu()

    def embed(tokens: torch.Tensor) -> torch.Tensor:
        return table[tokens.cpu()].to(tokens.device)

    decoder = engine.model.decoder
    rows = rows_of(decoder.head, engine.model.actions.window)
    return Target(
        engine.model.actions, embed, tap_layers(text.layers), text.hidden_size,
        engine.info.chunk_length,
        None if isinstance(rows, LowBit) else plain(rows).detach().float().cpu(), executed,
    )  # fmt: skip


def _read(directory: Path, part: str, count: int | None) -> list[HeadEpisode]:
    """So many episodes; None: all that are there."""
    if count is None:
        return [read_episode(path) for path in sorted(directory.glob(f"{part}-*.safetensors"))]
    return [read_episode(path_of(directory, part, number)) for number in range(count)]


def _write(
    directory: Path,
    trained: TrainedHead,
    wanted: HeadRun,
    options: HeadOptions,
    target: str,
    learn: list[HeadEpisode],
) -> None:
    save_head(directory, trained.head)
    told = {
        "target": wanted.target,
        "target_sha256": target,
        "parameters": sum(p.numel() for p in trained.head.parameters()),
        "episodes": len(learn),
        "frames": sum(map(len, learn)),
        "step": trained.step,
        "held_out": {"head": asdict(trained.judged), "temporal_tree": asdict(trained.temporal)},
        "options": asdict(options),
    }
    (directory / TRAINING).write_text(json.dumps(told, indent=1) + "\n")
