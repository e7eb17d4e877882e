"""`vla-ros loop`: what the other verbs wrote, joined by the SHA-256 of the checkpoint."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("mujoco")
pytest.importorskip("rosbags", reason="rosbags is not installed: pip install '.[replay]'")

from support.bags import START, T, action, image, picture, status, task, write_bag
from support.train import data_set
from vla_ros.cli.main import main
from vla_ros.core.types import CommandKind, PolicyState
from vla_ros.data.run_info import FILE, RunInfo
from vla_ros.engine.load import sha256_on_disk
from vla_ros_lab.loop.chain import read_bag

TINY = ["--arch", "tiny", "--batch", "4", "--threads", "1", "--device", "cpu"]
EVAL = ["eval", "--no-ros", "--tasks", "reach_red_cube", "--episodes", "1", "--max-steps", "3"]


def run_of(folder, sha256, person=(4, 5, 10)):
    """A bag of 12 commands in which this checkpoint ran and a person took over twice."""
    entries = [task(START - T // 2, "put the lid on the jar")]
    for i in range(12):
        kind = CommandKind.TAKEOVER if i in person else CommandKind.POLICY
        state = PolicyState.TAKEOVER if i in person else PolicyState.RUNNING
        entries += [status(START + i * T, state)]
        moved = [0.01 * np.sin(i), 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
        entries += [image(START + i * T, picture(i))]
        entries += [action(START + i * T, moved, epoch=1 + i // 6, kind=kind)]
    write_bag(folder, entries)
    info = RunInfo(
        created="2026-11-26T07:00:00Z",
        checkpoint_sha256=sha256,
        parameters={"policy": {"control_rate_hz": 20.0}},
    )
    (folder / FILE).write_text(info.text())
    return folder


@pytest.fixture(scope="module")
def robot(tmp_path_factory):
    """Two generations: trained, evaluated against each other, and the run in between."""
    home = tmp_path_factory.mktemp("robot")
    first, second = home / "first" / "policy", home / "second" / "policy"
    data = data_set(home / "demonstrations")
    assert (
        main(["train", "--data", str(data), "--out", str(first.parent), *TINY, "--steps", "80"])
        == 0
    )
    assert main([*EVAL, "--checkpoint", str(first), "--out", str(home / "eval-first")]) == 0
    current = home / "current"
    current.symlink_to(first)
    bag = run_of(home / "run1", sha256_on_disk(str(first)))
    words = ["train", "--data", str(bag), "--out", str(second.parent), *TINY, "--steps", "20"]
    assert main([*words, "--init-from", str(current)]) == 0
    words = [*EVAL, "--checkpoint", str(second), "--out", str(home / "eval-second")]
    words += ["--against", str(home / "eval-first"), "--margin", "0.8"]
    assert main([*words, "--promote", str(current)]) in (
        0,
        3,
    )
    return home


def test_generations_are_joined_by_what_ran_and_not_by_names(robot, capsys):
    assert main(["loop", str(robot), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    first, second = found["generations"]
    assert (first["generation"], first["name"]) == (0, "first")
    assert (second["generation"], second["name"]) == (1, "second")
    # The link that it went on from names the second one by now.
    assert second["parent_sha256"] == first["checkpoint_sha256"] != second["checkpoint_sha256"]
    (data,) = second["data"]
    assert data.startswith("imported-run1-") and second["corrections"] == 3
    assert second["steps"] == 20 and second["episodes"] == first["episodes"] == 1
    assert (first["won"], second["won"] + second["lost"]) == (None, 0)
    assert first["person_share"] == pytest.approx(0.25)
    assert first["minutes"] == pytest.approx(0.01)
    assert first["takeovers_per_minute"] == pytest.approx(200)
    assert first["age_ms"] == [10.0, 10.0] and second["person_share"] is None
    assert second["age_ms"] is None  # its evaluation is in lock-step
    assert found["left_out"] == []


def test_a_flight_record_is_no_run_of_its_own(tmp_path):
    """Its seconds are those of a run again."""
    folder = run_of(tmp_path / "flight_20261126_070000_000000_hold", "0" * 64)
    assert read_bag(folder) is not None
    info = RunInfo.parse((folder / FILE).read_text())
    (folder / FILE).write_text(replace(info, reason="hold: too old").text())
    assert read_bag(folder) is None


def test_a_run_lasts_as_long_as_its_stamps_say_however_many_commands_came(tmp_path):
    """A loaded machine: every fourth command came, and for a minute nothing ran."""
    entries = [task(START - T // 2, "put the lid on the jar")]
    for i in range(24):
        at = START + 4 * i * T + (i >= 12) * 60 * 20 * T
        kind = CommandKind.STOP if i < 6 else CommandKind.POLICY
        kind = CommandKind.TAKEOVER if 12 <= i < 18 else kind
        entries += [status(at, PolicyState.TAKEOVER if 12 <= i < 18 else PolicyState.RUNNING)]
        entries += [action(at, [0.0] * 7, epoch=1, kind=kind)]
    folder = tmp_path / "run"
    write_bag(folder, entries)
    parameters = {"policy": {"control_rate_hz": 20.0}}
    info = RunInfo(created="", checkpoint_sha256="0" * 64, parameters=parameters)
    (folder / FILE).write_text(info.text())
    _, bag = read_bag(folder)
    assert bag.run_s == pytest.approx(24 * 0.2) and bag.takeovers == 1
    assert bag.policy_s == pytest.approx(12 * 0.2) and bag.person_s == pytest.approx(6 * 0.2)


def test_the_page_is_one_file_with_a_picture(robot, tmp_path, capsys):
    page = tmp_path / "report" / "loop.html"
    assert main(["loop", str(robot), "--out", str(page)]) == 0
    said = capsys.readouterr().out
    assert "1 second" in said and str(page) in said
    shown = page.read_text()
    assert "2 generations; solved" in shown and "<svg" in shown and "200.0/min" in shown
    assert "src=" not in shown and "http" not in shown.replace("http://www.w3.org", "")


def test_the_picture_is_written_as_its_name_says(robot, tmp_path, capsys):
    picture = tmp_path / "loop.png"
    assert main(["loop", str(robot), "--picture", str(picture)]) == 0
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert main(["loop", str(robot), "--picture", str(tmp_path / "loop.word")]) == 2
    assert "loop.word: Format 'word' is not supported" in capsys.readouterr().err


def test_what_cannot_be_read_is_said_and_the_rest_is_shown(robot, tmp_path, capsys):
    broken = tmp_path / "eval"
    broken.mkdir()
    (broken / "summary.json").write_text("{")
    assert main(["loop", str(broken)]) == 2
    assert "summary.json" in capsys.readouterr().err
    assert main(["loop", str(robot), str(broken)]) == 0
    assert f"left out: {broken}/summary.json" in capsys.readouterr().out
    assert main(["loop", str(tmp_path / "nowhere")]) == 2
    assert "nowhere is no folder" in capsys.readouterr().err
