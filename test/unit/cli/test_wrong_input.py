"""Every verb: what the user can put right is one line and exit status 2, before any work."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("mujoco", reason="mujoco is not installed")

import torch

from support.timing import judge
from support.train import data_set
from vla_ros.cli.main import main

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
NO_FOLDER = "there is a file of this name, and a folder is needed"


class Verb:
    """Runs `vla-ros` in a folder; its one line on stderr, and that the folder stays as it is."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys

    def __call__(self, *words: str) -> str:
        before = sorted(self.folder.rglob("*"))
        assert main(words) == 2
        out, said = self._capsys.readouterr()
        assert out == ""
        assert said.count("\n") == 1, said
        assert said.startswith(f"vla-ros {words[0]}: ")
        assert sorted(self.folder.rglob("*")) == before
        return said


@pytest.fixture
def said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Verb:
    """In a folder with a file called `file`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("no folder\n")
    return Verb(tmp_path, capsys)


SMALL = ("bench", "--rows", "generate", "--warm-up", "0", "--timed", "1")


@pytest.mark.parametrize(
    ("words", "needle"),
    [
        ((*SMALL, "--frames", "nope.npz"), "nope.npz: No such file"),
        ((*SMALL, "--frames", "file"), "file: no .npz file"),
        ((*SMALL, "--output", "file"), f"file: {NO_FOLDER}"),
        ((*SMALL, "--output", "file/below"), f"file/below: {NO_FOLDER}"),
        ((*SMALL, "--device", "warp"), "device is 'warp'"),
        ((*SMALL, "--rows", "fast"), "rows fast are unknown: there are generate,"),
        (("collect", "--demos", "1", "--out", "file"), f"file: {NO_FOLDER}"),
        (("collect", "--demos", "1", "--out", "x", "--policy", "nowhere"), "nowhere"),
        (("train", "--data", ".", "--out", "x", "--device", "warp"), "device is 'warp'"),
        (("eval", "--policy", "scripted", "--no-ros", "--out", "file"), f"file: {NO_FOLDER}"),
        (("eval", "--no-ros", "--device", "warp"), "device is 'warp'"),
        (("up", "sim", "--namespace", "1bad"), "--namespace 1bad: "),
        (("up", "sim", "--namespace", "a//b"), "--namespace a//b: "),
        (("up", "sim", "-r", "image=1bad"), "1bad"),
        (("record", "--namespace", "1bad"), "--namespace 1bad: "),
        (("record", "-r", "image=camera one"), "camera one"),
        (("record", "-p", "foo=1"), "node recorder has no parameter 'foo'; see docs"),
        (("record", "-p", "flight_second=1"), "did you mean 'flight_seconds'"),
        (("record", "-p", "nonsense"), "write PARAMETER=VALUE"),
        (("demo", "--decoding", "foo"), "decoding foo: there are auto, autoregressive,"),
        (("demo", "-p", "policy.decoding=foo"), "decoding foo: there are auto, autoregressive"),
        (
            ("demo", "--initial-state", "99"),
            "has no initial state 99; it has 0 to 49",
        ),
        (
            ("demo", "--initial-state", "-1"),
            "has no initial state -1; it has 0 to 49",
        ),
        (("demo", "--task", "fold"), "no task 'fold'; it has: pick_red_cube,"),
        (("demo", "-p", "bridge.task=fold"), "no task 'fold'; it has: pick_red_cube,"),
        (("demo", "--device", "warp"), "device is 'warp'"),
        (("demo", "-p", "policy.polcy=zero"), "did you mean 'policy'"),
        pytest.param((*SMALL, "--device", "cuda"), "torch finds no GPU here", marks=NO_GPU),
        pytest.param(("demo", "--device", "cuda"), "torch finds no GPU here", marks=NO_GPU),
        pytest.param(
            ("eval", "--no-ros", "--device", "cuda:0"), "torch finds no GPU here", marks=NO_GPU
        ),
        pytest.param(
            ("train", "--data", ".", "--out", "x", "--device", "cuda"),
            "torch finds no GPU here",
            marks=NO_GPU,
        ),
    ],
)
def test_it_is_one_line_and_nothing_is_begun(
    said: Verb, words: tuple[str, ...], needle: str
) -> None:
    began = time.monotonic()
    assert needle in said(*words)
    judge("refused", time.monotonic() - began, quiet=5.0, loaded=30.0)


def test_train_into_a_file(said: Verb, tmp_path: Path) -> None:
    data_set(tmp_path / "set")
    words = ("train", "--data", "set", "--arch", "tiny", "--steps", "1", "--device", "cpu")
    assert f"file: {NO_FOLDER}" in said(*words, "--out", "file")


def test_a_shard_that_is_none(said: Verb, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "shard-0000.hdf5").write_text("hello")
    assert "set/shard-0000.hdf5" in said("train", "--data", "set", "--out", "x", "--arch", "tiny")


def test_frames_of_another_kind(said: Verb, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 8, 8), np.uint8))
    np.savez(tmp_path / "b.npz", pictures=np.zeros(1))
    np.savez(tmp_path / "c.npz", images=np.zeros((0, 8, 8, 3), np.uint8))
    assert "not uint8 [N, h, w, 3]" in said(*SMALL, "--frames", "a.npz")
    assert "no array 'images': there is pictures" in said(*SMALL, "--frames", "b.npz")
    assert "c.npz" in said(*SMALL, "--frames", "c.npz")


def test_an_error_of_the_program_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from vla_ros.cli import doctor

    for wrong in (ValueError("a bug"), KeyError("a bug"), OSError(9, "Bad file descriptor")):
        monkeypatch.setattr(doctor, "run", lambda _, wrong=wrong: raise_(wrong))
        with pytest.raises(type(wrong)):
            main(["doctor"])


def raise_(error: Exception) -> None:
    raise error
