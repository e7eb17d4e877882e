from dataclasses import replace

import numpy as np
import pytest
import torch

from support.train import INFO, OBJECTS, SENTENCES, SIZE, data_set, demonstration, shard_of
from vla_ros.core.errors import UserError
from vla_ros.sim.tasks import parse_instruction
from vla_ros_lab.train.collect import INSTRUCTIONS
from vla_ros_lab.train.demonstrations import write_shard
from vla_ros_lab.train.frames import load_frames, worth_training


def waiting_track():
    """Moves, tells the fingers to close, waits while they close, waits for nothing, moves."""
    track = demonstration(0, length=8).track
    actions = np.zeros((8, 7), np.float32)
    actions[[0, 1, 7], 2] = 0.5
    actions[:, 6] = [-1, -1, 1, 1, 1, 1, 1, 1]
    fingers = np.array([40, 40, 40, 38, 30, 21, 21, 21])[:, None] / 1000 * np.ones(2)
    return replace(
        track, actions=actions, executed=actions.copy(), gripper_states=fingers.astype(np.float32)
    )


def test_waiting_without_a_visible_reason_is_not_taught():
    kept = worth_training(waiting_track())
    #           moves        closes  closing           stopped  moves
    assert kept.tolist() == [True, True, True, True, True, True, False, True]


def test_a_wait_is_kept_while_the_gripper_has_not_been_obeyed():
    track = waiting_track()
    track.executed[5, 6] = -1.0  # the policy had opened it again
    assert worth_training(track)[6]


def test_frames_of_all_shards_in_order(tmp_path):
    frames = load_frames([data_set(tmp_path / "set", shards=3)], SIZE, 1)
    assert len(frames) == 60 and frames.demonstrations == 6
    assert frames.images.shape == (60, 1, SIZE, SIZE, 3)
    assert frames.pixels.shape == (60, 1, len(OBJECTS), 2)
    assert frames.goals == tuple(map(parse_instruction, INSTRUCTIONS))
    first, second = (frames.goals.index(parse_instruction(text)) for text in SENTENCES)
    assert frames.goal.tolist() == ([first] * 10 + [second] * 10) * 3
    brightness = frames.images.float().mean((1, 2, 3, 4)) / 255
    own = frames.values[torch.arange(60), frames.goal].float()
    assert torch.allclose(2 * brightness - 1, own[:, 0], atol=0.05)
    assert (own[:, 6] == 1.0).all()  # open
    other = frames.values[torch.arange(60), (frames.goal + 1) % len(frames.goals)].float()
    assert torch.allclose(other[:, 0], -own[:, 0])


def test_another_size_moves_pixels_along(tmp_path):
    path = data_set(tmp_path / "set", shards=1)
    whole, half = load_frames([path], SIZE, 1), load_frames([path], SIZE // 2, 1)
    assert half.images.shape[2] == SIZE // 2
    assert torch.allclose(half.pixels * 2, whole.pixels)


def test_sets_that_do_not_fit_together_are_refused(tmp_path):
    first = data_set(tmp_path / "first", shards=1)
    second = data_set(tmp_path / "second", 1, replace(INFO, scale=(0.1,) * 6))
    with pytest.raises(UserError, match="does not fit"):
        load_frames([first, second], SIZE, 1)


def test_a_model_of_two_images_needs_both(tmp_path):
    with pytest.raises(UserError, match="--wrist"):
        load_frames([data_set(tmp_path / "set", shards=1)], SIZE, 2)


def test_demonstrations_without_any_use_are_no_trouble(tmp_path):
    path = data_set(tmp_path / "set", shards=1)
    write_shard(path / "shard-0001.hdf5", INFO, [])
    assert len(load_frames([path], SIZE, 1)) == 20
    with pytest.raises(UserError, match="has no demonstration"):
        load_frames([shard_of(tmp_path / "empty")], SIZE, 1)


def test_the_images_before_a_frame_are_there_too(tmp_path):
    """Also of a moment that is not worth training; never those of another episode."""
    two = [replace(demonstration(n, length=8), track=waiting_track()) for n in range(2)]
    shard_of(tmp_path / "set", *two)
    plain = load_frames([tmp_path / "set"], SIZE, 1)
    assert len(plain) == len(plain.images) == 14 and plain.image_index[:, 0].tolist() == list(
        range(14)
    )
    frames = load_frames([tmp_path / "set"], SIZE, 1, delays=3)
    assert len(frames) == 14 and len(frames.images) == len(frames.pixels) == 16
    moments = [0, 1, 2, 3, 4, 5, 7]
    assert frames.longest_delay[:, 0].tolist() == moments * 2
    for row, moment in enumerate(moments * 2):
        first = 8 * (row >= 7)
        assert frames.image_index[row].tolist() == [first + max(moment - k, 0) for k in range(4)]
    assert torch.equal(frames.images[frames.image_index[:, 0]], plain.images)
    assert torch.equal(frames.pixels[frames.image_index[:, 0]], plain.pixels)
    assert torch.equal(frames.values, plain.values)


def test_no_older_image_is_paired_with_what_a_slip_of_the_policy_brought_about(tmp_path):
    """The cube was in the hand, the policy opened, and what the teacher did about that was learned
    as what comes after such an image: policies let go of cubes on their way."""
    track = demonstration(0, length=8).track
    track.labels[:, :2, 6], track.executed[:, 6] = 1.0, 1.0
    track.executed[3, 6] = -1.0
    slipped = replace(demonstration(0, length=8), track=track)
    frames = load_frames([shard_of(tmp_path / "set", slipped)], SIZE, 1, delays=8)
    assert (
        frames.longest_delay[:, 0].tolist()
        == frames.longest_delay[:, 1].tolist()
        == [0, 1, 2, 3, 0, 1, 2, 3]
    )
    assert frames.longest_delay[:, 2].tolist() == list(range(8))  # its teacher would open too
    assert frames.image_index[7, :5].tolist() == [7, 6, 5, 4, 3]
