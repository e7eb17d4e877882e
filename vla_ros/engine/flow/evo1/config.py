"""What a LeRobot folder's ``config.json`` says about a policy of type evo1.

Source: lerobot 0.6.1 ``configuration_evo1.py``; the shapes of InternVL3-1B are those of
OpenGVLab/InternVL3-1B-hf. One key is this project's own: ``shapes``, for checkpoints whose
models are of other sizes ({"vision", "text", "shuffle"}).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vla_ros.engine.checkpoints.config import TextConfig, TowerConfig
from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.family import Choice
from vla_ros.engine.flow.features import (
    ACTION,
    CAMERA,
    STATE,
    camera_names,
    feature,
    feature_length,
)
from vla_ros.engine.flow.shapes import same_types

KIND = "evo1"
INTERNVL3_1B = "OpenGVLab/InternVL3-1B-hf"
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: InternViT-300M and Qwen2.5-0.5B with InternVL's vocabulary, all of its layers.
INTERNVIT = TowerConfig(
    1024, 24, 16, 4096, image_size=448, patch=14, class_token=True, layer_scale=True,
    mean=IMAGENET_MEAN, std=IMAGENET_STD,
)  # fmt: skip
QWEN = TextConfig("qwen2", 151674, 896, 4864, 24, 14, 2, 64, 1e6, 1e-6)
LONGEST_TEXT = 8192  # tokens: a mask of so many squared is held; the published one has 1024
SHUFFLE = 2


@dataclass(frozen=True, slots=True)
class Gripper:
    """A gripper that is only open or closed: value ``index`` becomes ``above`` or ``below``."""

    index: int = 6
    threshold: float = 0.5
    below: float = 1.0
    above: float = -1.0


@dataclass(frozen=True, slots=True)
class Evo1Config:
    """An Evo-1 policy.

    ``text.layers`` are those that are used. ``horizon`` actions a chunk, ``steps`` of the solver.
    ``slots``: images in every prompt; cameras that are missing leave theirs without rows. The
    head has ``blocks`` of cross attention with ``heads``, as wide as the language model; ``hidden``
    and ``state_hidden`` are the widths inside its last and its state's MLP. Of ``embodiments`` in
    the checkpoint, ``embodiment`` is the one in use. ``max_text``: tokens of the longest prompt,
    images included.
    """

    vision: TowerConfig
    text: TextConfig
    horizon: int
    steps: int
    state_dim: int
    action_dim: int
    cameras: tuple[str, ...]
    state_width: int = 24
    action_width: int = 24
    slots: int = 3
    blocks: int = 8
    heads: int = 8
    hidden: int = 1024
    state_hidden: int = 1024
    max_text: int = 1024
    shuffle: int = SHUFFLE
    embodiments: int = 1
    embodiment: int = 0
    gripper: Gripper | None = None
    vlm: str = INTERNVL3_1B

    @property
    def kind(self) -> str:
        """See :class:`vla_ros.engine.flow.family.Config`."""
        return KIND

    @property
    def continues(self) -> tuple[str, ...]:
        """How a chunk can continue an earlier one."""
        return ("rtc",)

    @property
    def width(self) -> int:
        """Of the context and of the head."""
        return self.text.hidden_size

    @property
    def view_tokens(self) -> int:
        """Rows of one camera."""
        return (self.vision.image_size // self.vision.patch // self.shuffle) ** 2


def read_evo1_config(directory: Path, choice: Choice) -> Evo1Config:
    """Read ``config.json``; CheckpointError in one line where this engine cannot run it."""
    path = directory / "config.json"
    raw = read_json(path)
    try:
        return chosen(parse_evo1_config(raw), choice)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


def chosen(config: Evo1Config, choice: Choice) -> Evo1Config:
    """With somebody's own number of steps and embodiment. CheckpointError: there is none such."""
    if choice.steps is not None:
        config = replace(config, steps=choice.steps)
    if choice.embodiment is None:
        return config
    known = [str(n) for n in range(config.embodiments)]
    if choice.embodiment not in known:
        raise CheckpointError(
            f"embodiment {choice.embodiment!r} is unknown: this checkpoint has {', '.join(known)}"
        )
    return replace(config, embodiment=int(choice.embodiment))


def parse_evo1_config(raw: Mapping[str, Any]) -> Evo1Config:
    """Turn a config.json's content into an :class:`Evo1Config`."""
    fields = Fields(raw)
    fields.choice("type", "", (KIND,))
    fields.only("n_obs_steps", 1)
    fields.only("return_cls_only", False)
    fields.only("action_head", "flowmatching")
    vision, text, shuffle = _shapes(fields)
    embodiments = fields.whole("num_categories", 1)
    state_width = fields.whole("max_state_dim", 24)
    action_width = fields.whole("max_action_dim", 24)
    action_dim = feature_length(fields, "output_features", ACTION, action_width)
    if raw.get("postprocess_action_dim") is not None:
        fields.only("postprocess_action_dim", action_dim)
    config = Evo1Config(
        vision=vision,
        text=text,
        horizon=fields.whole("chunk_size", 50, least=2),
        steps=fields.whole("num_inference_timesteps", 32, most=1000),
        state_dim=feature_length(fields, "input_features", STATE, state_width),
        action_dim=action_dim,
        cameras=camera_names(fields),
        state_width=state_width,
        action_width=action_width,
        slots=fields.whole("max_views", 3),
        blocks=fields.whole("num_layers", 8),
        heads=fields.whole("num_heads", 8),
        hidden=fields.whole("hidden_dim", 1024),
        state_hidden=fields.whole("state_hidden_dim", 1024),
        max_text=fields.whole("max_text_length", 1024, most=LONGEST_TEXT),
        shuffle=shuffle,
        embodiments=embodiments,
        embodiment=fields.whole("default_embodiment_id", 0, least=0, most=embodiments - 1),
        gripper=_gripper(fields, action_dim),
        vlm=fields.text("vlm_model_name", INTERNVL3_1B),
    )
    _check(config, fields)
    return config


