"""What a draft head offered on rollouts of its target: those kept by its training, or played."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vla_ros.console.progress import Progress
from vla_ros.errors import UserError

if TYPE_CHECKING:
    from vla_ros.engine.trees.rounds import Shown
    from vla_ros.train.head.features import Episode


@dataclass(frozen=True, slots=True)
class Offered:
    """Frames to fit on and to judge by, and of how many episodes each; where they are from."""

    fitted_on: list[Shown]
    others: list[Shown]
    episodes: tuple[int, int]
    source: str


def head_folder(args: argparse.Namespace) -> Path:
    """Of the head that is meant. UserError."""
    from vla_ros.engine.checkpoints.draft_head import find_head
    from vla_ros.engine.checkpoints.openvla import resolve
    from vla_ros.engine.errors import CheckpointError

    try:
        return find_head(resolve(args.checkpoint), args.draft_checkpoint or None)
    except CheckpointError as error:
        raise UserError(str(error)) from error


def offered(args: argparse.Namespace, executed: int) -> Offered:
    """Every second episode to fit on. UserError: no recursive head, or rollouts of another."""
    try:
        from vla_ros.engine import Engine, EngineOptions, load_engine
        from vla_ros.engine.checkpoints.draft_head import load_head
        from vla_ros.engine.recursive_head import RecursiveHead
        from vla_ros.train.head.replayed import replayed
        from vla_ros.train.head.rollouts import RolloutOptions
        from vla_ros.train.head.run import target_of
    except ImportError as missing:
        raise UserError(f"{missing}; `vla-ros doctor` says what to install") from missing

    folder = head_folder(args)
    try:
        engine = load_engine(
            EngineOptions(args.checkpoint, device=args.device, dtype=args.dtype,
                          unnorm_key=args.unnorm_key or None)
        )  # fmt: skip
        assert isinstance(engine, Engine)  # the verb has looked
        model = engine.model
        import torch

        head = load_head(folder, model.config, engine.info.max_tokens, torch.device("cpu"),
                         torch.float32)  # fmt: skip
    except ValueError as error:
        raise UserError(str(error)) from error
    if not isinstance(head, RecursiveHead):
        raise UserError(f"{folder} is a one-shot head: heterospec is for recursive ones")
    options = RolloutOptions(engine.info.checkpoint_sha256, 0, args.episodes, executed)
    if args.rollouts:
        episodes, source = (
            _kept(args.rollouts, options),
            "rollouts of the head's training, held out",
        )
    else:
        episodes, source = _played(engine, options), f"{args.episodes} held-out episodes a task"
    target = target_of(engine)
    parts = [
        replayed(head, some, target.embed, target.actions, target.steps)
        for some in (episodes[1::2], episodes[0::2])
        if some
    ]
    if len(parts) < 2:
        raise UserError("give 2 episodes or more")
    return Offered(parts[0], parts[1], (len(episodes[1::2]), len(episodes[0::2])), source)


def _kept(folder: Path, options: object) -> list[Episode]:
    import json

    from vla_ros.train.head.features import read_episode
    from vla_ros.train.head.rollouts import JUDGE, OPTIONS_FILE, RolloutOptions

    assert isinstance(options, RolloutOptions)
    path = folder / OPTIONS_FILE
    if not path.is_file():
        raise UserError(
            f"{folder} holds no rollouts: give the folder rollouts of a head's training"
        )
    if json.loads(path.read_text()).get("target") != options.target:
        raise UserError(f"{folder} holds rollouts of another checkpoint")
    return [read_episode(one) for one in sorted(folder.glob(f"{JUDGE}-*.safetensors"))]


def _played(engine: object, options: object) -> list[Episode]:
    from vla_ros.engine import Engine
    from vla_ros.timing import SystemClock
    from vla_ros.train.data.rollout import shared_environment
    from vla_ros.train.head.rollouts import RolloutOptions, record

    assert isinstance(engine, Engine)
    assert isinstance(options, RolloutOptions)
    environment = shared_environment(engine.model.config.images == 2)
    with tempfile.TemporaryDirectory() as scratch, Progress() as progress:
        for made in record(options, Path(scratch), engine, environment, SystemClock()):
            progress.update("play", "episodes", made.done, made.total)
        return _kept(Path(scratch), options)
