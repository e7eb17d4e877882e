"""What is different about each GR00T: how its folder is read, its backbone and its prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from vla_ros.engine.flow.family import Choice
from vla_ros.engine.flow.groot.backbone import Backbone
from vla_ros.engine.flow.groot.config import GrootConfig
from vla_ros.engine.flow.groot.embodiment import Embodiment
from vla_ros.engine.flow.groot.encoders import RowWeights
from vla_ros.engine.flow.weights import Expected


@dataclass(frozen=True, slots=True)
class Version:
    """``model_type`` is config.json's. ``read`` takes all of a folder but weights and tokenizer
    (CheckpointError), ``write`` writes that; ``expected`` are the tensors; ``backbone`` builds one
    for so many rows at most; ``prompt`` gives the text for an instruction and so many pictures;
    ``discrete`` the integers of the gate. ``presets`` are those of random weights.
    """

    kind: str
    model_type: str
    read: Callable[[Path, Choice], tuple[GrootConfig, Embodiment]]
    write: Callable[[Path, GrootConfig, Embodiment], None]
    expected: Callable[[GrootConfig], Expected]
    backbone: Callable[[GrootConfig, RowWeights, torch.Tensor, int], Backbone]
    prompt: Callable[[GrootConfig, str, int], str]
    discrete: Callable[[GrootConfig], dict[str, list[int]]]
    presets: Mapping[str, GrootConfig]
