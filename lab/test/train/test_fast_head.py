"""`vla-ros train --head` of pi0-FAST: it answers recorded frames, and its head drafts for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("rosbags", reason="rosbags is not installed: pip install '.[replay]'")

from golden.spot import STEP, TASK, trajectory
from support.bags import STORE, Entry, T, action, header, image, task, write_bag
from support.hub_folders import fasts
from support.train import MemoryReader
from vla_ros.cli.main import main
from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Executing, Observation, Timeline
from vla_ros.data.lerobot.dataset import IMAGES, STATE, DatasetRow, Feature, Info
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.decoding.base import up_to
from vla_ros.engine.engine import Engine
from vla_ros_lab.train.head import recorded
from vla_ros_lab.train.head.features import read_episode
from vla_ros_lab.train.head.recorded import answer
from vla_ros_lab.train.head.rollouts import RolloutOptions

EPISODES, FRAMES = 6, 12
HEAD = ["train", "--head", "--threads", "1", "--device", "cpu", "--state-in-prompt", "robot"]
CLOCK = SystemClock()


def seen(episode: int, number: int) -> tuple[Any, Any]:
    """Pixels and state of a frame: episodes lie one behind the other on the spot's path."""
    pixels, state, _ = trajectory(5.0 + STEP * (FRAMES * episode + number))
    return pixels, state


def spot_bag(path: Path, state: bool = True, episodes: int = EPISODES) -> Path:
    entries: list[Entry] = []
    for episode in range(episodes):
        begin = (1000 + 10 * episode) * 10**9
        entries.append(task(begin - T, TASK))
        for number in range(FRAMES):
            at = begin + number * T
            pixels, values = seen(episode, number)
            entries.append(image(at, pixels))
            entries.append(image(at, pixels[::-1], topic="/wrist_image"))
            if state:
                kind, none = "sensor_msgs/msg/JointState", np.zeros(0)
                joints = STORE.types[kind](
                    header=header(at), name=[f"j{n}" for n in range(len(values))],
                    position=values.astype(np.float64), velocity=none, effort=none,
                )  # fmt: skip
                entries.append(Entry("/joint_states", at, kind, joints))
            entries.append(action(at, [0.0] * 7, epoch=1 + episode))
    return write_bag(path, sorted(entries, key=lambda entry: entry.at_ns))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fast") / "target"
    fasts(folder)
    return folder


