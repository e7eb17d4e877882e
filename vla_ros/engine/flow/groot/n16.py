"""GR00T N1.6: NVIDIA's folder, Eagle in front of the head, the presets of random weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from vla_ros.engine.checkpoints.config import TextConfig, TowerConfig
from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.checkpoints.small_tokenizer import TEXT_VOCAB
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.family import Choice
from vla_ros.engine.flow.groot.backbone import Backbone
from vla_ros.engine.flow.groot.config import GrootConfig, head_json, with_steps
from vla_ros.engine.flow.groot.eagle import Eagle, EagleConfig, eagle_expected, eagle_n16
from vla_ros.engine.flow.groot.eagle_config import EAGLE, N16, eagle_json, parse_n16, smart_side
from vla_ros.engine.flow.groot.eagle_gate import eagle_integers
from vla_ros.engine.flow.groot.eagle_prompt import EagleTokenizer, task_first
from vla_ros.engine.flow.groot.embodiment import Embodiment, read_embodiment
from vla_ros.engine.flow.groot.encoders import RowWeights
from vla_ros.engine.flow.groot.n17 import SMALL_IMAGE
from vla_ros.engine.flow.groot.pictures import Framing
from vla_ros.engine.flow.groot.robot import Robot
from vla_ros.engine.flow.groot.robot_files import random_robot, write_embodiment
from vla_ros.engine.flow.groot.shapes import HeadConfig, head_shapes
from vla_ros.engine.flow.groot.version import Version, Words, config_for
from vla_ros.engine.flow.weights import Expected

MODEL_TYPE = "Gr00tN1d6"
#: ``EMBODIMENT_TAG_TO_PROJECTOR_INDEX`` of N1.6: rows of robots that no file says.
KNOWN_ROWS = {
    "robocasa_panda_omron": 13, "gr1": 20, "behavior_r1_pro": 24, "unitree_g1": 8,
    "libero_panda": 2, "oxe_google": 0, "oxe_widowx": 1, "oxe_droid": 16, "new_embodiment": 10,
}  # fmt: skip
PICTURE = SMALL_IMAGE + 3  # <IMG_CONTEXT> of the small tokenizer


def read(directory: Path, choice: Choice) -> tuple[GrootConfig, Robot]:
    """See Version."""
    path = directory / "config.json"
    robot = read_embodiment(directory, choice.embodiment, KNOWN_ROWS)
    robot = replace(robot, final=smart_side(robot.framing.side))
    try:
        backbone, head = parse_n16(Fields(read_json(path)), robot.image_size)
        return config_for(N16, backbone, with_steps(head, choice.steps), robot), robot
    except CheckpointError as error:
        said = str(error)
        raise CheckpointError(said if said.startswith(str(path)) else f"{path}: {said}") from None


def write(directory: Path, config: GrootConfig, robot: Robot) -> None:
    """See Version."""
    backbone = eagle_of(config)
    head = head_json(config.head)
    del head["vl_self_attention_cfg"]  # which N1.6 has not
    content = {
        "architectures": [MODEL_TYPE],
        "model_type": MODEL_TYPE,
        "model_name": EAGLE,
        "select_layer": backbone.text.layers,
        **head,
        "shapes": eagle_json(backbone),
    }
    (directory / "config.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    assert isinstance(robot, Embodiment)
    write_embodiment(directory, robot, config.head)


def expected(config: GrootConfig) -> Expected:
    """See Version. What state dropout puts in place of a state is for training."""
    return eagle_and_head(config, {"action_head.mask_token": (1, 1, config.head.width)})


def eagle_and_head(config: GrootConfig, spare: dict[str, tuple[int, ...]]) -> Expected:
    """The tensors of an N1.5 or N1.6. An embedding that is tied may be there under its other
    name."""
    eagle = eagle_of(config)
    both = eagle_expected(eagle)
    words = f"{eagle.base}language_model."
    tied = {f"{words}model.embed_tokens.weight": f"{words}lm_head.weight"}
    return Expected({**both.must, **head_shapes(config.head)}, {**both.spare, **spare}, tied)


def backbone_of(
    config: GrootConfig, weights: RowWeights, like: torch.Tensor, longest: int
) -> Backbone:
    """See Version."""
    return Eagle(eagle_of(config), weights, like, longest)


def prompt(config: GrootConfig, text: str, views: int) -> str:
    """See Version."""
    return task_first(text, views, config.view_tokens)


def words(directory: Path, choice: Choice, config: GrootConfig) -> Words:
    """See Version."""
    eagle = eagle_of(config)
    return EagleTokenizer(directory, choice.tokenizer, eagle.text.vocab_size, eagle.image_token)


def discrete(config: GrootConfig) -> dict[str, list[int]]:
    """See Version."""
    return eagle_integers(eagle_of(config), config.head)


def robot_of(config: GrootConfig) -> Robot:
    """See Version."""
    side = config.image_size - 4  # as 256 is brought to 252: another one in between
    return replace(random_robot(config), framing=Framing(side, 0.95), final=config.image_size)


def eagle_of(config: GrootConfig) -> EagleConfig:
    """Its vision and language half."""
    assert isinstance(config.backbone, EagleConfig)
    return config.backbone


SMALL_TEXT = TextConfig(
    "qwen3", TEXT_VOCAB + 8, 64, 152, 4, heads=4, kv_heads=2, head_dim=16, rope_theta=1e6, tied=True
)
_SMALL = EagleConfig(
    "backbone.model.", TowerConfig(48, 4, 4, 104, image_size=84, patch=14), SMALL_TEXT, table=5,
    shuffle=2, image_token=PICTURE,
)  # fmt: skip
SMALL_HEAD = HeadConfig(
    horizon=12, action_width=13, state_width=14, layers=8, heads=4, head_dim=18, context_width=64,
    hidden=44, context_layers=0, positions=32, embodiments=4,
)  # fmt: skip
_PUBLISHED = HeadConfig(horizon=50, action_width=128, state_width=128, context_layers=0)
TABLETOP = ("front", "wrist_image")


def _preset(backbone: EagleConfig, head: HeadConfig, horizon: int) -> GrootConfig:
    return GrootConfig(N16, backbone, head, "tabletop", 2, horizon, 9, 7, TABLETOP)


VERSION = Version(
    N16, MODEL_TYPE, read, write, expected, backbone_of, prompt, words, discrete, robot_of,
    presets={
        "groot-n1.6-small": _preset(_SMALL, SMALL_HEAD, 10),
        "groot-n1.6": _preset(replace(eagle_n16(), image_token=PICTURE), _PUBLISHED, 16),
    },
)  # fmt: skip
