"""The target is asked about frames that somebody recorded, and what a draft head needs is kept.

A policy in LeRobot's layout was trained on some robot's own cameras and state, which the tabletop
has not: so it answers the frames of bags and LeRobotDatasets, one row an action, and moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from vla_ros.core.clock import Clock
from vla_ros.core.errors import UserError
from vla_ros.core.types import Executing, Observation, Timeline
from vla_ros.data.bags import Bag
from vla_ros.data.lerobot.dataset import (
    STATE,
    DatasetRow,
    Feature,
    Info,
    Reader,
    is_dataset,
    python_of,
)
from vla_ros.data.lerobot.from_bags import BagOptions, BagRows
from vla_ros.engine.engine import Engine
from vla_ros.engine.errors import InvalidAction
from vla_ros.sim.env import AGENTVIEW, WRIST
from vla_ros_lab.train.head.features import TargetReader, write_episode
from vla_ros_lab.train.head.rollouts import (
    JUDGE,
    LEARN,
    Recorded,
    RolloutOptions,
    claim,
    path_of,
)
from vla_ros_lab.train.imports import cameras_of, is_bag

HELD_OUT = 10  # one of so many episodes is to judge by, and two at least


@dataclass(frozen=True, slots=True)
class Recording:
    """A bag or a data set that is open: the features of our cameras, and the rows."""

    cameras: dict[str, str]
    episodes: int
    rows: Iterator[DatasetRow]


def open_recording(path: Path, state: bool, stack: ExitStack) -> Recording:
    """UserError, BagError: it is neither, cannot be read, or has no images or no ``state``."""
    if is_dataset(path):
        reader = stack.enter_context(Reader(python_of(), path))
        info = reader.info
    elif is_bag(path):
        found = BagRows(stack.enter_context(Bag(path)), BagOptions())
        features = {
            name: Feature(name, one["dtype"], tuple(one["shape"]), ())
            for name, one in found.columns().features(videos=False).items()
        }
        info = Info(found.fps, found.episodes, len(found), features, {})
    else:
        raise UserError(f"{path} is no bag and no LeRobotDataset: the target answers its frames")
    cameras = cameras_of(info, {}, path)
    if state and STATE not in info.features:
        raise UserError(f"{path} has no {STATE}, which the target takes")
    names = (*cameras.values(), *([STATE] if state else []))
    if is_dataset(path):
        rows = reader.rows(names)
    else:
        rows = (replace(row, images=row.arrays()) for row in found.rows())
    return Recording(cameras, info.episodes, rows)


def answer(
    options: RolloutOptions,
    directory: Path,
    paths: Sequence[Path],
    engine: Engine,
    clock: Clock,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Recorded]:
    """Ask the target about every ``options.executed``-th row, one file an episode as rollouts have;
    what is there is not asked again. UserError: less than three episodes."""
    claim(options, directory)
    with ExitStack() as stack:
        recordings = [open_recording(p, bool(engine.info.state_dim), stack) for p in paths]
        total = sum(one.episodes for one in recordings)
        if total < 3:
            raise UserError(
                f"--data has {total} episodes: a draft head needs one to learn from and two to"
                " judge by"
            )
        judged = set(np.linspace(0, total - 1, max(2, total // HELD_OUT)).round().astype(int))
        seer, number = TargetReader(engine), 0
        for one in recordings:
            for _, rows in groupby(one.rows, lambda row: row.episode):
                path = path_of(directory, JUDGE if number in judged else LEARN, number)
                if not path.exists():
                    _answer(engine, seer, one.cameras, list(rows)[:: options.executed],
                            options.executed, clock)  # fmt: skip
                    if len(seer):
                        write_episode(path, seer.take())
                number += 1
                yield Recorded(number, total, None)
                if stop():
                    return


def _answer(
    engine: Engine,
    seer: TargetReader,
    cameras: dict[str, str],
    rows: Sequence[DatasetRow],
    executed: int,
    clock: Clock,
) -> None:
    """One episode. What the target says that is no action is left out."""
    engine.reset(rows[0].task)
    for stamp, row in enumerate(rows):
        now = clock.steady_ns()
        state = row.numbers.get(STATE)
        wrist = row.images[cameras[WRIST]] if WRIST in cameras else None
        observation = Observation(
            stamp, stamp, now, row.images[cameras[AGENTVIEW]], wrist,
            None if state is None else state.astype(np.float64),
            executing=Executing(stamp - 1, executed, 0) if stamp else None,
        )  # fmt: skip
        if not stamp:
            try:
                engine.robot.prepare(observation)
            except InvalidAction as error:  # a camera or the state is not what it takes
                raise UserError(f"{error}: another --data") from None
        with suppress(InvalidAction):
            seer.step(observation, Timeline(now).mark("queue", now), clock)
