"""From a LeRobot folder (or a preset of random weights) to a model that is ready to run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.config import FLOW_TYPES, FlowConfig, read_flow_config
from vla_ros.engine.flow.gate import check_discrete, read_discrete
from vla_ros.engine.flow.model import FlowModel
from vla_ros.engine.flow.pi import PiModel, pi_expected
from vla_ros.engine.flow.processors import Processors, read_processors
from vla_ros.engine.flow.reading import read_json
from vla_ros.engine.flow.smolvla import SmolVlaModel, smolvla_expected
from vla_ros.engine.flow.text import PromptTokenizer
from vla_ros.engine.flow.weights import Expected, FileWeights, Weights, sha256_of
from vla_ros.engine.packed.graphs import Capture

WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class FlowPolicy:
    """A policy of this family, read and checked."""

    config: FlowConfig
    model: FlowModel
    processors: Processors
    tokenizer: PromptTokenizer
    sha256: str


def is_flow(directory: Path) -> bool:
    """Whether a folder holds a policy of this family, by its config.json's ``type``."""
    path = directory / "config.json"
    if not path.is_file():
        return False
    try:
        return read_json(path).get("type") in FLOW_TYPES
    except CheckpointError:
        return False


def load_folder(
    directory: Path,
    device: torch.device,
    dtype: torch.dtype,
    *,
    tokenizer: str | None = None,
    steps: int | None = None,
    capture: Capture | None = None,
) -> FlowPolicy:
    """Read everything of a LeRobot folder; cheap checks first.

    ``tokenizer`` is the folder of the language model's tokenizer where the checkpoint has none,
    ``steps`` overrides the solver's. CheckpointError in one line for what cannot be used.
    """
    config = read_flow_config(directory, steps)
    processors = read_processors(directory, config)
    words = PromptTokenizer(
        directory, tokenizer, processors.tokenizer, config.shapes.text.vocab_size
    )
    positions = check_discrete(config, read_discrete(directory, config), str(directory))
    weights = FileWeights(directory / WEIGHTS, expected_tensors(config))
    like = torch.empty(0, device=device, dtype=dtype)
    model = build_model(config, weights, positions, like, capture)
    return FlowPolicy(config, model, processors, words, sha256_of(directory))


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
    return family(config, weights, positions, like, capture)
