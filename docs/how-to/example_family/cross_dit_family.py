"""How a folder of a :class:`cross_dit.CrossDiT` is read: the config reader of the example.

A folder has ``config.json`` (the fields of the config, and mean and standard deviation of states
and actions), ``model.safetensors`` and ``tokenizer.json``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from cross_dit import CrossDiT, CrossDiTConfig, expected_tensors

from vla_ros.core.action_space import action_space_of
from vla_ros.core.types import Image
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.base import FlowFamily, LoadOptions, Opened
from vla_ros.engine.families.random import TEXT_VOCAB
from vla_ros.engine.io.files import read_json, write_json
from vla_ros.engine.io.processors import Scaler, TextTokenizer
from vla_ros.engine.io.weights import Expected, Weights
from vla_ros.engine.models.base import Inputs
from vla_ros.engine.models.preparation import Preparation, padded_square, stacked

KIND = "cross-dit"
Scalers = tuple[Scaler, Scaler]  # of the state and of the action


SMALL = CrossDiTConfig(
    width=48,
    heads=4,
    layers=3,
    vocab=TEXT_VOCAB,
    image_size=56,
    patch=14,
    max_text=24,
    horizon=8,
    steps=4,
    action_dim=7,
    state_dim=9,
    cameras=("front", "wrist"),
)


class CrossDiTPreparation(Preparation):
    """Images padded to a square, the instruction's ids, states and actions by mean and
    deviation."""

    def __init__(
        self,
        config: CrossDiTConfig,
        scalers: Scalers,
        words: TextTokenizer,
        device: torch.device,
    ) -> None:
        self._config, self._words, self._device = config, words, device
        self._state, self._action = scalers
        self._ids = torch.empty(0, dtype=torch.int64)

    def instruct(self, text: str) -> None:
        ids = self._words(text)
        if len(ids) > self._config.max_text:
            raise ValueError(
                f"the instruction has {len(ids)} tokens, the most is {self._config.max_text}"
            )
        self._ids = torch.tensor(ids, device=self._device)

    def inputs(self, images: Sequence[Image | None], state: torch.Tensor) -> Inputs:
        size = self._config.image_size
        pixels = stacked(images, lambda one: padded_square(one, size, True, self._device))
        return Inputs(pixels, self._ids, self._state.normalize(state))

    def actions(self, chunk: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return self._action.restore(chunk)


class CrossDiTFamily(FlowFamily[CrossDiTConfig]):
    """Folders whose config.json has ``"type": "cross-dit"``."""

    kinds = (KIND,)
    presets = MappingProxyType({f"{KIND}-small": SMALL})

    def read_config(self, directory: Path) -> CrossDiTConfig:
        return read_config(directory)

    def expected(self, config: CrossDiTConfig) -> Expected:
        return expected_tensors(config)

    def units(self, directory: Path, config: CrossDiTConfig, options: LoadOptions) -> Scalers:
        return read_scalers(directory, config)

    def words(
        self, directory: Path, config: CrossDiTConfig, options: LoadOptions, units: Scalers
    ) -> TextTokenizer:
        return TextTokenizer(directory, options.tokenizer, "", config.vocab)

    def opened(
        self,
        config: CrossDiTConfig,
        weights: Weights,
        units: Scalers,
        words: TextTokenizer,
        directory: Path,
        options: LoadOptions,
    ) -> Opened:
        return Opened(
            config,
            weights,
            units,
            words,
            action_space_of(config.action_dim),
            lambda device: CrossDiTPreparation(config, units, words, device),
            lambda taken, to: CrossDiT(config, taken, to.like, to.capture),
        )

    def random_units(self, config: CrossDiTConfig) -> Scalers:
        """States as they are, actions of a tenth."""
        state = torch.zeros(config.state_dim), torch.ones(config.state_dim)
        action = torch.zeros(config.action_dim), torch.full((config.action_dim,), 0.1)
        return Scaler("MEAN_STD", *state), Scaler("MEAN_STD", *action)

    def write_config(self, directory: Path, config: CrossDiTConfig, units: Scalers) -> None:
        written = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in HERE}
        for name, scaler in zip(("state", "action"), units, strict=True):
            written |= {f"{name}_mean": scaler.low.tolist(), f"{name}_std": scaler.high.tolist()}
        write_json(directory / "config.json", {"type": KIND, **written})


CROSS_DIT = CrossDiTFamily()


HERE = ("kind", "continues")  # fields of the config that no file has
SCALES = tuple(f"{name}_{value}" for name in ("state", "action") for value in ("mean", "std"))


def read_config(directory: Path) -> CrossDiTConfig:
    """Every field must be there and known. CheckpointError names those that are not."""
    raw = read_json(directory / "config.json")
    wanted = {f.name for f in fields(CrossDiTConfig)} - set(HERE)
    lost, strange = wanted - set(raw), set(raw) - wanted - {"type", *SCALES}
    if lost or strange:
        raise CheckpointError(
            f"{directory / 'config.json'} lacks {sorted(lost)} and has {sorted(strange)}, which"
            " nothing here reads"
        )
    given: dict[str, Any] = {name: raw[name] for name in wanted}
    return CrossDiTConfig(**{**given, "cameras": tuple(given["cameras"])})


def read_scalers(directory: Path, config: CrossDiTConfig) -> Scalers:
    """Of the states and of the actions. CheckpointError: a statistic is missing or too short."""
    raw = read_json(directory / "config.json")
    found = [torch.tensor(raw.get(name, [])) for name in SCALES]
    sizes = [config.state_dim] * 2 + [config.action_dim] * 2
    for name, values, size in zip(SCALES, found, sizes, strict=True):
        if values.shape != (size,):
            raise CheckpointError(f"{name} in {directory} has {len(values)} values, wanted {size}")
    return Scaler("MEAN_STD", *found[:2]), Scaler("MEAN_STD", *found[2:])
