"""GR00T N1.7: NVIDIA's folder, Qwen3-VL in front of the head, the presets of random weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from vla_ros.engine.checkpoints.config import TextConfig
from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.checkpoints.small_tokenizer import TEXT_VOCAB
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.family import Choice
from vla_ros.engine.flow.groot.backbone import Backbone
from vla_ros.engine.flow.groot.config import (
    N17,
    QWENS,
    GrootConfig,
    head_json,
    parse_head,
    parse_qwen,
    qwen_json,
    with_steps,
)
from vla_ros.engine.flow.groot.embodiment import KNOWN_ROWS, Embodiment, read_embodiment
from vla_ros.engine.flow.groot.encoders import RowWeights
from vla_ros.engine.flow.groot.prompt import qwen_prompt
from vla_ros.engine.flow.groot.qwen_tower import QwenTowerConfig, stretched_rows
from vla_ros.engine.flow.groot.qwen_vl import (
    BASE,
    QwenVl,
    QwenVlConfig,
    frequency_axes,
    positions_of,
    qwen_vl_expected,
)
from vla_ros.engine.flow.groot.robot import Robot
from vla_ros.engine.flow.groot.robot_files import random_robot, write_embodiment
from vla_ros.engine.flow.groot.shapes import HeadConfig, head_shapes
from vla_ros.engine.flow.groot.version import Version, Words, config_for
from vla_ros.engine.flow.text import PromptTokenizer
from vla_ros.engine.flow.weights import Expected

MODEL_TYPE = "Gr00tN1d7"
_LAYERS = 28  # of the whole language model


def read(directory: Path, choice: Choice) -> tuple[GrootConfig, Robot]:
    """See Version."""
    path = directory / "config.json"
    robot = read_embodiment(directory, choice.embodiment, KNOWN_ROWS)
    try:
        fields = Fields(read_json(path))
        head = with_steps(parse_head(fields), choice.steps)
        backbone = parse_qwen(fields, robot.framing.side)
        return config_for(N17, backbone, head, robot), robot
    except CheckpointError as error:
        said = str(error)
        raise CheckpointError(said if said.startswith(str(path)) else f"{path}: {said}") from None


def write(directory: Path, config: GrootConfig, robot: Robot) -> None:
    """See Version."""
    backbone = _qwen(config)
    content = {
        "architectures": [MODEL_TYPE],
        "model_type": MODEL_TYPE,
        "model_name": QWENS[0],
        "select_layer": backbone.text.layers,
        **head_json(config.head),
        "shapes": qwen_json(backbone, max(_LAYERS, backbone.text.layers)),
    }
    (directory / "config.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    assert isinstance(robot, Embodiment)
    write_embodiment(directory, robot, config.head)


def expected(config: GrootConfig) -> Expected:
    """See Version. An embedding that is tied may be there under its other name."""
    backbone = qwen_vl_expected(_qwen(config))
    embedding, words = f"{BASE}model.language_model.embed_tokens.weight", f"{BASE}lm_head.weight"
    return Expected(
        {**backbone.must, **head_shapes(config.head)}, backbone.spare, {embedding: words}
    )


def backbone_of(
    config: GrootConfig, weights: RowWeights, like: torch.Tensor, longest: int
) -> Backbone:
    """See Version."""
    return QwenVl(_qwen(config), weights, like, longest)


def prompt(config: GrootConfig, text: str, views: int) -> str:
    """See Version."""
    return qwen_prompt(text, views, config.view_tokens)


def words(directory: Path, choice: Choice, config: GrootConfig) -> Words:
    """See Version."""
    return PromptTokenizer(directory, choice.tokenizer, "", config.backbone.text.vocab_size)


def discrete(config: GrootConfig) -> dict[str, list[int]]:
    """See Version: times, rows of the table of positions, positions of a prompt of pictures."""
    backbone = _qwen(config)
    probe = [0, *[backbone.image_token] * backbone.view_tokens, 0]
    probe = [one + (one == 0 == backbone.image_token) for one in probe]
    return {
        "times": list(config.head.times),
        "table_rows": stretched_rows(backbone.vision)[0].flatten().tolist(),
        "frequency_axes": frequency_axes(backbone),
        "positions": positions_of(backbone, probe).flatten().tolist(),
    }


def _qwen(config: GrootConfig) -> QwenVlConfig:
    assert isinstance(config.backbone, QwenVlConfig)
    return config.backbone


SMALL_IMAGE = 577  # the id that random.py's tokenizer has for a place of a picture
_VOCAB = TEXT_VOCAB + 8
_SMALL_TEXT = TextConfig(
    "qwen3", _VOCAB, 64, 152, 4, heads=4, kv_heads=2, head_dim=16, rope_theta=5e6, tied=True
)
_SMALL = QwenVlConfig(
    QwenTowerConfig(48, 4, 4, 104, 64, image_size=96, table=10, taps=(0, 2)),
    _SMALL_TEXT, (3, 3, 2), image_token=SMALL_IMAGE,
)  # fmt: skip
_SMALL_HEAD = HeadConfig(
    horizon=12, action_width=13, state_width=14, layers=6, heads=4, head_dim=18, context_width=64,
    hidden=44, context_layers=2, context_heads=4, positions=32, embodiments=4,
)  # fmt: skip
_PUBLISHED = HeadConfig(horizon=40, action_width=132, state_width=132)
_TABLETOP = ("front", "wrist_image")


def _preset(backbone: QwenVlConfig, head: HeadConfig, horizon: int) -> GrootConfig:
    return GrootConfig(N17, backbone, head, "tabletop", 2, horizon, 9, 7, _TABLETOP)


VERSION = Version(
    N17, MODEL_TYPE, read, write, expected, backbone_of, prompt, words, discrete,
    random_robot,
    presets={
        "groot-n1.7-small": _preset(_SMALL, _SMALL_HEAD, 10),
        "groot-n1.7": _preset(replace(QwenVlConfig(), image_token=SMALL_IMAGE), _PUBLISHED, 16),
    },
)  # fmt: skip
