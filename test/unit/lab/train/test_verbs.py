"""The two verbs as a user runs them."""

import re

import pytest

from support.train import data_set
from vla_ros.cli.main import main


def test_train_says_where_the_policy_is(tmp_path, capsys):
    data = data_set(tmp_path / "set")
    arguments = ["train", "--data", str(data), "--out", str(tmp_path / "run"), "--arch", "tiny"]
    arguments += ["--steps", "3", "--batch", "4", "--threads", "1", "--device", "cpu"]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert shown.out.strip() == f"{tmp_path}/run/policy: done"
    assert re.search(
        r"^1/3 +loss \d+\.\d+ error \d\.\d+ \d+/s patch \d+\.\d+ place \d+\.\d+$",
        shown.err,
        re.MULTILINE,
    )
    assert "40 frames of 4 demonstrations" in shown.err
    assert max(map(len, shown.err.splitlines())) <= 80


def test_a_sitting_ends_after_its_minutes_and_the_next_goes_on(tmp_path, capsys):
    data = data_set(tmp_path / "set")
    arguments = ["train", "--data", str(data), "--out", str(tmp_path / "run"), "--arch", "tiny"]
    arguments += ["--steps", "4", "--batch", "4", "--threads", "1", "--device", "cpu"]
    assert main([*arguments, "--minutes", "0.000001"]) == 0
    assert "not done yet: run it again" in capsys.readouterr().out
    assert main(arguments) == 0
    assert "policy: done" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--data", "nowhere", "--out", "x"], "vla-ros collect"),
        (["train", "--data", "nowhere", "--out", "x", "--arch", "huge"], "small"),
        (["train", "--data", "nowhere", "--out", "x", "--steps", "0"], "at least 1"),
        (["train", "--data", "nowhere", "--out", "x", "--workers", "0"], "--workers"),
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
