"""What LeRobot's trainer is asked for; that it does it is in test_round_trip, where LeRobot is."""

import json

import pytest

from vla_ros.cli.main import main
from vla_ros_lab.train.lerobot import command, digest
from vla_ros_lab.train.options import LeRobotRun


def test_a_family_begins_anew_and_a_checkpoint_goes_on(tmp_path):
    run = LeRobotRun("act", "data/robot", steps=40, seed=5, more=("policy.chunk_size=4",))
    words = command(run, tmp_path, "python")
    assert words[:4] == ["python", "-I", "-m", "lerobot.scripts.lerobot_train"]
    assert {"--policy.type=act", "--policy.chunk_size=4", "--dataset.repo_id=local/robot",
            "--dataset.eval_split=0.1", "--eval_steps=10", "--seed=5"} <= set(words)  # fmt: skip
    folder = tmp_path / "pretrained_model"
    folder.mkdir()
    assert f"--policy.path={folder}" in command(LeRobotRun(str(folder), "d"), tmp_path, "python")
    assert "--policy.path=lerobot/smolvla_base" in command(
        LeRobotRun("lerobot/smolvla_base", "d"), tmp_path, "python"
    )
    several = command(LeRobotRun("act", "data/robot", gpus=4), tmp_path, "python")
    assert several[1:6] == ["-I", "-m", "accelerate.commands.launch", "--multi_gpu",
                            "--num_processes=4"]  # fmt: skip
    assert several[6:8] == ["-m", "lerobot.scripts.lerobot_train"]
    last = tmp_path / "lerobot" / "checkpoints" / "last" / "pretrained_model"
    last.mkdir(parents=True)
    (last / "train_config.json").write_text("{}")
    again = command(run, tmp_path, "python")[4:]
    assert again == [f"--config_path={last}/train_config.json", "--resume=true", "--steps=40"]


def test_a_checkpoint_that_names_code_is_refused_before_lerobot_sees_it(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("VLA_ROS_LEROBOT_PYTHON", "/usr/bin/env")
    (tmp_path / "set" / "meta").mkdir(parents=True)
    (tmp_path / "set" / "meta" / "info.json").write_text("{}")
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "config.json").write_text('{"type": "act"}')
    (folder / "policy_preprocessor.json").write_text('{"steps": [{"class": "os.system"}]}')
    words = ["train", "--data", str(tmp_path / "set"), "--out", str(tmp_path / "run")]
    words += ["--validation", "0"]
    assert main([*words, "--lerobot", str(folder)]) == 2
    assert "names the class 'os.system'" in capsys.readouterr().err
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main([*words, "--lerobot", "lerobot/smolvla_base@main"]) == 2
    assert "`hf download lerobot/smolvla_base --revision main" in capsys.readouterr().err


def test_a_set_of_an_older_format_is_refused_with_the_command_that_converts_it(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("VLA_ROS_LEROBOT_PYTHON", "/usr/bin/env")
    info = tmp_path / "set" / "meta" / "info.json"
    info.parent.mkdir(parents=True)
    info.write_text('{"codebase_version": "v2.1"}')
    data, out = str(tmp_path / "set"), str(tmp_path / "run")
    way = f"`vla-ros lerobot upgrade {data} --out {data}-v3` makes v3.0 of it"
    for words in (
        ["train", "--lerobot", "act", "--data", data, "--out", out, "--validation", "0"],
        ["train", "--lerobot", "act", "--data", data, "--out", out],
        ["train", "--data", data, "--out", out],
        ["demonstrations", "--from-lerobot", data, "--out", out],
    ):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert way in error and error.count("\n") == 1, error
    info.write_text('{"codebase_version": "v2.0"}')
    for words in (["demonstrations", "--from-lerobot", data], ["lerobot", "upgrade", data]):
        assert main([*words, "--out", out]) == 2
        assert "an older LeRobot makes v2.1 of it" in capsys.readouterr().err


def test_a_data_set_is_told_by_all_of_its_files(tmp_path):
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "info.json").write_text("{}")
    (tmp_path / "one").write_bytes(b"1")
    before = digest(tmp_path)
    assert before == digest(tmp_path)
    (tmp_path / "one").write_bytes(b"2")
    assert digest(tmp_path) != before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lerobot", "act", "--data", "a", "b"], "one data set"),
        (["--lerobot", "act", "--data", "nowhere"], "no LeRobotDataset"),
        (["--lerobot-option", "a=b", "--data", "x"], "are for --lerobot"),
        (["--gpus", "2", "--data", "x"], "are for --lerobot"),
        (["--lerobot", "act", "--data", "x", "--track", "wandb"], "wandb.enable=true"),
        (
            ["--lerobot", "act", "--data", "x", "--learning-rate", "1e-4"],
            "--learning-rate means nothing to LeRobot's trainer: give its own by --lerobot-option",
        ),
        (["--lerobot", "act", "--data", "x", "--minutes", "5"], "--minutes means nothing to"),
    ],
)
def test_wrong_usage_is_one_line(tmp_path, capsys, monkeypatch, words, said):
    monkeypatch.setenv("VLA_ROS_LEROBOT_PYTHON", "/usr/bin/env")
    assert main(["train", "--out", str(tmp_path / "run"), *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_the_threads_that_were_given_are_lerobots_too(tmp_path, monkeypatch):
    """A program in LeRobot's place writes down what it was given."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho $OMP_NUM_THREADS > {tmp_path}/threads\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setenv("VLA_ROS_LEROBOT_PYTHON", str(python))
    (tmp_path / "set" / "meta").mkdir(parents=True)
    (tmp_path / "set" / "meta" / "info.json").write_text("{}")
    words = ["train", "--lerobot", "act", "--data", str(tmp_path / "set"), "--validation", "0"]
    assert main([*words, "--out", str(tmp_path / "run"), "--threads", "3"]) == 2
    assert (tmp_path / "threads").read_text() == "3\n"


def test_another_recipe_needs_another_directory_and_a_failure_is_said(tmp_path, capfd, monkeypatch):
    """A Python without LeRobot: its own words, and one line of ours."""
    monkeypatch.setenv("VLA_ROS_LEROBOT_PYTHON", "/usr/bin/env")
    (tmp_path / "set" / "meta").mkdir(parents=True)
    (tmp_path / "set" / "meta" / "info.json").write_text(json.dumps({}))
    words = ["train", "--data", str(tmp_path / "set"), "--out", str(tmp_path / "run")]
    words += ["--validation", "0"]
    assert main([*words, "--lerobot", "act"]) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert "LeRobot's trainer ended with status" in line and "nothing was saved yet" in line
    assert main([*words, "--lerobot", "smolvla"]) == 2
    assert "has policy act: keep that" in capfd.readouterr().err
    assert not (tmp_path / "run" / "training.json").exists()
