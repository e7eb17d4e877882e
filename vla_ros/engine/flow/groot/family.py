"""The family of NVIDIA's GR00Ts: one layout of folder, a version for each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.checkpoints.random import PREFIX
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.family import Choice, Family, Place
from vla_ros.engine.flow.groot.config import GrootConfig, with_steps
from vla_ros.engine.flow.groot.embodiment import choose
from vla_ros.engine.flow.groot.load import (
    GrootPolicy,
    folder_sha256,
    inspect_folder,
    load_folder,
)
from vla_ros.engine.flow.groot.n15 import VERSION as N15
from vla_ros.engine.flow.groot.n16 import VERSION as N16
from vla_ros.engine.flow.groot.n17 import VERSION as N17
from vla_ros.engine.flow.groot.random import load_random, write_random
from vla_ros.engine.flow.groot.version import Version
from vla_ros.engine.flow.weights import Expected

VERSIONS = (N17, N16, N15)


class GrootFamily(Family[GrootConfig]):
    """One version of them: ``model_type`` in config.json says which."""

    takes = frozenset({"tokenizer", "steps", "embodiment"})

    def __init__(self, version: Version) -> None:
        self.version, self.kinds = version, (version.kind,)
        self.presets: Mapping[str, GrootConfig] = version.presets

    def owns(self, directory: Path) -> bool:
        """See Family."""
        path = directory / "config.json"
        if not path.is_file():
            return False
        try:
            return read_json(path).get("model_type") == self.version.model_type
        except CheckpointError:
            return False

    def config(self, source: Path | str, choice: Choice) -> GrootConfig:
        """See Family."""
        if isinstance(source, Path):
            return self.version.read(source, choice)[0]
        config = self.presets[source.removeprefix(PREFIX)]
        choose(choice.embodiment, [config.embodiment], Path(source))
        return replace(config, head=with_steps(config.head, choice.steps))

    def load(self, source: Path | str, choice: Choice, place: Place, seed: int = 0) -> GrootPolicy:
        """See Family."""
        if isinstance(source, Path):
            return load_folder(self.version, source, choice, place)
        preset, config = source.removeprefix(PREFIX), self.config(source, choice)
        return load_random(self.version, preset, choice, place, seed, config)

    def write(self, directory: Path, preset: str, seed: int) -> None:
        """See Family."""
        write_random(self.version, directory, self.presets[preset], seed)

    def inspect(self, directory: Path, choice: Choice) -> tuple[GrootConfig, int]:
        """See Family."""
        return inspect_folder(self.version, directory, choice)

    def expected(self, config: GrootConfig) -> Expected:
        """See Family. Those of all robots."""
        return self.version.expected(config)

    def weight_bytes(self, config: GrootConfig, dtype: torch.dtype) -> int:
        """See Family. Of the stacks with a row for each robot one row is held, in float32."""
        held = 0
        for name, shape in self.version.expected(config).must.items():
            stack = name.endswith((".W", ".b"))
            size = math.prod(shape[1:] if stack else shape)
            held += size * (4 if stack else dtype.itemsize)
        return held

    def action_ends(self, directory: Path, choice: Choice) -> tuple[torch.Tensor, ...]:
        """See Family."""
        _, robot = self.version.read(directory, choice)
        return robot.ends()

    def sha256(self, directory: Path) -> str:
        """See Family."""
        return folder_sha256(directory)


FAMILIES = tuple(GrootFamily(version) for version in VERSIONS)
