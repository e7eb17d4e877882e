"""Pickles are read by the same program as ever, in a process only where a test is about that."""

from __future__ import annotations

import pytest


@pytest.fixture
def process() -> None:
    """Read pickles in a process of their own, as the converter does; 2 s each."""


@pytest.fixture(autouse=True)
def _here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    from vla_ros.engine.checkpoints.convert import unpickle, unpickle_process  # they need torch

    if "process" not in request.fixturenames:
        monkeypatch.setattr(unpickle, "_in_a_process", unpickle_process.main)
