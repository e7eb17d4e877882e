"""A token policy's checkpoint as it is in memory, and its folder's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.bitvla import Rows
from vla_ros.engine.io.config import ModelConfig, parse_config
from vla_ros.engine.io.files import naming, read_json
from vla_ros.engine.io.foreign import refuse_foreign
from vla_ros.engine.io.processors import read_preprocessor
from vla_ros.engine.layers.linear import LowBit

Tensors = dict[str, torch.Tensor]
STATISTICS = "dataset_statistics.json"
LANGUAGE, VQ = "language_model.", "vq."


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose headers have been checked. ``directory`` holds its tokenizer.

    ``tensors`` of a folder are :class:`~vla_ros.engine.io.streamed.Streamed`: each is read, and
    every number looked at, when it is asked for. ``quantized``: the weights that are not among them
    since they have fewer bits; ``words``: the word embeddings, where they are not among them
    either."""

    config: ModelConfig
    tensors: Mapping[str, torch.Tensor]
    norm_stats: Mapping[str, Any]
    directory: Path
    sha256: str
    quantized: Mapping[str, LowBit] = field(default_factory=dict)
    words: Rows | None = None


def read_config(directory: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Read ``config.json``, and ``preprocessor_config.json`` where there is one.

    Returns the config and the raw config.json (for its ``norm_stats``). Raises CheckpointError,
    beginning with the file's name, when they are missing, damaged or describe something else.
    """
    refuse_foreign(directory)
    path = directory / "config.json"
    raw = read_json(path)
    with naming(path):
        config = parse_config(raw)
    if config.text.ternary and not config.parallel:
        raise CheckpointError(
            f"{directory} is BitVLA without an action head, which says no actions: give a"
            " fine-tuned one, with action_head--*_checkpoint.pt, after `vla-ros convert`"
        )
    return read_preprocessor(directory, config), raw


def norm_stats_of(directory: Path, raw: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's action statistics by data set; ``raw`` is its config.json.

    Fine-tuned ones bring a ``dataset_statistics.json``, which overrides the other.
    """
    path = directory / STATISTICS
    if path.exists():
        found, where = read_json(path), str(path)
    else:
        found, where = raw.get("norm_stats") or {}, f"norm_stats in {directory / 'config.json'}"
    if not isinstance(found, dict) or not all(isinstance(v, dict) for v in found.values()):
        raise CheckpointError(f"{where}: wanted an object with an object for each data set")
    if not found:
        raise CheckpointError(
            f"{directory} has no action statistics: neither norm_stats in its config.json nor"
            f" a {STATISTICS}; copy the one of its training run there"
        )
    return found
