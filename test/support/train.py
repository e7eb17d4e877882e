"""Small data sets without a simulation, grey images whose brightness is the action; and trainings
on them.

A test file that imports this is skipped where h5py or torch is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("h5py", exc_type=ImportError)
torch = pytest.importorskip("torch", exc_type=ImportError)

from vla_ros.data.lerobot.dataset import DatasetRow, Info
from vla_ros.engine.families.random import build_tokenizer
from vla_ros.engine.io.config import ModelConfig
from vla_ros.engine.io.tokens import prompt_text
from vla_ros.sim.tasks import instruction_of, parse_instruction
from vla_ros_lab.train.batches import Batch, TreePrefixLayout
from vla_ros_lab.train.collect import INSTRUCTIONS
from vla_ros_lab.train.demonstrations import BODIES, Demonstration, SetInfo, Track, write_shard
from vla_ros_lab.train.network import Network
from vla_ros_lab.train.options import Machine, TrainOptions
from vla_ros_lab.train.run import Reporter, TrainResult, run
from vla_ros_lab.train.trainer import Progress
from vla_ros_lab.train.units import norm_stats

SIZE = 32
OBJECTS = ("blue_cube", "green_cube", "plate", "red_cube", "yellow_cube", "gripper")
SENTENCES = ("move the gripper above the red cube", "push the blue cube to the left")
INFO = SetInfo(
    "tabletop", SIZE, ("agentview",), OBJECTS, (0.05,) * 3 + (0.5,) * 3, 20.0, INSTRUCTIONS
)
STATS = norm_stats("tabletop", np.array(INFO.scale), 1, 1)
CPU = torch.device("cpu")
TOKENIZER = build_tokenizer()
#: the smallest training by the verb; --data, --out, --arch and --steps beside them
QUICK = ["--batch", "4", "--threads", "1", "--device", "cpu"]


def tokenize(text: str, delay: int | None = None) -> list[int]:
    """A small policy's prompt."""
    return list(TOKENIZER.encode(prompt_text("openvla", text, delay)).ids)


def recipe(data: Path | str, arch: str = "tiny", steps: int = 6, **more) -> TrainOptions:
    """A recipe of a few small steps."""
    return TrainOptions((str(data),), arch, steps, **{"batch": 4, "warmup": 2, **more})


def train(
    options: TrainOptions,
    out: Path,
    step: Callable[[Progress], object] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> TrainResult:
    """A whole run on the CPU, without a word."""
    return run(options, out, Machine(CPU), Reporter(step, lambda _: None), stop)


def demonstration(seed: int, length: int = 10, sentence: str = SENTENCES[0]) -> Demonstration:
    """Grey frames; how bright they are is the action along x, for other instructions against x.
    The fingers always move."""
    rng = np.random.default_rng(seed)
    grey = rng.uniform(0.1, 0.9, length)
    images = np.repeat(grey, SIZE * SIZE * 3).reshape(length, SIZE, SIZE, 3)
    actions = np.zeros((length, 7))
    actions[:, 0] = 2 * grey - 1
    actions[:, 6] = -1.0
    fingers = np.cumsum(np.full((length, 2), 0.002), axis=0)
    pixels = rng.uniform(0, SIZE, (length, len(OBJECTS), 2))
    goal = parse_instruction(sentence)
    labels = np.repeat(actions[:, None], len(INSTRUCTIONS), axis=1)
    labels[..., 0] *= -1
    labels[:, INSTRUCTIONS.index(instruction_of(goal))] = actions
    track = Track(
        task=goal.object,
        instruction=instruction_of(goal),
        seed=seed,
        initial_state=0,
        success=True,
        source="expert",
        actions=actions.astype(np.float32),
        labels=labels.astype(np.float32),
        executed=actions.astype(np.float32),
        ee_pos=np.zeros((length, 3), np.float32),
        gripper_states=fingers.astype(np.float32),
        poses=poses_on_a_table(rng, length),
        pixels={"agentview": pixels.astype(np.float32)},
    )
    return Demonstration(track, {"agentview": (255 * images).astype(np.uint8)})


def poses_on_a_table(rng: np.random.Generator, length: int) -> np.ndarray:
    """Everything upright somewhere on the table, the hand above it, pointing down."""
    poses = np.zeros((length, len(BODIES), 7), np.float32)
    poses[..., :2] = rng.uniform(-0.2, 0.2, (length, len(BODIES), 2))
    poses[..., 2], poses[..., 6] = 0.02, 1.0
    hand, left, right = (BODIES.index(n) for n in ("gripper", "finger_left", "finger_right"))
    poses[:, hand, 2], poses[:, hand, 3:] = rng.uniform(0.02, 0.2, length), (1, 0, 0, 0)
    poses[:, left] = poses[:, right] = poses[:, hand]
    poses[:, left, 1] += 0.08
    return poses


def data_set(directory: Path, shards: int = 2, info: SetInfo = INFO) -> Path:
    """Shards of two demonstrations each, one an instruction."""
    directory.mkdir(parents=True)
    for number in range(shards):
        pair = [demonstration(2 * number + n, sentence=SENTENCES[n]) for n in range(2)]
        write_shard(directory / f"shard-{number:04d}.hdf5", info, pair)
    return directory


def shard_of(directory: Path, *demonstrations: Demonstration, info: SetInfo = INFO) -> Path:
    """A data set of one shard."""
    directory.mkdir(exist_ok=True)
    write_shard(directory / "shard-0000.hdf5", info, demonstrations)
    return directory


def changed(one: Demonstration, **parts) -> Demonstration:
    """A demonstration with another track."""
    return replace(one, track=replace(one.track, **parts))


def sequences(batch: Batch, config: ModelConfig) -> Iterator[list[tuple[list[int], list[int]]]]:
    """The instructions of each image of a batch: the prompt, and the answer but its last token."""
    layout, common = batch.layout, batch.layout.common - config.patches
    count = batch.rows.shape[-1]
    for ids, rows in zip(batch.ids.tolist(), batch.rows.tolist(), strict=True):
        found = []
        for n, own in enumerate(rows):
            assert own == list(range(own[0], own[0] + count))
            first = common + n * layout.length
            end = own[0] - config.patches + 1
            found.append((ids[:common] + ids[first:end], ids[end : end + count - 1]))
        yield found


def greedy(network: Network, pixels: torch.Tensor, prompt: list[int], count: int) -> list[int]:
    """The ``count`` most likely tokens for one frame [images, 3, s, s], one at a time."""
    tokens: list[int] = []
    for _ in range(count):
        ids = torch.tensor([[*prompt, *tokens]])
        layout = TreePrefixLayout(ids.shape[1] + network.config.patches)
        with torch.no_grad():
            logits, _, _ = network(pixels[None], ids, torch.tensor([[layout.common - 1]]), layout)
        tokens.append(int(logits[0, 0].argmax()))
    return tokens


class MemoryReader:
    """In place of a data set's Reader: rows in memory."""

    def __init__(self, info: Info, rows: Sequence[DatasetRow]) -> None:
        self.info, self._rows = info, rows

    def __call__(self, python: str, folder: Path) -> MemoryReader:
        return self

    def __enter__(self) -> MemoryReader:
        return self

    def __exit__(self, *raised: object) -> None: ...

    def rows(self, names: Sequence[str]) -> Iterator[DatasetRow]:
        for row in self._rows:
            there = row.arrays()
            images = {n: there[n] for n in names if self.info.features[n].image}
            numbers = {n: there[n] for n in names if n not in images}
            yield DatasetRow(row.episode, row.task, images, numbers)