@pytest.mark.long
def test_a_head_is_trained_on_answers_to_recorded_frames_and_drafts(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bag, out = spot_bag(tmp_path / "bag"), tmp_path / "run"
    words = ["--target", str(target), "--data", str(bag), "--out", str(out), "--executed", "1"]
    assert main([*HEAD, *words, "--steps", "80", "--batch", "8", "--json"]) == 0
    judged = json.loads(capsys.readouterr().out.splitlines()[-1])["held_out"]
    assert judged["head"]["passes"] < judged["temporal_tree"]["passes"]
    assert judged["head"]["expected"] is None
    rollouts = sorted(path.name for path in (out / "rollouts").glob("*.safetensors"))
    assert [name.partition("-")[0] for name in rollouts] == ["judge"] * 2 + ["learn"] * 4
    told = json.loads((out / "draft_head" / "training.json").read_text())
    assert told["frames"] == 4 * FRAMES

    def engine_of(**options: Any) -> Engine:
        engine = load_engine(EngineOptions(str(target), state_in_prompt="robot", **options))
        engine.reset(TASK)
        return engine

    # on frames that it was trained on: the same tokens in fewer passes than the spellings need
    plain = engine_of(decoding="autoregressive")
    drafts = {"decoding": "speculative", "adaptive_draft": False}
    rows = {
        "head": engine_of(drafter="head", draft_checkpoint=str(out / "draft_head"), **drafts),
        "tree": engine_of(drafter="temporal_tree", **drafts),
    }
    passes = dict.fromkeys(rows, 0)
    for number in range(2 * FRAMES):
        pixels, state = seen(1 + number // FRAMES, number % FRAMES)
        frame = Observation(number, number, 0, pixels, pixels[::-1].copy(), state,
                            executing=Executing(number - 1, 1, 0))  # fmt: skip
        wanted = plain.step(frame, Timeline(0), CLOCK)
        for name, engine in rows.items():
            found = engine.step(frame, Timeline(0), CLOCK)
            assert found is not None and wanted is not None
            assert found.tokens == wanted.tokens
            passes[name] += found.target_passes
    assert passes["head"] < 0.9 * passes["tree"]

    # again: nothing is asked anew; of other frames, and executed otherwise, nothing is taken
    files = {path: path.stat().st_mtime_ns for path in (out / "rollouts").glob("*.safetensors")}
    assert main([*HEAD, *words, "--steps", "1"]) == 0
    assert files == {path: path.stat().st_mtime_ns for path in files}
    other = [str(tmp_path / "other") if word == str(bag) else word for word in words]
    assert main([*HEAD, *other]) == 2
    assert main([*HEAD, *words[:-1], "2"]) == 2
    kept = out / "rollouts" / "rollouts.json"
    content = json.loads(kept.read_text())
    del content["executed"]
    kept.write_text(json.dumps(content))
    assert main([*HEAD, *words]) == 2
    said = capsys.readouterr().err
    assert "holds answers to other frames" in said
    assert "execute 1 actions of a chunk, not 2" in said
    assert "execute an unknown number of actions of a chunk, not 1: take another --out" in said


def data_set() -> MemoryReader:
    """Three episodes of four rows."""
    names = [f"{IMAGES}top", f"{IMAGES}wrist", STATE]
    kinds = ("video", "video", "float32")
    features = {name: Feature(name, kind, (), ()) for name, kind in zip(names, kinds, strict=True)}
    rows = []
    for n in range(12):
        pixels, state = seen(n // 4, n % 4)
        images = {"top": pixels, "wrist": pixels[::-1].copy()}
        rows.append(DatasetRow(n // 4, TASK, images, {STATE: state}))
    return MemoryReader(Info(20, 3, 12, features, {}), rows)


def test_the_rows_of_a_data_set_are_asked_about_as_many_as_are_executed(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "set" / "meta").mkdir(parents=True)
    (tmp_path / "set" / "meta" / "info.json").write_text("{}")
    monkeypatch.setattr(recorded, "Reader", data_set())
    monkeypatch.setattr(recorded, "python_of", lambda: "python")
    engine = load_engine(EngineOptions(str(target), state_in_prompt="robot"))
    options = RolloutOptions("it", executed=3)
    made = list(answer(options, tmp_path / "out", [tmp_path / "set"], engine, CLOCK))
    assert [one.done for one in made] == [1, 2, 3]
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert [file.stem for file in files] == ["judge-0000", "judge-0002", "learn-0001"]
    episode = read_episode(files[2])
    assert len(episode) == 2, "rows 0 and 3 of four"
    engine.reset(TASK)
    for own, number in zip(episode.tokens.tolist(), (0, 3), strict=True):
        pixels, state = seen(1, number)
        found = engine.step(
            Observation(number, number, 0, pixels, pixels[::-1].copy(), state), Timeline(0), CLOCK
        )
        assert found is not None
        assert tuple(up_to(own, engine.model.ends)) == found.tokens
    # row j of the target's chances is where token j was chosen: the likeliest is what was said
    bins = episode.tokens - engine.model.actions.first
    there = (bins >= 0) & (bins < engine.model.actions.bins)
    assert there.sum() > 10
    assert torch.equal(episode.targets.float().argmax(-1)[there], bins[there])
    assert episode.targets[episode.tokens == engine.model.ends][:1].sum() > 0


def test_what_it_cannot_learn_from_is_one_line(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blind, short = (
        spot_bag(tmp_path / "blind", state=False),
        spot_bag(tmp_path / "short", episodes=2),
    )
    (tmp_path / "empty").mkdir()
    for number, (words, line) in enumerate((
        ([], "says FAST tokens, for a robot of its own: give --data"),
        (["--data", str(blind)], "has no observation.state, which the target takes"),
        (["--data", str(tmp_path / "empty")], "no bag and no LeRobotDataset"),
        (["--data", str(short)], "--data has 2 episodes: a draft head needs one to learn from"),
        (["--data", str(blind), "--executed", "9"], "gives 8 actions: 9 cannot be executed"),
    )):  # fmt: skip
        asked = [*HEAD, "--target", str(target), "--out", str(tmp_path / str(number)), *words]
        assert main(asked) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert line in error
