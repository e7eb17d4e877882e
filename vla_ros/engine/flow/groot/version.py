"""What is different about each GR00T: how its folder is read, its backbone and its prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.family import Choice
from vla_ros.engine.flow.groot.backbone import Backbone
from vla_ros.engine.flow.groot.config import GrootConfig
from vla_ros.engine.flow.groot.eagle import EagleConfig
from vla_ros.engine.flow.groot.encoders import RowWeights
from vla_ros.engine.flow.groot.qwen_vl import QwenVlConfig
from vla_ros.engine.flow.groot.robot import Robot
from vla_ros.engine.flow.groot.shapes import HeadConfig
from vla_ros.engine.flow.weights import Expected

Words = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Version:
    """``model_type`` is config.json's. ``read`` takes all of a folder but weights and tokenizer
    (CheckpointError), ``write`` writes that; ``expected`` are the tensors; ``backbone`` builds one
    for so many rows at most; ``prompt`` gives the text for an instruction and so many pictures;
    ``words`` reads the tokenizer of a folder; ``discrete`` gives the integers of the gate.
    ``presets`` are those of random weights, ``robot`` the one of such a preset.
    """

    kind: str
    model_type: str
    read: Callable[[Path, Choice], tuple[GrootConfig, Robot]]
    write: Callable[[Path, GrootConfig, Robot], None]
    expected: Callable[[GrootConfig], Expected]
    backbone: Callable[[GrootConfig, RowWeights, torch.Tensor, int], Backbone]
    prompt: Callable[[GrootConfig, str, int], str]
    words: Callable[[Path, Choice, GrootConfig], Words]
    discrete: Callable[[GrootConfig], dict[str, list[int]]]
    robot: Callable[[GrootConfig], Robot]
    presets: Mapping[str, GrootConfig]


def config_for(
    kind: str, backbone: QwenVlConfig | EagleConfig, head: HeadConfig, robot: Robot
) -> GrootConfig:
    """CheckpointError where the robot does not fit the model."""
    sizes = (
        ("row", robot.row + 1, head.embodiments), ("state", robot.state_wide, head.state_width),
        ("action", robot.action_dim, head.action_width), ("horizon", robot.horizon, head.horizon),
    )  # fmt: skip
    wrong = [f"{name} {has} of {most}" for name, has, most in sizes if has > most]
    if wrong:
        raise CheckpointError(f"{robot.tag} is wider than the model: {', '.join(wrong)}")
    return GrootConfig(
        kind, backbone, head, robot.tag, robot.row, robot.horizon, robot.state_dim,
        robot.action_dim, robot.cameras,
    )  # fmt: skip
