"""Changes to a checkpoint's folder: its JSON edited, its tensors replaced, its files taken away."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from vla_ros.engine import CheckpointError, EngineOptions, load_engine

WEIGHTS, CONFIG = "model.safetensors", "config.json"
Change = Callable[[Path], object]


def edit(name: str, change: Callable[[Any], object]) -> Change:
    def apply(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return apply


def tensors(change: Callable[[dict[str, torch.Tensor]], object], name: str = WEIGHTS) -> Change:
    def apply(folder: Path) -> None:
        found = {n: t.clone() for n, t in load_file(folder / name).items()}
        change(found)
        save_file({n: t.contiguous().clone() for n, t in found.items()}, str(folder / name))

    return apply


def both(*changes: Change) -> Change:
    def apply(folder: Path) -> None:
        for change in changes:
            change(folder)

    return apply


def without(*names: str) -> Change:
    def apply(folder: Path) -> None:
        for name in names:
            for path in folder.glob(name):
                path.unlink()

    return apply


def refused(folder: Path, **options: Any) -> str:
    """The one line with which an engine refuses a folder."""
    with pytest.raises((CheckpointError, ValueError)) as caught:
        load_engine(EngineOptions(str(folder), **options))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 900
    return message
