"""A hundred mistakes of a first hour: one line that names the cause, before anything starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("mujoco", reason="mujoco is not installed")

from support.mistakes import MISTAKES, laid_out, typed
from support.timing import judge
from vla_ros.cli.main import main

NOBODY = "http://127.0.0.1:9"  # discard: nobody is there


@pytest.fixture(scope="module")
def taken() -> Iterator[int]:
    """A port that another server has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of its own and a hub that nobody answers at, in this process and those it starts."""
    from huggingface_hub import constants

    home = tmp_path / "home"
    monkeypatch.setattr(constants, "ENDPOINT", NOBODY)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home))
    for name, value in {"HF_ENDPOINT": NOBODY, "HF_HOME": home, "XDG_STATE_HOME": home}.items():
        monkeypatch.setenv(name, str(value))
    for name in [name for name in os.environ if "proxy" in name.lower()]:
        monkeypatch.delenv(name)


def test_there_are_more_than_69() -> None:
    assert len(MISTAKES) > 69


@pytest.mark.parametrize("line", MISTAKES)
def test_it_is_one_line_before_anything_starts(
    line: str, taken: int, offline: None, tmp_path: Path, ros_env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = laid_out(tmp_path / "here")
    before = sorted(folder.rglob("*"))
    monkeypatch.chdir(folder)
    given = typed(line, taken)
    for name, value in given.variables.items():
        monkeypatch.setenv(name, value)

    def starts(*_: object, **__: object) -> None:
        pytest.fail("it starts a process")

    monkeypatch.setattr(subprocess, "Popen", starts)
    try:
        status = main(given.words)
    except SystemExit as ended:
        status = int(ended.code or 0)
    _judge(line, taken, status, *capfd.readouterr())
    assert sorted(folder.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize("line", MISTAKES)
def test_so_it_is_as_a_command_within_three_seconds(
    line: str, taken: int, offline: None, tmp_path: Path, ros_env: dict[str, str]
) -> None:
    given = typed(line, taken)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "vla_ros", *given.words], cwd=laid_out(tmp_path / "here"),
        env={**os.environ, **ros_env, "HF_ENDPOINT": NOBODY, **given.variables},
        capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    judge("refused", time.monotonic() - began, quiet=3.0, loaded=60.0)
    _judge(line, taken, done.returncode, done.stdout, done.stderr)


def _judge(line: str, port: int, status: int, out: str, err: str) -> None:
    """One line on stderr, but doctor's on stdout, which is a table."""
    assert status in (1, 2), out + err
    said = err or out.splitlines()[0]
    assert said.count("\n") <= 1 and "Traceback" not in said, said
    for words in MISTAKES[line]:
        assert words.replace("PORT", str(port)) in said, said
