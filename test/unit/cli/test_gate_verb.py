"""`vla-ros gate`: a verdict, a page, a file; wrong usage is one line and status 2."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from support.engine import tiny_config
from vla_ros.cli.gate.frames import spread
from vla_ros.cli.main import main
from vla_ros.engine.checkpoints.random import write_random
from vla_ros.precision.store import Precision, find

ANY = ["--max-mm", "1000", "--max-degrees", "360", "--max-margin", "1"]  # random weights


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_random(tmp_path / "it", tiny_config(towers="fused"), seed=1)
    return tmp_path / "it"


def test_a_gate_is_passed_kept_and_shown(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html = tmp_path / "gate.html"
    words = ["gate", "--checkpoint", str(checkpoint), "--synthetic", "--frames", "3", *ANY,
             "--html", str(html), "--json"]  # fmt: skip
    assert main(words) == 0
    shown = capsys.readouterr().out.splitlines()
    found = json.loads(shown[-1])
    assert found["passed"] is True
    assert found["frames"] == 3
    assert found["dtype"] == "bfloat16"
    names = [stage["name"] for stage in found["stages"]]
    assert names[:4] == ["pixels of featurizer", "pixels of fused_featurizer", "vision",
                         "projector"]  # fmt: skip
    assert found["checked"]["tokens (argmax)"] == 21
    assert "passed" in shown
    page = html.read_text()
    assert page.count("<figure>") == len(names)
    assert "<script" not in page
    kept = find(found["checkpoint_sha256"], Precision("bfloat16"), checkpoint)
    assert kept is not None
    assert kept.passed
    assert Path(found["kept"]).is_file()


def test_a_gate_that_is_failed(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gate", "--checkpoint", str(checkpoint), "--synthetic", "--frames", "1",
             "--max-error", "1e-6"]  # fmt: skip
    assert main(words) == 1
    shown = capsys.readouterr().out
    assert "stages are off by more than 1e-06; the first is pixels" in shown
    assert "FAILED" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--frames", "0"], "at least 1"),
        (["--dtype", "float32"], "the reference itself"),
        (["--synthetic", "--images", "x.npz"], "one of them"),
        (["--device", "tpu"], "device is 'tpu'"),
        (["--checkpoint", "nowhere"], "neither a directory nor a hub id"),
        (["--max-error", "-1"], "give 0 or more"),
        (["--html", "no/such/x.html"], "is no folder"),
        (["--images", "nowhere.npz"], "nowhere.npz"),
        (["--bag", "nowhere"], "there is no such bag"),
    ],
)
def test_wrong_usage(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate", *words]) == 2
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "vla-ros gate" in one]
    assert said in line


def test_frames_are_taken_evenly() -> None:
    assert spread(100, 3) == [0, 50, 99]  # numpy rounds half to even
    assert spread(2, 5) == [0, 1]
    assert spread(10, 1) == [0]
    assert len(spread(1000, 24)) == 24
    assert np.ptp(np.diff(spread(1000, 24))) <= 1
