"""`vla-ros collect --suite`: a demonstration that training reads, of a state evaluation leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("h5py")

from vla_ros_lab.train.collect_libero import IMAGE_EVERY
from vla_ros_lab.train.demonstrations import read_images, read_info, read_tracks, shards
from vla_ros_lab.train.frames import load_frames


@pytest.mark.long
def test_a_demonstration_can_be_trained_on(tmp_path: Path) -> None:
    out = tmp_path / "set"
    words = ("collect", "--out", out, "--suite", "libero_object", "--demos", 1, "--image-size", 64)
    command = [sys.executable, "-m", "vla_ros", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "1 demonstrations" in done.stdout, done.stderr
    (shard,) = shards(out)
    info, (track,) = read_info(shard), read_tracks(shard)
    assert info.own_sentence and len(info.instructions) == 10
    assert track.success and track.task == "libero_object/0" and track.initial_state == 10
    pictured = track.pixels["agentview"][::IMAGE_EVERY]
    pixels = dict(zip(info.objects, pictured.transpose(1, 0, 2), strict=True))
    soup = pixels["alphabet_soup_1"]
    assert ((soup >= 0) & (soup < 64)).all()
    assert np.ptp(soup[:, 0]) > 10  # it is carried from one side to the other
    # In the basket, or just above it: the last image may be three steps before the end.
    right, down = soup[-1] - pixels["basket_1"][-1]
    assert abs(right) < 10 and -20 < down < 10
    assert np.isnan(track.pixels["agentview"][1]).all()  # not rendered
    assert np.isnan(pixels["plate_1"]).all()
    (images,) = read_images(shard, "agentview")
    assert images.shape == (len(track), 64, 64, 3)
    frames = load_frames([out], 64, images=1)
    assert 0.5 * len(pictured) < len(frames) <= len(pictured)
