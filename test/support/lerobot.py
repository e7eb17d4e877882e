"""LeRobot's interpreter, and small checkpoints made by LeRobot in it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from vla_ros.policies.load import VARIABLE, lerobot_python

MAKER = Path(__file__).with_name("lerobot_checkpoints.py")


def interpreter() -> str:
    """Skips the test, with the reason, where there is none."""
    python = lerobot_python()
    if not python.is_file():
        pytest.skip(f"no LeRobot: `vla-ros lerobot setup`, or {VARIABLE}=.../bin/python")
    return str(python)


def make_checkpoints(folder: Path, *kinds: str) -> Path:
    """One folder a kind; see lerobot_checkpoints.py."""
    done = subprocess.run(
        [interpreter(), "-I", str(MAKER), str(folder), *kinds],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def said(folder: Path) -> dict[str, np.ndarray]:
    """What LeRobot itself made of one observation: wrist, main, side, state, actions."""
    with np.load(folder / "said.npz") as file:
        return dict(file)
