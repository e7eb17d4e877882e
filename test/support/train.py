"""Small data sets without a simulation: grey images whose brightness says the action.

A test file that imports this is skipped where h5py or torch is missing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("h5py", exc_type=ImportError)
pytest.importorskip("torch", exc_type=ImportError)

from vla_ros.sim.tasks import instruction_of, parse_instruction
from vla_ros_lab.train.collect import INSTRUCTIONS
from vla_ros_lab.train.demonstrations import BODIES, Demonstration, SetInfo, Track, write_shard

SIZE = 32
OBJECTS = ("blue_cube", "green_cube", "plate", "red_cube", "yellow_cube", "gripper")
SENTENCES = ("move the gripper above the red cube", "push the blue cube to the left")
INFO = SetInfo(
    "tabletop", SIZE, ("agentview",), OBJECTS, (0.05,) * 3 + (0.5,) * 3, 20.0, INSTRUCTIONS
)


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
