import json

import numpy as np
import pytest

h5py = pytest.importorskip("h5py", exc_type=ImportError)

from support.train import INFO, demonstration
from vla_ros.core.errors import UserError
from vla_ros_lab.train.demonstrations import (
    digest,
    read_images,
    read_info,
    read_tracks,
    shards,
    write_shard,
)


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "shard-0000.hdf5"
    pair = [demonstration(0), demonstration(1, length=7)]
    write_shard(path, INFO, pair)
    return path, pair


def test_what_was_written_is_read(written):
    path, pair = written
    assert read_info(path) == INFO
    for track, original in zip(read_tracks(path), pair, strict=True):
        assert (track.task, track.instruction, track.seed) == (
            original.track.task,
            original.track.instruction,
            original.track.seed,
        )
        for name in ("actions", "executed", "ee_pos", "gripper_states"):
            assert np.array_equal(getattr(track, name), getattr(original.track, name))
        assert np.array_equal(track.pixels["agentview"], original.track.pixels["agentview"])
    for frames, original in zip(read_images(path, "agentview"), pair, strict=True):
        assert np.abs(frames.astype(int) - original.images["agentview"]).max() < 8


def test_the_layout_is_robomimic_s(written):
    path, _ = written
    with h5py.File(path) as file:
        data = file["data"]
        assert data.attrs["total"] == 17
        assert json.loads(data.attrs["env_args"])["environment"] == "tabletop"
        assert data["demo_1"].attrs["num_samples"] == 7
        assert data["demo_1/actions"].shape == (7, 7)
        assert "obs/agentview" in data["demo_1"]


def test_a_shard_that_was_cut_short_is_none(written):
    path, _ = written
    scratch = path.with_suffix(".99.tmp")
    scratch.write_bytes(path.read_bytes()[:500])
    assert shards(path.parent) == [path]


def test_an_interrupted_write_leaves_the_old_shard(written):
    path, pair = written
    before = path.read_bytes()

    def broken():
        yield pair[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shard(path, INFO, broken())
    assert path.read_bytes() == before


def test_the_digest_tells_labels_apart(written, tmp_path):
    path, pair = written
    other = tmp_path / "other.hdf5"
    write_shard(other, INFO, pair)
    assert digest([other]) == digest([path])
    pair[0].track.actions[3, 2] += 0.5
    write_shard(other, INFO, pair)
    assert digest([other]) != digest([path])


def test_no_shards_says_how_to_make_some(tmp_path):
    with pytest.raises(UserError, match="vla-ros collect"):
        shards(tmp_path)
