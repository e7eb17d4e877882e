"""The families of LeRobot's pi0, pi0.5 and SmolVLA: one layout of folder, one loader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.config import FlowConfig, read_flow_config
from vla_ros.engine.flow.family import Choice, Family, Place
from vla_ros.engine.flow.load import FlowPolicy, expected_tensors, inspect_folder, load_folder
from vla_ros.engine.flow.processors import read_processors
from vla_ros.engine.flow.random import PRESETS, load_random_flow, preset_of, write_random_flow
from vla_ros.engine.flow.weights import Expected


class LerobotFamily(Family[FlowConfig]):
    """Policies whose config.json has one of ``kinds`` for its ``type``."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds
        self.presets = {name: c for name, c in PRESETS.items() if c.kind in kinds}

    def owns(self, directory: Path) -> bool:
        """See Family."""
        return lerobot_type(directory) in self.kinds

    def config(self, source: Path | str, choice: Choice) -> FlowConfig:
        """See Family."""
        if isinstance(source, Path):
            return read_flow_config(source, choice.steps)
        config = preset_of(source)
        return config if choice.steps is None else replace(config, steps=choice.steps)

    def load(self, source: Path | str, choice: Choice, place: Place, seed: int = 0) -> FlowPolicy:
        """See Family."""
        device, dtype, capture = place.device, place.dtype, place.capture
        if isinstance(source, str):
            return load_random_flow(
                source, seed, device, dtype, choice.steps, capture, place.formatted
            )
        return load_folder(
            source, device, dtype, tokenizer=choice.tokenizer, steps=choice.steps,
            capture=capture, dress=place.formatted,
        )  # fmt: skip

    def write(self, directory: Path, preset: str, seed: int) -> None:
        """See Family."""
        write_random_flow(directory, self.presets[preset], seed)

    def inspect(self, directory: Path, choice: Choice) -> tuple[FlowConfig, int]:
        """See Family."""
        return inspect_folder(directory, choice.tokenizer)

    def expected(self, config: FlowConfig) -> Expected:
        """See Family."""
        return expected_tensors(config)

    def action_ends(self, directory: Path, choice: Choice) -> tuple[torch.Tensor, ...]:
        """See Family."""
        return read_processors(directory, self.config(directory, choice)).action.ends()


def lerobot_type(directory: Path) -> str | None:
    """``type`` in a folder's config.json; None where there is none."""
    path = directory / "config.json"
    if not path.is_file():
        return None
    try:
        found = read_json(path).get("type")
    except CheckpointError:
        return None
    return found if isinstance(found, str) else None
