"""Checkpoints of the authors' own classes, unpacked; see test/golden/README.md."""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

GOLDEN = Path(__file__).resolve().parents[3] / "golden"
sys.path.insert(0, str(GOLDEN))  # scenes, which the authors' side imports too


@dataclass(frozen=True)
class Golden:
    """A checkpoint directory, and what the original says with it."""

    directory: Path
    expected: dict[str, Any]


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Golden]:
    """`golden("openvla")`."""
    folder = tmp_path_factory.mktemp("golden")
    found: dict[str, Golden] = {}

    def unpack(name: str) -> Golden:
        if name not in found:
            with tarfile.open(GOLDEN / "data" / f"{name}.tar.xz") as archive:
                archive.extractall(folder, filter="data")
            with np.load(folder / name / "expected.npz") as arrays:
                expected = {key: arrays[key] for key in arrays.files}
            found[name] = Golden(folder / name, expected)
        return found[name]

    return unpack
