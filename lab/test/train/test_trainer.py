import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from support.engine import CLOCK, observation
from support.train import (
    CPU,
    INFO,
    QUICK,
    SENTENCES,
    SIZE,
    changed,
    data_set,
    demonstration,
    recipe,
    shard_of,
    train,
)
from vla_ros.core.errors import UserError
from vla_ros.core.types import Timeline
from vla_ros.engine import EngineOptions, load_engine
from vla_ros_lab.train.batches import family_weights, only, weighted
from vla_ros_lab.train.frames import load_frames
from vla_ros_lab.train.loop import (
    Entry,
    TrainState,
    load_state,
    open_journal,
    read_journal,
    save_state,
)
from vla_ros_lab.train.options import OPTIONS_FILE, TrainOptions
from vla_ros_lab.train.trainer import Trainer


@pytest.fixture
def data(tmp_path):
    return data_set(tmp_path / "set", shards=3)


@pytest.mark.parametrize("arch", ["tiny", "tiny-flow"])
def test_stopped_and_resumed_it_repeats_the_same_curve(arch, data, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train(recipe(data, arch, 12, branches=2), whole).done
    for most in (3, 4, 99):
        made = []
        wanted = recipe(data, arch, 12, branches=2)
        ended = train(wanted, parts, made.append, lambda n=made, most=most: len(n) >= most)
        assert ended.done == (most == 99)
    assert_same(whole, parts, 12)


def assert_same(whole, parts, steps):
    """The curves and the weights."""
    assert read_journal(parts) == read_journal(whole)
    assert len(read_journal(whole)) == steps
    weights = [(d / "policy" / "model.safetensors").read_bytes() for d in (whole, parts)]
    assert weights[0] == weights[1]


@pytest.mark.long
def test_killed_it_goes_on_as_if_nothing_had_happened(data, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    steps = 100
    command = [
        sys.executable, "-m", "vla_ros", "train", "--data", str(data), "--arch", "tiny", *QUICK,
        "--steps", str(steps), "--warmup", "2", "--save-every", "0.1", "--dtype", "bfloat16",
        "--out",
    ]  # fmt: skip
    process = subprocess.Popen([*command, str(killed)], stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    state = killed / "state.pt"
    while not state.exists() and time.monotonic() < end and process.poll() is None:
        time.sleep(0.005)
    time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert 0 < load_state(killed, CPU).step < steps, "it was not killed in the middle"
    assert not (killed / "policy").exists()
    subprocess.run([*command, str(killed)], check=True, stderr=subprocess.DEVNULL, timeout=90)
    train(recipe(data, steps=steps), whole)
    assert_same(whole, killed, steps)


@pytest.mark.long
def test_it_learns_what_the_images_say(tmp_path):
    """Brightness is the action: after a short run the engine reads it off the image."""
    data = data_set(tmp_path / "set", shards=10)
    more = {"shift": 0, "learning_rate": 3e-3, "dtype": "float32", "branches": 1}
    assert train(recipe(data, steps=550, batch=8, **more), tmp_path / "run").done
    journal = read_journal(tmp_path / "run")
    assert journal[-1].loss < 0.55 * journal[0].loss
    assert journal[-1].error < 0.2 * journal[0].error
    engine = load_engine(EngineOptions(str(tmp_path / "run" / "policy"), num_threads=1))
    engine.reset(SENTENCES[0])
    actions = []
    for grey in range(40, 216, 25):
        image = np.full((SIZE, SIZE, 3), grey, np.uint8)
        answer = engine.step(observation(1, image), Timeline(CLOCK.steady_ns()), CLOCK)
        actions.append(answer.actions[0, [0, 6]])
    forward, gripper = np.array(actions).T
    # So short a run may take one of six zeros in a row for the last.
    assert np.median(gripper) > 0.9  # it stays open
    assert (np.diff(forward) > 0).all()
    assert forward[0] < -0.015 and forward[-1] > 0.015  # m; the labels: about -0.034 and +0.034


def corrected(directory):
    """Four episodes; in the last three frames of the first a person acted, after what led to it."""
    first, *rest = (demonstration(n) for n in range(4))
    return shard_of(directory, changed(first, intervention=np.arange(10) >= 7), *rest)


def test_what_a_person_corrected_is_drawn_as_often_as_asked_and_held_out_episodes_never(tmp_path):
    frames = load_frames([corrected(tmp_path / "set")], SIZE, 1)
    assert frames.person.sum() == 3
    for share in (0.0, 0.5, 0.9):
        chances = family_weights(weighted(frames, share, torch.tensor([2])))
        assert (chances[frames.episode == 2] == 0).all()
        got = float(chances[frames.person].sum() / chances.sum())
        assert got == pytest.approx(max(share, 3 / 23))  # of the 30 frames 7 led to it
        assert (chances[(frames.episode == 0) & ~frames.person] == 0).all()
    judged = family_weights(only(frames, torch.tensor([2]))) > 0
    assert judged.equal(frames.episode == 2)


def test_held_out_episodes_judge_the_run_and_the_card_says_which(tmp_path):
    data = corrected(tmp_path / "set")
    judged = {"validation": 0.3, "shift": 0, "batch": 8}
    train(recipe(data, steps=40, **judged), tmp_path / "run")
    record = json.loads((tmp_path / "run" / "policy" / "training.json").read_text())
    assert record["validation"]["step"] == 40 and len(record["validation"]["held_out"]) == 1
    assert record["corrections"] == 3
    (first,) = (tmp_path / "run" / "validation.jsonl").read_text().splitlines()
    assert json.loads(first)["loss"] == record["validation"]["loss"]
    untrained = Trainer(recipe(data, steps=40, **judged), tmp_path / "new", CPU)
    assert record["validation"]["loss"] < untrained.loop.validate().loss


def test_a_run_of_another_recipe_or_without_one_is_not_gone_on_with(data, tmp_path):
    train(recipe(data, steps=2), tmp_path / "run")
    with pytest.raises(UserError, match="has batch 4: keep that, or take another --out"):
        train(recipe(data, steps=2, batch=8), tmp_path / "run")
    path = tmp_path / "run" / OPTIONS_FILE
    there = json.loads(path.read_text())
    del there["dtype"]
    path.write_text(json.dumps(there))
    with pytest.raises(UserError, match="has no dtype: keep that, or take another --out"):
        train(recipe(data, steps=2), tmp_path / "run")


def test_a_draft_keeps_its_target_s_vision_tower(data, tmp_path):
    train(recipe(data, steps=2), tmp_path / "target")
    target = str(tmp_path / "target" / "policy")
    train(recipe(data, "tiny-draft", 4, vision_from=target), tmp_path / "draft")
    engine = load_engine(
        EngineOptions(
            target, decoding="speculative", drafter="model",
            draft_checkpoint=str(tmp_path / "draft" / "policy"), num_threads=1,
        )
    )  # fmt: skip
    assert engine.decoder.decoding.drafter.shares_vision


def test_an_unknown_architecture_names_the_known_ones(data, tmp_path):
    with pytest.raises(UserError, match="small"):
        Trainer(TrainOptions((str(data),), "huge"), tmp_path, CPU)


@pytest.mark.parametrize("decay", ["sqrt", "cosine"])
def test_the_rate_rises_and_falls_to_nothing(decay):
    options = TrainOptions(("x",), steps=1000, learning_rate=7e-4, warmup=100, decay=decay)
    rates = [options.rate(step) for step in range(1000)]
    assert max(rates) <= 7e-4 and rates[0] < 1e-5
    assert rates[99:] == sorted(rates[99:], reverse=True)
    assert rates[-1] < 0.04 * 7e-4


def test_rounds_lie_in_the_later_part():
    assert TrainOptions(("x",), steps=1000, rounds=3).round_steps() == (400, 600, 800)
    assert TrainOptions(("x",), steps=1000).round_steps() == ()


def test_the_old_state_stands_until_the_new_one_is_whole(tmp_path, monkeypatch):
    save_state(tmp_path, TrainState(1, 0.0, {"w": torch.ones(2)}, {}, {}))

    def cut_short(parts, stream):
        stream.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", cut_short)
    with pytest.raises(OSError, match="no space"):
        save_state(tmp_path, TrainState(2, 0.0, {"w": torch.zeros(2)}, {}, {}))
    state = load_state(tmp_path, CPU)
    assert state.step == 1 and state.model["w"].sum() == 2


def test_a_journal_forgets_what_came_after_the_saved_state(tmp_path):
    lines = [asdict(Entry(step, 1.0 / (step + 1), 0.5, 0.4, 0.2, 1e-3)) for step in range(5)]
    whole = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "log.jsonl").write_text(whole + '{"step": 5, "lo')  # killed within a line
    open_journal(tmp_path, 3).close()
    assert [entry.step for entry in read_journal(tmp_path)] == [0, 1, 2]


def recordings(directory, sentence=SENTENCES[1], **more):
    """A set from elsewhere: a row's own instruction, nobody knows where anything is."""
    info = replace(INFO, objects=(), instructions=(sentence,), own_sentence=True, **more)
    made = []
    for seed in (50, 51, 52):
        one = demonstration(seed, sentence=sentence)
        track, nowhere = one.track, {"agentview": one.track.pixels["agentview"][:, :0]}
        own = track.actions[:, None]
        made.append(changed(one, labels=own, poses=track.poses[:0], pixels=nowhere))
    return shard_of(directory, *made, info=info)


def test_recordings_are_learned_beside_demonstrations_a_step_each_in_turn(data, tmp_path):
    both = replace(recipe(data, steps=6, validation=0.3), data=(
        str(recordings(tmp_path / "recorded")), str(data)))  # fmt: skip
    assert train(both, tmp_path / "out").done
    curve = read_journal(tmp_path / "out")
    # Where things are is known of every other batch alone.
    assert [entry.patch_loss > 0 for entry in curve] == [True, False] * 3
    card = json.loads((tmp_path / "out" / "policy" / "training.json").read_text())
    assert (card["demonstrations"], card["frames"]) == (9, 90)
    assert [len(part) for part in card["validation"]["held_out"]] == [2, 1]
    stats = json.loads((tmp_path / "out" / "policy" / "config.json").read_text())["norm_stats"]
    assert stats["tabletop"]["num_trajectories"] == 9


def test_recordings_of_another_scale_are_refused_beside_demonstrations(data, tmp_path):
    other = recordings(tmp_path / "recorded", scale=(0.1,) * 3 + (0.5,) * 3)
    both = replace(recipe(data), data=(str(data), str(other)))
    with pytest.raises(UserError, match=r"another scale .* --init-from"):
        Trainer(both, tmp_path / "out", CPU)
