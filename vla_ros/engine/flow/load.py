"""From a LeRobot folder (or a preset of random weights) to a model that is ready to run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from vla_ros.action_space import ActionSpace
from vla_ros.engine.checkpoints.freed import give_back_freed
from vla_ros.engine.flow.config import FlowConfig, read_flow_config
from vla_ros.engine.flow.gate import check_discrete, read_discrete
from vla_ros.engine.flow.model import FlowModel
from vla_ros.engine.flow.pi import PiModel, pi_expected
from vla_ros.engine.flow.preparation import LerobotPreparation
from vla_ros.engine.flow.processors import Processors, read_processors
from vla_ros.engine.flow.smolvla import SmolVlaModel, smolvla_expected
from vla_ros.engine.flow.stored import StoredWeights, stored_weights
from vla_ros.engine.flow.text import PromptTokenizer
from vla_ros.engine.flow.weights import (
    Dress,
    Expected,
    FileWeights,
    Weights,
    as_they_are,
    sha256_of,
)
from vla_ros.engine.layout import action_space_of
from vla_ros.engine.packed.graphs import Capture

WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class FlowPolicy:
    """pi0, pi0.5 or SmolVLA, read and checked; see :class:`vla_ros.engine.flow.family.Loaded`."""

    config: FlowConfig
    model: FlowModel
    processors: Processors
    tokenizer: PromptTokenizer
    sha256: str

    @property
    def action_space(self) -> ActionSpace:
        """By their number, and by the names that the data set kept."""
        return action_space_of(self.config.action_dim, self.processors.action_names)

    def preparation(self) -> LerobotPreparation:
        """What stands between the robot's units and the model's."""
        return LerobotPreparation(self.config, self.processors, self.tokenizer, self.model.device)


def load_folder(
    directory: Path,
    device: torch.device,
    dtype: torch.dtype,
    *,
    tokenizer: str | None = None,
    steps: int | None = None,
    capture: Capture | None = None,
    dress: Dress = as_they_are,
) -> FlowPolicy:
    """Read everything of a LeRobot folder; cheap checks first.

    ``tokenizer`` is the folder of the language model's tokenizer where the checkpoint has none,
    ``steps`` overrides the solver's, ``dress`` puts the weights in their formats. CheckpointError
    in one line for what cannot be used.
    """
    parts = _open(directory, tokenizer, steps)
    like = torch.empty(0, device=device, dtype=dtype)
    weights = dress(parts.weights)
    model = build_model(parts.config, weights, parts.positions, like, capture)
    return FlowPolicy(parts.config, model, parts.processors, parts.words, sha256_of(directory))


def inspect_folder(directory: Path, tokenizer: str | None = None) -> tuple[FlowConfig, int]:
    """All that loading would find wrong, one tensor at a time: the config and the number of its
    parameters. CheckpointError as of :func:`load_folder`."""
    parts = _open(directory, tokenizer)
    shapes = expected_tensors(parts.config).must
    for name in parts.weights.read_all(shapes):
        parts.weights.take(name)
    return parts.config, sum(math.prod(shape) for shape in shapes.values())


@dataclass(frozen=True, slots=True)
class _Parts:
    """A folder's parts; of the weights only the header was read."""

    config: FlowConfig
    processors: Processors
    words: PromptTokenizer
    positions: torch.Tensor
    weights: FileWeights | StoredWeights


def _open(directory: Path, tokenizer: str | None, steps: int | None = None) -> _Parts:
    config = read_flow_config(directory, steps)
    processors = read_processors(directory, config)
    words = PromptTokenizer(
        directory, tokenizer, processors.tokenizer, config.shapes.text.vocab_size
    )
    positions = check_discrete(config, read_discrete(directory, config), str(directory))
    expected = expected_tensors(config)
    weights = stored_weights(directory, expected) or FileWeights(directory / WEIGHTS, expected)
    return _Parts(config, processors, words, positions, weights)


def expected_tensors(config: FlowConfig) -> Expected:
    """The tensors that a checkpoint of ``config`` must have."""
    return smolvla_expected(config) if config.kind == "smolvla" else pi_expected(config)


def build_model(
    config: FlowConfig,
    weights: Weights,
    positions: torch.Tensor,
    like: torch.Tensor,
    capture: Capture | None = None,
) -> FlowModel:
    """The model of ``config`` in the dtype and on the device of ``like``."""
    family = SmolVlaModel if config.kind == "smolvla" else PiModel
    model = family(config, weights, positions, like, capture)
    give_back_freed()
    return model
