"""Demonstrations as rows and back, and somebody else's rows for training: without LeRobot."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("h5py", exc_type=ImportError)

from support.train import CPU, INFO, SENTENCES, MemoryReader, demonstration, recipe, shard_of
from vla_ros.cli.main import main
from vla_ros.core.errors import UserError
from vla_ros.data.lerobot.dataset import DatasetRow, Feature, Info
from vla_ros_lab.train import imports
from vla_ros_lab.train.demonstrations import read_info, read_tracks
from vla_ros_lab.train.frames import load_frames
from vla_ros_lab.train.imports import ImportOptions, import_shards
from vla_ros_lab.train.lerobot_rows import ShardRows
from vla_ros_lab.train.trainer import TokenKind


def info_of(columns, ours, rows):
    features = {
        name: Feature(name, one["dtype"], tuple(one["shape"]), tuple(one["names"]))
        for name, one in columns.features(True).items()
    }
    return Info(columns.fps, 1 + rows[-1].episode, len(rows), features, ours)


def came_back(monkeypatch, tmp_path, info, rows, options=ImportOptions()):
    monkeypatch.setattr(imports, "Reader", MemoryReader(info, rows))
    return import_shards("", tmp_path / "set", tmp_path / "after", options, lambda *_: None)


def test_demonstrations_lose_nothing_on_the_way(tmp_path, monkeypatch):
    paths = []
    for i in range(2):
        pair = [demonstration(2 * i + j, 4 + j, SENTENCES[j]) for j in range(2)]
        paths.append(shard_of(tmp_path / str(i), *pair) / "shard-0000.hdf5")
    source = ShardRows(paths)
    rows = list(source.rows())
    assert (len(source), source.episodes, len(rows)) == (18, 4, 18)
    info = info_of(source.columns(), source.note(), rows)
    done = came_back(monkeypatch, tmp_path, info, rows)
    assert (done.demonstrations, done.frames) == (4, 18)
    old = [track for path in paths for track in read_tracks(path)]
    new = read_tracks(tmp_path / "after" / "shard-0000.hdf5")
    assert read_info(tmp_path / "after" / "shard-0000.hdf5") == INFO
    for a, b in zip(old, new, strict=True):
        assert (a.instruction, a.seed, a.success) == (b.instruction, b.seed, b.success)
        for name in ("executed", "labels", "ee_pos", "gripper_states", "poses"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
        np.testing.assert_allclose(a.actions, b.actions, atol=1e-7)  # once through metres


def test_actions_are_metres_radians_and_an_opening(tmp_path):
    path = shard_of(tmp_path, demonstration(1)) / "shard-0000.hdf5"
    (track,) = read_tracks(path)
    for row, action in zip(ShardRows([path]).rows(), track.actions, strict=True):
        said = row.numbers["action"]
        np.testing.assert_allclose(said[:6], action[:6] * ([0.05] * 3 + [0.5] * 3), rtol=1e-6)
        assert said[6] == 1.0  # support.train: -1, open


POSE = ("dx", "dy", "dz", "dr", "dp", "dyaw", "grip")


def theirs(width=7, camera="observation.images.top", gripper=(1.0, -1.0)):
    rng = np.random.default_rng(0)
    features = {
        "action": Feature("action", "float32", (width,), POSE[:width]),
        "observation.state": Feature("observation.state", "float32", (6,), ()),
    }
    if camera:
        features[camera] = Feature(camera, "video", (48, 64, 3), ())
    rows = []
    for i in range(12):
        action = (0.01 * rng.normal(size=width)).astype(np.float32)
        action[-1] = gripper[i % 2]
        numbers = {"action": action, "observation.state": np.zeros(6, np.float32)}
        if camera:
            numbers[camera] = rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)
        rows.append(DatasetRow(i // 6, ("fold the towel", "open the drawer")[i // 6], {}, numbers))
    return Info(15.0, 2, 12, features, {}), rows


def test_measured_fingers_say_when_a_gripper_still_moves(tmp_path, monkeypatch):
    info, rows = theirs()
    names = ("j1", "j2", "j3", "j4", "finger_left", "finger_right")
    features = {**info.features}
    features["observation.state"] = Feature("observation.state", "float32", (6,), names)
    for i, row in enumerate(rows):
        row.numbers["observation.state"][4:] = 0.001 * i, -0.001 * i
    options = ImportOptions(gripper=(1.0, -1.0), image_size=32)
    came_back(monkeypatch, tmp_path, replace(info, features=features), rows, options)
    first = read_tracks(tmp_path / "after" / "shard-0000.hdf5")[0]
    np.testing.assert_allclose(first.gripper_states[:, 0], 0.001 * np.arange(6), atol=1e-7)
    np.testing.assert_allclose(first.gripper_states[:, 1], -0.001 * np.arange(6), atol=1e-7)


def test_somebody_elses_set_is_learned_from_its_own_sentences(tmp_path, monkeypatch):
    options = ImportOptions(gripper=(1.0, -1.0), image_size=32)
    done = came_back(monkeypatch, tmp_path, *theirs(), options)
    assert any("not used" in note and "observation.state" in note for note in done.notes)
    info = read_info(tmp_path / "after" / "shard-0000.hdf5")
    assert info.own_sentence and info.instructions == ("fold the towel", "open the drawer")
    tracks = read_tracks(tmp_path / "after" / "shard-0000.hdf5")
    _, rows = theirs()
    scale = np.array(info.scale)
    told = np.stack([row.numbers["action"] for row in rows])
    back = np.concatenate([track.actions for track in tracks])
    np.testing.assert_allclose(back[:, :6] * scale, told[:, :6], atol=1e-8)
    np.testing.assert_array_equal(back[:, 6], told[:, 6])  # +1 closes here and there
    frames = load_frames([tmp_path / "after"], 32, 1)
    assert [goal.text for goal in frames.goals] == list(info.instructions)
    assert frames.goal.tolist() == [0] * 6 + [1] * 6


def test_it_is_trained_on_with_one_sentence_an_image(tmp_path, monkeypatch):
    options = ImportOptions(gripper=(1.0, -1.0))
    came_back(monkeypatch, tmp_path, *theirs(), options)
    made = recipe(tmp_path / "after", "small", branches=1, dtype="float32")
    kind = TokenKind(made)
    frames = load_frames([tmp_path / "after"], kind.image_size, kind.images)
    kind.build(frames)
    losses = kind.objective(made, frames, CPU, False).losses(0)
    assert all(x.isfinite() for x in (losses.action, losses.patch, losses.place))
    assert losses.action > 0 and losses.place == 0
    with pytest.raises(UserError, match="give --branches 1"):
        kind.objective(replace(made, branches=4), frames, CPU, False)


@pytest.mark.parametrize(
    ("made", "options", "said"),
    [
        ({"width": 6}, {}, "action is 6 numbers .dx dy dz dr dp dyaw.; `vla-ros train` learns"),
        ({"camera": ""}, {}, "has no images: its features are action, observation.state"),
        ({}, {}, "the gripper, is -1 to 1: say what closed and open are"),
        ({}, {"features": {"image": "observation.images.no"}}, "has the images observation.images"),
        ({}, {"features": {"action": "actions"}}, "has no actions: choose one with -r action="),
    ],
)
def test_what_cannot_be_learned_is_refused_in_one_line(tmp_path, monkeypatch, made, options, said):
    with pytest.raises(UserError, match=said) as refused:
        came_back(monkeypatch, tmp_path, *theirs(**made), ImportOptions(**options))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "after").exists()


def test_the_verb_refuses_in_one_line(tmp_path, capsys):
    shard_of(tmp_path / "set", demonstration(0, 5))
    out = ["--out", str(tmp_path / "out"), "--python", sys.executable]
    words = ["demonstrations", "--from-lerobot", str(tmp_path), *out]
    wrong = {
        "roles are image, wrist_image, action": ["-r", "camera=x"],
        "write closed..open": ["--gripper", "1..1"],
        "both must be above 0": ["--action-scale", "0", "1"],
        "give 16 to 1024 pixels": ["--image-size", "8"],
        "must be 1 to 1000": ["--fps", "2000"],
    }
    for said, option in wrong.items():
        assert main([*words, *option]) == 2
        assert said in capsys.readouterr().err
    assert main(["export", "--lerobot", str(tmp_path / "set"), *out]) == 2
    assert "`vla-ros demonstrations --to-lerobot`" in capsys.readouterr().err
