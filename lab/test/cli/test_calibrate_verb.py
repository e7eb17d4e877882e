"""`vla-ros calibrate`: recorded tokens become a file for the decoding; refusals are one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from support.calibrations import moods
from support.weights import needs_weights
from vla_ros.cli.main import main
from vla_ros_lab.decodings.heterospec import read_calibration

SHIPPED = ["calibrate", "--checkpoint", "shipped:tabletop"]


def record(folder: Path, episodes: int = 8, shift: int = 600) -> Path:
    """As `eval --keep-tokens` keeps them, of the shipped policy's bins."""
    (folder / "tokens").mkdir()
    for number, episode in enumerate(moods(7, episodes)):
        tokens = np.asarray(episode, np.int32) + shift
        np.savez(folder / "tokens" / f"speculative_{number}.npz", tokens=tokens, success=True)
    return folder


def test_tokens_become_a_calibration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = tmp_path / "my.json"
    kept = str(record(tmp_path))
    assert main([*SHIPPED, "--tokens", kept, "--output", str(where), "--json"]) == 0
    shown = capsys.readouterr().out
    found = json.loads(shown.splitlines()[-1])
    calibration = read_calibration(str(where), where.parent)
    assert calibration.tokens == 7
    assert calibration.about["frames"] == found["frames"] == 4 * 90
    assert len(calibration.states[0].rounds) > 3
    bins = [row for row in found["bins"] if row["known"] == 0]
    assert bins[0]["entropy"][0] < bins[-1]["entropy"][0]
    assert bins[0]["accepted"] > bins[-1]["accepted"] + 2  # sure drafts stand
    assert bins[0]["nodes"] == 10 < bins[0]["fixed"] == 24
    rivals = {row["name"]: row for row in found["rivals"]}
    assert rivals["best tree in hindsight"]["passes"] < rivals["heterospec"]["passes"]
    assert rivals["static tree, cut in hindsight"]["passes"] == rivals["static tree"]["passes"]
    mine, static = rivals["heterospec"], rivals["static tree"]
    assert mine["passes"] < static["passes"]
    assert mine["verified"] < static["verified"]
    assert "less decoding than" in shown
    assert str(where) in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "belongs to the package: give --output FILE"),
        (["--checkpoint", "random:small"], "random weights do not act"),
        pytest.param(
            ["--checkpoint", "shipped:tabletop-oft"],
            "in one pass",
            marks=needs_weights("tabletop-oft"),
        ),
        (["--checkpoint", "nowhere"], "neither a directory nor a hub id"),
        (["--output", "no/such/folder/x.json"], "is no folder to write a file in"),
        (["--nodes", "24"], "give two numbers"),
        (["--drafter", "head", "--tokens", "x"], "give --rollouts, not --tokens"),
        (["--rollouts", "x"], "are for --drafter head"),
        (["--nodes", "0,4"], "at least 1 each"),
        (["--episodes", "0"], "at least 1"),
        (["--tokens", "a", "--bag", "b"], "not both"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_played(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SHIPPED, *words]) == 2
    assert said in capsys.readouterr().err


def test_too_little_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--output", str(tmp_path / "x.json")]
    assert main([*SHIPPED, *out, "--tokens", str(record(tmp_path, 2))]) == 2
    assert "2 episodes with 180 frames: give 2 episodes and 500" in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()