def _shapes(fields: Fields) -> tuple[TowerConfig, TextConfig, int]:
    """InternVL3-1B, or ``shapes``; of the language model the layers that are used."""
    vision, text, shuffle = INTERNVIT, QWEN, SHUFFLE
    name = fields.text("vlm_model_name", INTERNVL3_1B)
    if fields.raw.get("shapes") is not None:
        own = fields.part("shapes")
        try:
            eyes: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in own.part("vision").raw.items()
            }
            vision, text = TowerConfig(**eyes), TextConfig(**own.part("text").raw)
        except TypeError as error:
            raise CheckpointError(f"shapes: {error}") from error
        same_types("shapes.vision", vision, INTERNVIT)
        same_types("shapes.text", text, QWEN)
        for colours in ("mean", "std"):
            fields.triple(f"shapes.vision.{colours}", getattr(vision, colours))
        shuffle = own.whole("shuffle", SHUFFLE)
    elif name.removesuffix("-hf") != INTERNVL3_1B.removesuffix("-hf"):
        raise CheckpointError(
            f"vlm_model_name is {name!r}: of InternVL this engine knows the shapes of"
            f" {INTERNVL3_1B} alone"
        )
    # null means all layers, and is no absent key
    wanted = fields.raw.get("vlm_num_layers", 14)
    layers = text.layers if wanted is None else fields.whole("vlm_num_layers", 14)
    return vision, replace(text, layers=min(layers, text.layers)), shuffle


def _gripper(fields: Fields, action_dim: int) -> Gripper | None:
    if not fields.flag("binarize_gripper", False):
        return None
    index = fields.whole("gripper_index", 6, least=0, most=action_dim - 1)
    names = ("gripper_threshold", "gripper_below_threshold_value", "gripper_above_threshold_value")
    default = Gripper()
    values = [
        fields.real(name, value)
        for name, value in zip(
            names, (default.threshold, default.below, default.above), strict=True
        )
    ]
    return Gripper(index, *values)


def _check(config: Evo1Config, fields: Fields) -> None:
    vision, text = config.vision, config.text
    if text.kind != "qwen2" or not (vision.class_token and vision.layer_scale):
        raise CheckpointError("shapes: an InternViT and a qwen2 are wanted")
    if fields.square("image_resolution", vision.image_size) != vision.image_size:
        raise CheckpointError(f"image_resolution: the tower was made for {vision.image_size}")
    if vision.image_size % (vision.patch * config.shuffle):
        raise CheckpointError(
            f"images of {vision.image_size} pixels do not divide by {vision.patch * config.shuffle}"
        )
    if fields.whole("embed_dim", config.width) != config.width:
        raise CheckpointError(f"embed_dim is not the language model's width, {config.width}")
    if config.width % config.heads or config.width % 2:
        raise CheckpointError(f"a width of {config.width} does not divide by {config.heads} heads")
    if config.state_dim > config.state_width or config.action_dim > config.action_width:
        raise CheckpointError(
            f"state {config.state_dim} of {config.state_width} or action {config.action_dim} of"
            f" {config.action_width} is wider than the model"
        )
    if not 0 < len(config.cameras) <= config.slots:
        raise CheckpointError(
            f"input_features has {len(config.cameras)} cameras ({CAMERA}...), wanted 1 to"
            f" {config.slots}"
        )
    if config.slots * config.view_tokens >= config.max_text:
        raise CheckpointError(
            f"{config.slots} images of {config.view_tokens} tokens leave no room in"
            f" max_text_length {config.max_text}"
        )


def evo1_config_json(config: Evo1Config) -> dict[str, Any]:
    """The config.json, in LeRobot's words, that :func:`parse_evo1_config` reads back."""
    side = [config.vision.image_size] * 2
    cameras = {f"{CAMERA}{name}": feature("VISUAL", 3, *side) for name in config.cameras}
    out: dict[str, Any] = {
        "type": KIND,
        "n_obs_steps": 1,
        "input_features": {**cameras, STATE: feature("STATE", config.state_dim)},
        "output_features": {ACTION: feature("ACTION", config.action_dim)},
        "chunk_size": config.horizon,
        "n_action_steps": config.horizon,
        "max_state_dim": config.state_width,
        "max_action_dim": config.action_width,
        "max_views": config.slots,
        "image_resolution": side,
        "vlm_model_name": config.vlm,
        "vlm_num_layers": config.text.layers,
        "max_text_length": config.max_text,
        "embed_dim": config.width,
        "hidden_dim": config.hidden,
        "state_hidden_dim": config.state_hidden,
        "num_heads": config.heads,
        "num_layers": config.blocks,
        "num_inference_timesteps": config.steps,
        "num_categories": config.embodiments,
        "default_embodiment_id": config.embodiment,
        "shapes": {
            "vision": asdict(config.vision),
            "text": asdict(config.text),
            "shuffle": config.shuffle,
        },
    }
    if config.gripper is not None:
        out |= {
            "binarize_gripper": True,
            "gripper_index": config.gripper.index,
            "gripper_threshold": config.gripper.threshold,
            "gripper_below_threshold_value": config.gripper.below,
            "gripper_above_threshold_value": config.gripper.above,
        }
    return out
