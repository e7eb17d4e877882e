"""The state of a run on disk: there is always a whole one, whenever the process is killed.

Batches and noise are functions of (seed, step), so the step is the state of all random numbers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

STATE_FILE = "state.pt"


@dataclass(frozen=True, slots=True)
class State:
    """After ``step`` steps. ``seconds``: training time so far, over all sittings; ``average``:
    the moving average of the weights, which is what a checkpoint gets."""

    step: int
    seconds: float
    model: dict[str, Any]
    average: dict[str, Any]
    optimiser: dict[str, Any]


def save_state(directory: Path, state: State) -> None:
    """Write beside the old state, reach the disk, then replace it."""
    path = directory / STATE_FILE
    scratch = path.with_suffix(".tmp")
    parts = {name: getattr(state, name) for name in State.__dataclass_fields__}
    with scratch.open("wb") as stream:
        torch.save(parts, stream)
        stream.flush()
        os.fsync(stream.fileno())
    scratch.replace(path)


def load_state(directory: Path, device: torch.device) -> State | None:
    """The last whole state; None where there is none yet."""
    path = directory / STATE_FILE
    if not path.exists():
        return None
    return State(**torch.load(path, map_location=device, weights_only=True))
