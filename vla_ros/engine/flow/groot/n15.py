"""GR00T N1.5: NVIDIA's folder, Eagle in front of the head, the presets of random weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vla_ros.engine.checkpoints.config import TowerConfig
from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.family import Choice
from vla_ros.engine.flow.groot.config import GrootConfig, with_steps
from vla_ros.engine.flow.groot.eagle import EagleConfig, eagle_n15
from vla_ros.engine.flow.groot.eagle_config import N15, eagle_json, head15_json, parse_n15
from vla_ros.engine.flow.groot.eagle_prompt import pictures_first
from vla_ros.engine.flow.groot.metadata import (
    DATA_CONFIG,
    METADATA,
    MetadataRobot,
    Values,
    read_robot,
)
from vla_ros.engine.flow.groot.n16 import (
    PICTURE,
    SMALL_HEAD,
    SMALL_TEXT,
    TABLETOP,
    backbone_of,
    discrete,
    eagle_and_head,
    eagle_of,
    words,
)
from vla_ros.engine.flow.groot.robot import Robot
from vla_ros.engine.flow.groot.shapes import HeadConfig
from vla_ros.engine.flow.groot.version import Version, config_for
from vla_ros.engine.flow.weights import Expected

MODEL_TYPE = "gr00t_n1_5"
_TAG, _ROW = "new_embodiment", 31


def read(directory: Path, choice: Choice) -> tuple[GrootConfig, Robot]:
    """See Version."""
    path = directory / "config.json"
    robot = read_robot(directory, choice.embodiment)
    try:
        backbone, head = parse_n15(Fields(read_json(path)))
        robot = replace(robot, image_size=backbone.vision.image_size, horizon=head.horizon)
        return config_for(N15, backbone, with_steps(head, choice.steps), robot), robot
    except CheckpointError as error:
        said = str(error)
        raise CheckpointError(said if said.startswith(str(path)) else f"{path}: {said}") from None


def write(directory: Path, config: GrootConfig, robot: Robot) -> None:
    """See Version. Every group is scaled by its least and greatest value."""
    backbone = eagle_of(config)
    content = {
        "architectures": ["GR00T_N1_5"],
        "model_type": MODEL_TYPE,
        **head15_json(config.head, backbone.text.layers),
        "shapes": eagle_json(backbone),
    }
    _write(directory / "config.json", content)
    assert isinstance(robot, MetadataRobot)
    kinds = {"state": robot.state, "action": robot.actions}
    metadata = {
        "statistics": {k: {g.name: _statistics(g) for g in groups} for k, groups in kinds.items()},
        "modalities": {
            "video": {
                name: {"resolution": [256, 256], "channels": 3, "fps": 20.0}
                for name in robot.cameras
            },
            **{
                kind: {
                    g.name: {
                        "absolute": True, "rotation_type": None, "shape": [g.size],
                        "continuous": True,
                    }
                    for g in groups
                }
                for kind, groups in kinds.items()
            },
        },
        "embodiment_tag": robot.tag,
    }  # fmt: skip
    (directory / METADATA).parent.mkdir(parents=True, exist_ok=True)
    _write(directory / METADATA, {robot.tag: metadata})
    names = {kind: [g.name for g in groups] for kind, groups in kinds.items()}
    _write(directory / DATA_CONFIG, {"video": list(robot.cameras), **names})


def _statistics(group: Values) -> dict[str, list[float]]:
    low, high = group.low.double(), group.high.double()
    middle, spread = (low + high) / 2, (high - low) / 4
    ends = {"min": low, "max": high, "q01": low, "q99": high, "mean": middle, "std": spread}
    return {name: values.tolist() for name, values in ends.items()}


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def expected(config: GrootConfig) -> Expected:
    """See Version."""
    return eagle_and_head(config, {})


def prompt(config: GrootConfig, text: str, views: int) -> str:
    """See Version."""
    return pictures_first(text, views, config.view_tokens)


def robot_of(config: GrootConfig) -> Robot:
    """See Version."""
    state, motion = torch.full((config.state_dim,), 3.0), torch.full((config.action_dim - 1,), 0.1)
    gripper = Values("gripper", "min_max", torch.tensor([0.25]), torch.tensor([0.75]))
    return MetadataRobot(
        config.embodiment, config.row, config.cameras,
        (Values("joints", "min_max", -state, state),),
        (Values("motion", "min_max", -motion, motion), gripper),
        image_size=config.image_size, horizon=config.horizon,
    )  # fmt: skip


_SMALL = EagleConfig(
    "backbone.eagle_model.", TowerConfig(48, 4, 4, 104, image_size=56, patch=14), SMALL_TEXT,
    table=4, image_token=PICTURE,
)  # fmt: skip
_SMALL_HEAD = replace(
    SMALL_HEAD,
    horizon=10,
    layers=6,
    text_every=0,
    future=5,
    context_layers=2,
    context_heads=4,
    embodiments=32,
)
_PUBLISHED = HeadConfig(
    horizon=16, action_width=32, state_width=64, layers=16, text_every=0, future=32,
)  # fmt: skip


def _preset(backbone: EagleConfig, head: HeadConfig) -> GrootConfig:
    return GrootConfig(N15, backbone, head, _TAG, _ROW, head.horizon, 9, 7, TABLETOP)


VERSION = Version(
    N15, MODEL_TYPE, read, write, expected, backbone_of, prompt, words, discrete, robot_of,
    presets={
        "groot-n1.5-small": _preset(_SMALL, _SMALL_HEAD),
        "groot-n1.5": _preset(replace(eagle_n15(), image_token=PICTURE), _PUBLISHED),
    },
)  # fmt: skip
