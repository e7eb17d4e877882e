"""The two verbs as a user runs them."""

import json
import re

import numpy as np
import pytest
import torch

from support.train import QUICK
from vla_ros.cli.main import main
from vla_ros.core.types import CommandKind
from vla_ros.engine.layers.devices import multiplies_bfloat16


def words_of(data, out, *more):
    return ["train", "--data", str(data), "--out", str(out), "--arch", "tiny", *QUICK, *more]


def test_train_says_where_the_policy_is(data, tmp_path, capsys):
    assert main(words_of(data, tmp_path / "run", "--steps", "3")) == 0
    shown = capsys.readouterr()
    assert shown.out.strip() == f"{tmp_path}/run/policy: done"
    assert re.search(
        r"^1/3 +loss \d+\.\d+ error \d\.\d+ \d+/s patch \d+\.\d+ place \d+\.\d+$",
        shown.err,
        re.MULTILINE,
    )
    assert "40 frames of 4 demonstrations" in shown.err
    assert max(map(len, shown.err.splitlines())) <= 80


def test_a_sitting_ends_after_its_minutes_and_the_next_goes_on(data, tmp_path, capsys):
    arguments = words_of(data, tmp_path / "run", "--steps", "4")
    assert main([*arguments, "--minutes", "0.000001"]) == 0
    assert "not done yet: run it again" in capsys.readouterr().out
    assert main(arguments) == 0
    assert "policy: done" in capsys.readouterr().out


@pytest.mark.parametrize("begun", ["bfloat16", "float32"])
def test_products_are_in_what_the_processor_multiplies_and_a_run_keeps_its_own(
    data, tmp_path, begun
):
    """In bfloat16 a step took 37 s instead of 1.9 on two cores that have only AVX2."""
    words = words_of(data, tmp_path / "begun", "--steps", "2")
    assert main([*words, "--dtype", begun, "--minutes", "0.000001"]) == 0
    assert main(words) == 0
    assert main(words_of(data, tmp_path / "new", "--steps", "2")) == 0
    recipes = [
        json.loads((tmp_path / name / "train.json").read_text()) for name in ("begun", "new")
    ]
    quick = multiplies_bfloat16(torch.device("cpu"))
    assert [recipe["dtype"] for recipe in recipes] == [begun, "bfloat16" if quick else "float32"]


def test_a_bag_with_a_takeover_is_trained_on_from_the_policy_that_it_is_of(data, tmp_path, capsys):
    pytest.importorskip("rosbags", reason="rosbags is not installed: pip install '.[replay]'")
    from support.bags import START, T, action, image, picture, task, write_bag

    assert main(words_of(data, tmp_path / "first", "--steps", "3")) == 0
    before = tmp_path / "first" / "policy"
    entries = []
    for i in range(24):  # three episodes; in the middle of each a person acts
        at, kind = START + i * T, CommandKind.TAKEOVER if i % 8 in (3, 4) else CommandKind.POLICY
        entries += [task(at - T // 2, "put the lid on the jar")] if i == 0 else []
        moved = [0.01 * np.sin(i), 0.0, 0.1, 0.0, 0.0, 0.0, 1.0]  # the third more than the bounds
        entries += [image(at, picture(i)), action(at, moved, epoch=1 + i // 8, kind=kind)]
    bag = write_bag(tmp_path / "bag", entries)
    words = words_of(bag, tmp_path / "second", "--steps", "3", "--init-from", str(before))
    capsys.readouterr()
    assert main(words) == 0
    assert "24 frames of 3 demonstrations" in capsys.readouterr().err
    after = tmp_path / "second" / "policy"
    stats = [json.loads((d / "config.json").read_text())["norm_stats"] for d in (before, after)]
    assert stats[0]["tabletop"]["action"] == stats[1]["tabletop"]["action"]  # the same tokens
    card = json.loads((after / "training.json").read_text())
    assert card["corrections"] == 6 and len(card["validation"]["held_out"]) == 1
    assert card["options"]["init_from"] == str(before) and len(card["data_sha256"]) == 64
    assert main(words) == 0  # again: what was imported is there, and the run is done
    assert "policy: done" in capsys.readouterr().out


@pytest.mark.parametrize(("more", "kept"), [([], 3), (["--delays", "0"], 0)])
def test_a_policy_whose_prompt_states_the_delay_keeps_it(data, tmp_path, more, kept):
    """Without the flag the next checkpoint knew no delay, and acted too late in real time."""
    assert main(words_of(data, tmp_path / "first", "--steps", "1", "--delays", "3")) == 0
    before = str(tmp_path / "first" / "policy")
    words = words_of(data, tmp_path / "on", "--steps", "1", "--init-from", before, *more)
    assert main(words) == 0
    config = json.loads((tmp_path / "on" / "policy" / "config.json").read_text())
    assert config["max_delay"] == kept
    assert config["action_rate_hz"] == 20.0  # of the demonstrations


def test_losses_are_in_tensorboard_too(data, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    words = words_of(data, tmp_path / "run", "--steps", "3", "--track", "tensorboard")
    assert main(words) == 0
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in found.Scalars("loss")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--data", "nowhere", "--out", "x"], "vla-ros collect"),
        (["train", "--data", ".", "--out", "x", "--arch", "huge"], "small"),
        (["train", "--data", ".", "--out", "x", "--steps", "0"], "at least 1"),
        (["train", "--data", ".", "--out", "x", "--workers", "0"], "--workers"),
        (["collect", "--out", "x", "--demos", "0"], "--demos"),
        (["collect", "--out", "x", "--image-size", "4"], "16 to 256"),
        (["collect", "--out", "x", "--seed", "7"], "0 to 4"),
        (["collect", "--out", "x", "--demos", "100001"], "0 to 99999"),
    ],
)
def test_wrong_usage_is_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert said in error and "\n" not in error
    assert not (tmp_path / "x").exists()  # nothing is claimed by a mistake
