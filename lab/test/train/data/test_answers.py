"""What an instruction is answered with, where the expert has two ways to it."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", exc_type=ImportError)
pytest.importorskip("h5py", exc_type=ImportError)

import torch

from support.train import INFO
from vla_ros.sim.expert import HOME
from vla_ros.sim.tasks import parse_instruction
from vla_ros_lab.train.batches import chunks_ahead
from vla_ros_lab.train.demonstrations import BODIES

GOAL = parse_instruction("move the gripper above the red cube")
COUNT = 40


def frames(two_ways, aside=0.0):
    """The hand at home, or so far to the left of the way, the cube ahead of it."""
    poses = np.zeros((COUNT, len(BODIES), 7), np.float32)
    poses[..., 6] = 1.0
    hand, cube = BODIES.index("gripper"), BODIES.index("red_cube")
    poses[:, hand, :3] = HOME[0] + 0.02 * bool(aside), HOME[1] + aside, 0.15
    poses[:, hand, 3:] = 1, 0, 0, 0
    poses[:, cube, :3] = HOME[0] + 0.2, HOME[1], 0.02
    return SimpleNamespace(
        poses=torch.from_numpy(poses), before=torch.zeros(COUNT, 2, 7), goals=[GOAL],
        info=replace(INFO, two_ways=two_ways),
    )  # fmt: skip


def sides(found):
    """Which way each chunk goes at first: -1, 0 or 1, along y."""
    return set(found[:, 0, 0, 1].round(decimals=3).sign().int().tolist())


def chunks(of, seed=1):
    draw = torch.Generator().manual_seed(seed)
    every = torch.arange(COUNT)
    return chunks_ahead(of, every, torch.zeros(COUNT, 1, dtype=torch.long), 8, draw)


def test_chance_tells_the_way_where_nothing_else_does():
    found = chunks(frames(two_ways=True))
    assert found.shape == (COUNT, 1, 8, 7)
    assert sides(found) == {-1, 1}
    assert torch.equal(found, chunks(frames(two_ways=True))), "and the seed tells chance"
    assert not torch.equal(found, chunks(frames(two_ways=True), seed=2))


def test_a_way_that_was_taken_is_gone_on_with():
    found = chunks(frames(two_ways=True, aside=0.02))
    assert torch.equal(found, found[:1].expand_as(found))
    assert sides(found) == {1}


def test_an_expert_of_one_way_goes_straight():
    found = chunks(frames(two_ways=False))
    assert sides(found) == {0}
