"""`vla-ros bench` of small checkpoints, without LeRobot's interpreter."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from vla_ros.cli.main import main
from vla_ros.policies.load import VARIABLE


@pytest.fixture(autouse=True)
def no_lerobot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere/python")


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """A run over a checkpoint in float32; its JSON."""

    def run(checkpoint: str, *words: str) -> dict[str, Any]:
        capsys.readouterr()
        assert (
            main(["bench", "--checkpoint", checkpoint, "--dtype", "float32", *words, "--json"]) == 0
        )
        found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return found

    return run
