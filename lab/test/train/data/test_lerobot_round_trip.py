"""Through LeRobot's own code and back. Skipped where there is no LeRobot with its data sets."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rosbags", reason="rosbags is not installed: pip install '.[replay]'")

from support.bags import START, T, action, chunk, commanded, image, joints, task, write_bag
from support.lerobot import interpreter
from support.train import INFO, SENTENCES, demonstration
from vla_ros.cli.main import main
from vla_ros.core.types import CommandKind, Instruction
from vla_ros.data.lerobot.dataset import Reader
from vla_ros_lab.train.demonstrations import read_images, read_info, read_tracks, write_shard
from vla_ros_lab.train.frames import load_frames

MAKER = Path(__file__).parents[4] / "test" / "support" / "lerobot_sets.py"
# LeRobot takes 5 to 40 s to be imported, and each export starts it anew.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@cache
def python() -> str:
    """Skips, with the reason, where LeRobot or what its data sets need is missing."""
    path = interpreter()
    code = "import lerobot.datasets.lerobot_dataset"
    done = subprocess.run([path, "-I", "-c", code], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{path}: {done.stderr.strip().splitlines()[-1]}: `vla-ros lerobot setup`")
    return path


def export(*words: object) -> int:
    return main(["export", "--lerobot", *map(str, words), "--python", python()])


def demonstrations(*words: object) -> int:
    return main(["demonstrations", *map(str, words), "--python", python()])


def shards_of(folder: Path, lengths: tuple[int, ...] = (5, 8, 3)) -> Path:
    folder.mkdir()
    made = [demonstration(i, n, SENTENCES[i % 2]) for i, n in enumerate(lengths)]
    write_shard(folder / "shard-0000.hdf5", INFO, made[:2])
    write_shard(folder / "shard-0001.hdf5", INFO, made[2:])
    return folder


@pytest.mark.parametrize("images", ["png", "video"])
def test_demonstrations_come_back_as_they_were(tmp_path, images, capsys):
    before = shards_of(tmp_path / "before")
    there, after = tmp_path / "set", tmp_path / "after"
    assert demonstrations("--to-lerobot", before, "--out", there, "--images", images, "--json") == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["episodes"], said["frames"], said["format"]) == (3, 16, "v3.0")
    assert demonstrations("--from-lerobot", there, "--out", after) == 0
    old = [t for p in sorted(before.glob("*")) for t in read_tracks(p)]
    new = [t for p in sorted(after.glob("*.hdf5")) for t in read_tracks(p)]
    assert read_info(after / "shard-0000.hdf5") == INFO
    assert [t.instruction for t in new] == [t.instruction for t in old]
    assert [(t.seed, t.source, t.task) for t in new] == [(t.seed, t.source, t.task) for t in old]
    for a, b in zip(old, new, strict=True):
        for name in ("executed", "labels", "ee_pos", "gripper_states", "poses"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
        np.testing.assert_array_equal(a.pixels["agentview"], b.pixels["agentview"])
        np.testing.assert_allclose(a.actions, b.actions, atol=1e-7)
    films = [read_images(p, "agentview") for p in sorted(before.glob("*"))]
    shown = [image for film in films for image in film]
    again = list(read_images(after / "shard-0000.hdf5", "agentview"))
    for a, b in zip(shown, again, strict=True):
        assert np.abs(a.astype(int) - b.astype(int)).mean() < (2 if images == "png" else 6)
    assert len(load_frames([after], 32, 1)) == len(load_frames([before], 32, 1))


def stamped(number: int, size: int = 64) -> np.ndarray:
    """An image that says its number in blocks of black and white, which survive any codec."""
    bits = np.array([(number >> i) & 1 for i in range(16)], np.uint8).reshape(4, 4)
    grey = np.kron(bits * 200 + 20, np.ones((size // 4, size // 4), np.uint8))
    return np.repeat(grey[..., None], 3, axis=2)


def number_of(picture: np.ndarray) -> int:
    cells = picture[..., 0].reshape(4, 16, 4, 16).mean((1, 3)) > 120
    return int(sum(1 << i for i, bit in enumerate(cells.ravel()) if bit))


def test_an_image_in_the_set_is_the_one_its_action_rests_on(tmp_path, capsys):
    entries = [task(START - T, "reach")]
    for i in range(30):
        entries += [image(START + i * T, stamped(i)), joints(START + i * T, i / 10)]
    # Each action is said two frames after the image that it rests on.
    late = 2 * T
    for i in range(28):
        one = action(START + i * T, [i / 100.0] + [0.0] * 6, epoch=1 + i // 14)
        one.content.header.stamp.sec, one.content.header.stamp.nanosec = divmod(
            START + i * T + late, 10**9
        )
        entries.append(type(one)(one.topic, START + i * T + late, one.kind, one.content))
    bag = write_bag(tmp_path / "bag", sorted(entries, key=lambda e: e.at_ns))
    assert export(bag, "--out", tmp_path / "set", "--pairing", "observation") == 0
    assert "2 episodes, 28 frames" in capsys.readouterr().out
    with Reader(python(), tmp_path / "set") as reader:
        assert reader.info.fps == 20
        names = ("observation.images.main", "observation.state", "action",
                 "timing.observation_age_s")  # fmt: skip
        rows = list(reader.rows(names))
    for i, row in enumerate(rows):
        assert number_of(row.images["observation.images.main"]) == i
        assert row.numbers["action"][0] == np.float32(i / 100)
        assert row.numbers["observation.state"][0] == np.float32(i / 10)
        assert row.numbers["timing.observation_age_s"][0] == pytest.approx(0.1)
        assert (row.task, row.episode) == ("reach", i // 14)


LENGTH = """
import sys
from lerobot.datasets.lerobot_dataset import LeRobotDataset
found = LeRobotDataset("local/set", root=sys.argv[1])
print(found.meta.fps, len(found), float(found[len(found) - 1]["timestamp"]))
"""


def test_a_run_of_30_actions_a_second_commanded_at_120_hz_lasts_as_long(tmp_path):
    actions = np.random.default_rng(0).uniform(0.0, 0.01, (60, 7))
    entries, commands = commanded(30.0, 120.0, actions)
    assert export(write_bag(tmp_path / "bag", entries), "--out", tmp_path / "set") == 0
    words = [python(), "-I", "-c", LENGTH, str(tmp_path / "set")]
    done = subprocess.run(words, capture_output=True, text=True, env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    fps, length, end_s = done.stdout.split()
    assert (int(fps), int(length), float(end_s)) == (30, 60, pytest.approx(59 / 30))
    with Reader(python(), tmp_path / "set") as reader:
        feature = reader.info.features["commands"]
        rows = [row.numbers for row in reader.rows(("action", "policy.action", "commands"))]
    assert feature.shape == (4, 7) and feature.names[-7:] == ("x", "y", "z", "rx", "ry", "rz",
                                                              "gripper")  # fmt: skip
    for i, row in enumerate(rows):
        np.testing.assert_allclose(row["action"], actions[i], atol=1e-8)
        np.testing.assert_allclose(row["policy.action"], actions[i], atol=1e-8)
        np.testing.assert_array_equal(row["commands"], commands[4 * i : 4 * i + 4].astype("f4"))


def with_takeover(tmp_path: Path, episodes: int = 2) -> Path:
    """A bag; in the middle of each of its episodes of ten a person acts past the policy."""
    entries = [task(START - T, "reach")]
    for i in range(10 * episodes):
        at, kind = START + i * T, CommandKind.TAKEOVER if i % 10 in (4, 5) else CommandKind.POLICY
        said = [i / 100.0] + [0.0] * 5 + [1.0]
        arm = joints(at)  # of one joint alone LeRobot's policies make nothing
        arm.content.name, arm.content.position = ["a", "b"], np.array([i / 10, 0.0])
        entries += [image(at, stamped(i)), arm, chunk(at, [said], "reach")]
        done = [0.5] + [0.0] * 6 if kind == CommandKind.TAKEOVER else said
        entries.append(action(at, done, epoch=1 + i // 10, kind=kind))
        entries[-1].content.instruction_hash = Instruction("reach", 1).digest
    return write_bag(tmp_path / "takeover", sorted(entries, key=lambda e: e.at_ns))


def test_who_acted_and_what_the_policy_said_come_back(tmp_path):
    bag = with_takeover(tmp_path)
    assert export(bag, "--out", tmp_path / "set") == 0
    with Reader(python(), tmp_path / "set") as reader:
        names = ("intervention", "policy.action", "policy.answered", "timing.delay_s", "action")
        rows = [row.numbers for row in reader.rows(names)]
    assert [bool(row["intervention"]) for row in rows] == [i % 10 in (4, 5) for i in range(20)]
    for i, row in enumerate(rows):
        assert row["policy.action"][0] == np.float32(i / 100) and bool(row["policy.answered"])
        assert row["timing.delay_s"][0] == pytest.approx(0.01)
        assert row["action"][0] == np.float32(0.5 if row["intervention"] else i / 100)
    assert demonstrations("--from-lerobot", tmp_path / "set", "--out", tmp_path / "shards") == 0
    tracks = read_tracks(tmp_path / "shards" / "shard-0000.hdf5")
    assert [track.intervention.sum() for track in tracks] == [2, 2]


def test_lerobots_own_trainer_trains_on_it_and_goes_on(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("VLA_ROS_LEROBOT_PYTHON", python())
    assert export(with_takeover(tmp_path, 3), "--out", tmp_path / "set") == 0
    small = ["pretrained_backbone_weights=null", "dim_model=32", "n_heads=2", "dim_feedforward=32",
             "n_encoder_layers=1", "n_vae_encoder_layers=1", "chunk_size=4",
             "n_action_steps=4"]  # fmt: skip
    words = ["train", "--lerobot", "act", "--data", tmp_path / "set", "--out", tmp_path / "run",
             "--batch", "4", "--device", "cpu", "--seed", "5", "--validation", "0.34"]  # fmt: skip
    words += [word for one in small for word in ("--lerobot-option", f"policy.{one}")]
    assert main([*map(str, words), "--steps", "2"]) == 0
    assert main([*map(str, words), "--steps", "4"]) == 0
    card = json.loads((tmp_path / "run" / "training.json").read_text())
    assert (card["step"], card["options"]["seed"], len(card["data_sha256"])) == (4, 5, 64)
    assert json.loads((tmp_path / "run" / "policy" / "config.json").read_text())["type"] == "act"
    shown = capfd.readouterr()
    assert "eval_loss" in shown.out + shown.err  # LeRobot's own lines, as they come


def strangers(tmp_path: Path) -> Path:
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([python(), "-I", str(MAKER), str(tmp_path)], capture_output=True,
                          text=True, env=env)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return tmp_path


def test_a_strangers_set_is_imported_or_refused_in_one_line(tmp_path, capsys):
    made = strangers(tmp_path)
    words = "--from-lerobot", made / "cartesian", "--out", tmp_path / "in", "--gripper=-1..1"
    assert demonstrations(*words) == 0
    said = capsys.readouterr().out
    assert "agentview is observation.images.front" in said
    assert "wrist is observation.images.wrist_cam" in said
    assert "observation.state" in said  # and that it is not used
    (one, two) = read_tracks(tmp_path / "in" / "shard-0000.hdf5")
    assert (len(one), len(two), one.instruction) == (6, 4, "fold the blue towel")
    assert read_info(tmp_path / "in" / "shard-0000.hdf5").action_rate_hz == 12
    assert np.abs(one.actions).max() <= 1.0
    assert set(one.actions[:, 6]) <= {-1.0, 1.0}
    assert demonstrations("--from-lerobot", made / "joints", "--out", tmp_path / "no") == 2
    assert "action is 6 numbers (j0 j1 j2 j3 j4 j5)" in capsys.readouterr().err
    assert demonstrations("--from-lerobot", made / "blind", "--out", tmp_path / "no") == 2
    assert "has no images" in capsys.readouterr().err
    assert demonstrations("--from-lerobot", made / "cartesian", "--out", tmp_path / "no") == 2
    assert "--gripper" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_a_strangers_set_is_trained_on(tmp_path, monkeypatch):
    made = strangers(tmp_path)
    words = ["--data", made / "plain", "--out", tmp_path / "run", "--steps", "2", "--batch", "2",
             "--dtype", "float32", "--device", "cpu"]  # fmt: skip
    monkeypatch.setenv("VLA_ROS_LEROBOT_PYTHON", python())
    assert main(["train", *map(str, words)]) == 0
    assert (tmp_path / "run" / "policy" / "config.json").is_file()
    assert main(["train", *map(str, words)]) == 0  # again: what was imported is there


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    words = [python(), "-I", str(MAKER), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **OFFLINE})
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def test_a_set_of_v21_is_upgraded_beside_the_old_one_and_read(sets, tmp_path, capfd):
    before = {p.relative_to(sets): p.stat().st_size for p in (sets / "old").rglob("*")}
    new = tmp_path / "new"
    words = ["lerobot", "upgrade", str(sets / "old"), "--out", str(new), "--python", python()]
    assert main(words) == 0
    assert before == {p.relative_to(sets): p.stat().st_size for p in (sets / "old").rglob("*")}
    assert [p.name for p in tmp_path.iterdir()] == ["new"]
    with Reader(python(), new) as there, Reader(python(), sets / "cartesian") as as_it_was:
        assert (there.info.episodes, there.info.frames, there.info.tasks) == (2, 10, (2,))
        assert there.info.features == as_it_was.info.features
        names = ("action", "observation.state", "observation.images.front")
        for a, b in zip(there.rows(names), as_it_was.rows(names), strict=True):
            assert (a.episode, a.task) == (b.episode, b.task)
            for name in names[:2]:
                np.testing.assert_array_equal(a.numbers[name], b.numbers[name])
            assert a.images[names[2]].shape == b.images[names[2]].shape == (96, 128, 3)
    assert main(words) == 2 and "is there already" in capfd.readouterr().err
    assert main([*words[:2], str(new), *words[3:4], str(tmp_path / "again")]) == 2
    assert "is of v3.0 already: nothing to do" in capfd.readouterr().err


def test_a_set_that_lerobots_converter_refuses_leaves_no_folder(sets, tmp_path, capfd):
    broken = tmp_path / "broken"
    (broken / "meta").mkdir(parents=True)
    (broken / "meta" / "info.json").write_text('{"codebase_version": "v2.1"}')
    out = tmp_path / "out"
    assert main(["lerobot", "upgrade", str(broken), "--out", str(out), "--python", python()]) == 2
    assert "LeRobot's converter ended with status" in capfd.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["broken"]


def test_of_a_task_with_one_episode_none_is_held_out(sets, tmp_path, capsys):
    from vla_ros.core.errors import UserError
    from vla_ros_lab.train.lerobot import held_out

    assert held_out(python(), sets / "cartesian", 0.1, asked=False) == 0.1
    assert held_out(python(), sets / "joints", 0.1, asked=False) == 0.0
    assert "LeRobot would hold out every episode" in capsys.readouterr().out
    with pytest.raises(UserError, match="--validation 0, or record more episodes"):
        held_out(python(), sets / "joints", 0.1, asked=True)


def test_two_publishers_of_joints_gaps_and_nan_are_read_back_by_lerobot(tmp_path, capfd):
    """An arm and its gripper on one topic, a pause, and readings that are none."""
    from support.bags import STORE, Entry, header

    def state(at, names, values):
        kind, none = "sensor_msgs/msg/JointState", np.zeros(0)
        content = STORE.types[kind](
            header=header(at), name=list(names), position=np.array(values), velocity=none,
            effort=none,
        )  # fmt: skip
        return Entry("/joint_states", at, kind, content)

    entries = [task(START - T, "reach")]
    stamps = [START + i * T + (20 * T if i >= 12 else 0) for i in range(24)]
    from support.bags import picture

    for i, at in enumerate(stamps):
        nan = float("nan") if i in (3, 15) else 0.1 * i
        entries += [state(at - 2, ("finger",), [0.01 * i]), state(at - 1, ("j1", "j2"), [nan, 1.0])]
        entries += [image(at, picture(i)), action(at + 1, [i / 100] * 7)]
    path = write_bag(tmp_path / "bag", sorted(entries, key=lambda e: e.at_ns))
    assert export(path, "--out", tmp_path / "set", "--images", "png") == 0
    said = capfd.readouterr().out
    assert "1 gaps begin another episode" in said and "a state that is not finite" in said, said
    with Reader(python(), tmp_path / "set") as there:
        assert there.info.features["observation.state"].names == ("j1", "j2", "finger")
        assert (there.info.episodes, there.info.frames) == (2, 22)
        rows = list(there.rows(("action", "observation.state", "observation.images.main")))
    kept = [i for i in range(24) if i not in (3, 15)]
    assert [row.episode for row in rows] == [int(i >= 12) for i in kept]
    for i, row in zip(kept, rows, strict=True):
        np.testing.assert_allclose(
            row.numbers["observation.state"], [0.1 * i, 1.0, 0.01 * i], rtol=1e-6
        )
        np.testing.assert_array_equal(row.images["observation.images.main"], picture(i))
    stats = json.loads((tmp_path / "set" / "meta" / "stats.json").read_text())
    assert all(np.isfinite(one).all() for one in stats["observation.state"].values())
