"""The weights of the studies' checkpoints: in the history of the repository, not in a checkout."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import vla_ros

scripts = Path(__file__).resolve().parents[2] / "requirements"
shipped = Path(vla_ros.__file__).resolve().parent / "shipped"


def bring_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `make weights`, where the package under test is a clone's."""
    if shipped == scripts.parent / "vla_ros" / "shipped":
        monkeypatch.syspath_prepend(scripts)
        runpy.run_path(str(scripts / "weights.py"))["restore"]()


def needs_weights(*names: str) -> pytest.MarkDecorator:
    """Skip where a copy has no history to bring these of shipped: back from."""
    there = all((shipped / name / "model.safetensors").is_file() for name in names)
    return pytest.mark.skipif(not there, reason="weights not in this copy: run make weights")
