"""Other people's programs that drive ours in tests, in a folder of their own (`make strangers`)."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "build" / "strangers"


def stranger(module: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of theirs, for this test and the processes that it starts; skips it where there is
    none."""
    monkeypatch.syspath_prepend(str(FOLDER))
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (path, str(FOLDER)))))
    try:
        return importlib.import_module(module)
    except ImportError as error:
        pytest.skip(f"{error}: make strangers")
