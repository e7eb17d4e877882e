"""A recursive head learns to draft on from what it drafted, and is judged by other episodes."""

from __future__ import annotations

import pytest
import torch

from vla_ros.core.errors import UserError
from vla_ros.engine.decoding.draft_heads import LEVELS
from vla_ros.engine.io.tokens import ActionTokens
from vla_ros_lab.train.head.features import HeadEpisode
from vla_ros_lab.train.head.options import HeadOptions
from vla_ros_lab.train.head.target import Target
from vla_ros_lab.train.head.training import train_head

STEPS, DIM, BINS, FIRST = 3, 2, 16, 100
COUNT = STEPS * DIM
ACTIONS = ActionTokens(FIRST + BINS, BINS)
TABLE = torch.nn.functional.one_hot(torch.arange(FIRST + BINS) % 16, 16).float()


def spoken(frames: int, seed: int) -> HeadEpisode:
    """Every token follows from the one before it, which the states do not show: what they show is
    how far it goes on. What the last chunk said tells nothing."""
    draw = torch.Generator().manual_seed(seed)
    stride = torch.randint(1, 4, (frames, 1), generator=draw)
    start = torch.randint(0, BINS, (frames, 1), generator=draw)
    bins = (start + stride * torch.arange(COUNT)) % BINS
    taps = torch.zeros(frames, COUNT, 3 * 16)
    taps[:, :, :16] = torch.nn.functional.one_hot(stride, 16)
    targets = torch.nn.functional.one_hot(bins, BINS)
    return HeadEpisode(bins + FIRST, taps.bfloat16(), targets.bfloat16())


def test_it_learns_to_go_on_from_its_own_states() -> None:
    learn, held_out = [spoken(40, n) for n in range(6)], [spoken(20, 100 + n) for n in range(4)]
    target = Target(ACTIONS, lambda t: TABLE[t], (0, 1, 2), 16, STEPS, torch.eye(BINS, 16))
    options = HeadOptions(
        steps=80, batch=32, learning_rate=1e-2, warmup=5, check_every=40, width=32, unroll=3
    )
    steps = []
    trained = train_head(options, target, learn, held_out, torch.device("cpu"), steps.append)
    assert [s.number for s in steps if s.judged] == [40, 80]
    judged = trained.judged
    assert len(judged.first) == len(judged.four) == COUNT - 2
    assert judged.first[0] > 0.9
    assert judged.first[2] > 0.7  # two tokens behind the last state of the target
    assert judged.expected is not None
    assert judged.expected < 2.6  # a prefill, then nearly all that is left at once
    assert judged.passes < trained.temporal.passes - 1.0
    assert trained.head.chances.shape == (COUNT - 2, LEVELS, 16)
    later = trained.head.chances[-1]  # all but two known: one level is left
    assert float(later[1:].sum()) == 0.0


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UserError, match="unroll"):
        HeadOptions(unroll=0)
