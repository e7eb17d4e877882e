import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from support.train import INFO, SENTENCES, SIZE, data_set, demonstration
from vla_ros.core.errors import UserError
from vla_ros.core.types import Timeline
from vla_ros.engine import EngineOptions, load_engine
from vla_ros_lab.train.batches import family_weights, only, weighted
from vla_ros_lab.train.demonstrations import write_shard
from vla_ros_lab.train.frames import load_frames
from vla_ros_lab.train.options import OPTIONS_FILE, TrainOptions, claim, verify
from vla_ros_lab.train.run import Machine, Reporter, run
from vla_ros_lab.train.trainer import (
    Entry,
    Journal,
    Trainer,
    TrainState,
    load_state,
    read_journal,
    save_state,
)

CPU = torch.device("cpu")
QUIET = Reporter(lambda step: None, lambda text: None)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def data(tmp_path):
    return data_set(tmp_path / "set", shards=3)


def options(data, steps=12, **more):
    return TrainOptions((str(data),), "tiny", steps, batch=8, warmup=2, **more)


def test_stopped_and_resumed_it_repeats_the_same_curve(data, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run(options(data), whole, Machine(CPU), QUIET).done
    for most in (3, 4, 99):
        made = []
        ended = run(
            options(data), parts, Machine(CPU), Reporter(made.append, lambda text: None),
            stop=lambda made=made, most=most: len(made) >= most,
        )  # fmt: skip
        assert ended.done == (most == 99)
    assert read_journal(parts) == read_journal(whole)
    assert len(read_journal(whole)) == 12
    weights = [(d / "policy" / "model.safetensors").read_bytes() for d in (whole, parts)]
    assert weights[0] == weights[1]


def test_killed_it_goes_on_as_if_nothing_had_happened(data, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    steps = 100
    command = [
        sys.executable, "-m", "vla_ros", "train", "--data", str(data), "--arch", "tiny",
        "--steps", str(steps), "--batch", "8", "--warmup", "2", "--threads", "1",
        "--save-every", "0.1", "--device", "cpu", "--dtype", "bfloat16", "--out",
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
    run(options(data, steps), whole, Machine(CPU), QUIET)
    assert len(read_journal(whole)) == steps
    assert read_journal(killed) == read_journal(whole)
    weights = [(d / "policy" / "model.safetensors").read_bytes() for d in (whole, killed)]
    assert weights[0] == weights[1]


def test_it_learns_what_the_images_say(tmp_path):
    """Brightness is the action: after a short run the engine reads it off the image."""
    data = data_set(tmp_path / "set", shards=10)
    recipe = options(data, steps=550, shift=0, learning_rate=3e-3, dtype="float32", branches=1)
    assert run(recipe, tmp_path / "run", Machine(CPU), QUIET).done
    journal = read_journal(tmp_path / "run")
    assert journal[-1].loss < 0.55 * journal[0].loss
    assert journal[-1].error < 0.2 * journal[0].error
    engine = load_engine(EngineOptions(str(tmp_path / "run" / "policy"), num_threads=1))
    engine.reset(SENTENCES[0])
    from support.engine import CLOCK, observation

    said = []
    for grey in range(40, 216, 25):
        image = np.full((SIZE, SIZE, 3), grey, np.uint8)
        answer = engine.step(observation(1, image), Timeline(CLOCK.steady_ns()), CLOCK)
        said.append(answer.actions[0, [0, 6]])
    forward, gripper = np.array(said).T
    # So short a run may take one of six zeros in a row for the last.
    assert np.median(gripper) > 0.9  # it stays open
    assert (np.diff(forward) > 0).all()
    assert forward[0] < -0.015 and forward[-1] > 0.015  # m; the labels: about -0.034 and +0.034


def test_the_checkpoint_says_how_it_was_made(data, tmp_path):
    run(options(data, steps=2), tmp_path / "run", Machine(CPU), QUIET)
    record = json.loads((tmp_path / "run" / "policy" / "training.json").read_text())
    assert record["step"] == 2 and record["options"]["seed"] == 0
    assert len(record["data_sha256"]) == 64
    assert record["frames"] == 60 and record["demonstrations"] == 6


def corrected(directory):
    """Four episodes; in the last three frames of the first a person acted, after what led to it."""
    made = [demonstration(n, sentence=SENTENCES[0]) for n in range(4)]
    person = np.arange(10) >= 7
    made[0] = replace(made[0], track=replace(made[0].track, intervention=person))
    directory.mkdir()
    write_shard(directory / "shard-0000.hdf5", INFO, made)
    return directory


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
    run(options(data, steps=40, validation=0.3, shift=0), tmp_path / "run", Machine(CPU), QUIET)
    record = json.loads((tmp_path / "run" / "policy" / "training.json").read_text())
    assert record["validation"]["step"] == 40 and len(record["validation"]["held_out"]) == 1
    assert record["corrections"] == 3
    (first,) = (tmp_path / "run" / "validation.jsonl").read_text().splitlines()
    assert json.loads(first)["loss"] == record["validation"]["loss"]
    untrained = Trainer(options(data, validation=0.3, shift=0), tmp_path / "new", CPU)
    (tmp_path / "new").mkdir()
    untrained.save()
    assert record["validation"]["loss"] < untrained.validation.loss


def test_another_recipe_needs_another_directory(data, tmp_path):
    run(options(data, steps=2), tmp_path / "run", Machine(CPU), QUIET)
    with pytest.raises(UserError, match=r"batch 8.*another --out"):
        run(
            TrainOptions((str(data),), "tiny", 2, batch=4, warmup=2),
            tmp_path / "run",
            Machine(CPU),
            QUIET,
        )


def test_a_draft_keeps_its_target_s_vision_tower(data, tmp_path):
    run(options(data, steps=2), tmp_path / "target", Machine(CPU), QUIET)
    target = str(tmp_path / "target" / "policy")
    recipe = TrainOptions((str(data),), "tiny-draft", 4, batch=8, warmup=2, vision_from=target)
    run(recipe, tmp_path / "draft", Machine(CPU), QUIET)
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


def test_a_run_of_other_options_or_without_one_is_not_gone_on_with(tmp_path):
    options = TrainOptions(("x",), "tiny", steps=5)
    claim(options, tmp_path)
    verify(options, tmp_path)
    with pytest.raises(UserError, match="has steps 5: keep that, or take another --out"):
        verify(replace(options, steps=6), tmp_path)
    path = tmp_path / OPTIONS_FILE
    there = json.loads(path.read_text())
    del there["dtype"]
    path.write_text(json.dumps(there))
    with pytest.raises(UserError, match="has no dtype: keep that, or take another --out"):
        verify(options, tmp_path)


@pytest.mark.parametrize("decay", ["sqrt", "cosine"])
def test_the_rate_rises_and_falls_to_nothing(decay):
    recipe = TrainOptions(("x",), steps=1000, learning_rate=7e-4, warmup=100, decay=decay)
    rates = [recipe.rate(step) for step in range(1000)]
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
    journal = Journal(tmp_path, 0)
    for step in range(5):
        journal.add(Entry(step, 1.0 / (step + 1), 0.5, 0.4, 0.2, 1e-3))
    journal.close()
    with (tmp_path / "log.jsonl").open("a") as stream:
        stream.write('{"step": 5, "lo')  # killed within a line
    Journal(tmp_path, 3).close()
    assert [entry.step for entry in read_journal(tmp_path)] == [0, 1, 2]


def recordings(directory, sentence=SENTENCES[1], **more):
    """A set from elsewhere: a row's own instruction, nobody knows where anything is."""
    info = replace(INFO, objects=(), instructions=(sentence,), own_sentence=True, **more)
    made = []
    for seed in (50, 51, 52):
        one = demonstration(seed, sentence=sentence)
        track = replace(one.track, labels=one.track.actions[:, None], poses=one.track.poses[:0],
                        pixels={"agentview": one.track.pixels["agentview"][:, :0]})  # fmt: skip
        made.append(replace(one, track=track))
    directory.mkdir()
    write_shard(directory / "shard-0000.hdf5", info, made)
    return directory


def test_recordings_are_learned_beside_demonstrations_a_step_each_in_turn(data, tmp_path):
    both = replace(options(data, steps=6, validation=0.3), data=(
        str(recordings(tmp_path / "recorded")), str(data)))  # fmt: skip
    assert run(both, tmp_path / "out", Machine(CPU), QUIET).done
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
    both = replace(options(data), data=(str(data), str(other)))
    with pytest.raises(UserError, match=r"another scale .* --init-from"):
        Trainer(both, tmp_path / "out", CPU)
