"""What a LeRobot folder's ``config.json`` says about a pi0, pi05 or smolvla policy.

Sources: lerobot 0.6.1 ``configuration_pi0.py``, ``configuration_pi05.py``,
``configuration_smolvla.py`` and the model files beside them, which fix the shapes of PaliGemma.
One key is this project's own: ``shapes``, for checkpoints whose models are of other sizes than
the published ones ({"vision", "text", "expert", "shuffle"}, in the words of TowerConfig and
TextConfig).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.features import (
    ACTION,
    CAMERA,
    STATE,
    camera_names,
    feature,
    feature_length,
)
from vla_ros.engine.flow.shapes import SMOLVLM2_500M, Shapes, pi_shapes, smolvla_shapes

KINDS = ("pi0", "pi05", "smolvla")


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """A policy of LeRobot's, pi0, pi05 or smolvla.

    ``horizon`` actions a chunk, ``steps`` of the solver. The model sees ``state_dim`` values
    padded to ``state_width`` and gives ``action_width``, of which the first ``action_dim``
    count. ``cameras`` are the features' names without their prefix, in order, without those
    that are always empty. Images become squares of ``image_size``; ``self_every``: every which
    layer of SmolVLA's expert attends to the actions too (0: all). ``vlm`` names SmolVLA's
    language model, ``max_text`` is the longest prompt in tokens.
    """

    kind: str
    shapes: Shapes
    horizon: int
    steps: int
    state_width: int
    action_width: int
    state_dim: int
    action_dim: int
    cameras: tuple[str, ...]
    max_text: int
    image_size: int
    min_period: float = 4e-3
    max_period: float = 4.0
    self_every: int = 0
    vlm: str = ""
    row_time: bool = False

    @property
    def adaptive(self) -> bool:
        """Time enters through every norm (pi0.5) and not with the actions."""
        return self.kind == "pi05"

    @property
    def continues(self) -> tuple[str, ...]:
        """How a chunk can continue an earlier one."""
        return ("rtc", "rtc_trained") if self.row_time else ("rtc",)

    @property
    def view_tokens(self) -> int:
        """Prefix tokens of one camera."""
        return (self.image_size // self.shapes.vision.patch // self.shapes.shuffle) ** 2

    @property
    def longest(self) -> int:
        """Rows of the longest prefix."""
        state = int(self.kind == "smolvla")
        return len(self.cameras) * self.view_tokens + self.max_text + state


def read_flow_config(directory: Path, steps: int | None = None) -> FlowConfig:
    """Read ``config.json``; CheckpointError in one line where this engine cannot run it.

    ``steps`` replaces the number of solver steps that it asks for.
    """
    path = directory / "config.json"
    raw = read_json(path)
    try:
        config = parse_flow_config(raw, directory)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return config if steps is None else replace(config, steps=steps)


def parse_flow_config(raw: Mapping[str, Any], directory: Path | None = None) -> FlowConfig:
    """Turn a config.json's content into a :class:`FlowConfig`."""
    fields = Fields(raw)
    kind = fields.choice("type", "", KINDS)
    fields.only("n_obs_steps", 1)
    fields.only("add_image_special_tokens", False)
    fields.only("adapt_to_pi_aloha", False)
    state_width, action_width = (
        fields.whole("max_state_dim", 32),
        fields.whole("max_action_dim", 32),
    )
    small = kind == "smolvla"
    shapes = smolvla_shapes(fields, directory) if small else pi_shapes(fields)
    size_key, side = ("resize_imgs_with_padding", 512) if small else ("image_resolution", 224)
    config = FlowConfig(
        kind=kind,
        shapes=shapes,
        horizon=fields.whole("chunk_size", 50),
        steps=fields.whole("num_steps" if small else "num_inference_steps", 10, most=1000),
        state_width=state_width,
        action_width=action_width,
        state_dim=feature_length(fields, "input_features", STATE, state_width),
        action_dim=feature_length(fields, "output_features", ACTION, action_width),
        cameras=camera_names(fields),
        max_text=fields.whole("tokenizer_max_length", 200 if kind == "pi05" else 48),
        image_size=fields.square(size_key, side),
        min_period=fields.number("min_period", 4e-3),
        max_period=fields.number("max_period", 4.0),
        self_every=_self_every(fields) if small else 0,
        vlm=fields.text("vlm_model_name", SMOLVLM2_500M) if small else "",
        row_time=raw.get("row_time") is True,
    )
    _check(config)
    return config


def _check(config: FlowConfig) -> None:
    text, expert, vision = config.shapes.text, config.shapes.expert, config.shapes.vision
    if (text.layers, text.kv_heads, text.head_dim) != (
        expert.layers, expert.kv_heads, expert.head_dim,
    ):  # fmt: skip
        raise CheckpointError("the expert's layers, KV heads and head size are not the prefix's")
    unit = vision.patch * config.shapes.shuffle
    if config.image_size % unit:
        raise CheckpointError(f"images of {config.image_size} pixels do not divide by {unit}")
    if config.kind != "smolvla" and config.image_size != vision.image_size:
        raise CheckpointError(
            f"image_resolution is {config.image_size}, the tower was made for {vision.image_size}"
        )
    if config.state_dim > config.state_width or config.action_dim > config.action_width:
        raise CheckpointError(
            f"state {config.state_dim} of {config.state_width} or action {config.action_dim} of"
            f" {config.action_width} is wider than the model"
        )
    if not config.cameras:
        raise CheckpointError(f"input_features has no camera ({CAMERA}...)")
    if expert.hidden_size % 2:
        raise CheckpointError(f"the expert's width {expert.hidden_size} is odd")


def _self_every(fields: Fields) -> int:
    every = fields.whole("self_attn_every_n_layers", 2, least=-1)
    mode = fields.choice("attention_mode", "cross_attn", ("cross_attn", "self_attn"))
    if mode == "self_attn":
        return 0
    if every < 1:
        raise fields.wrong("self_attn_every_n_layers", "1 or more: cross attention alone"
                           " is not built")  # fmt: skip
    return every


def flow_config_json(config: FlowConfig) -> dict[str, Any]:
    """The config.json, in LeRobot's words, that :func:`parse_flow_config` reads back."""
    small = config.kind == "smolvla"
    side = [config.image_size] * 2
    cameras = {f"{CAMERA}{name}": feature("VISUAL", 3, *side) for name in config.cameras}
    out: dict[str, Any] = {
        "type": config.kind,
        "n_obs_steps": 1,
        "input_features": {**cameras, STATE: feature("STATE", config.state_dim)},
        "output_features": {ACTION: feature("ACTION", config.action_dim)},
        "chunk_size": config.horizon,
        "n_action_steps": config.horizon,
        "max_state_dim": config.state_width,
        "max_action_dim": config.action_width,
        "tokenizer_max_length": config.max_text,
        "num_steps" if small else "num_inference_steps": config.steps,
        "resize_imgs_with_padding" if small else "image_resolution": side,
        "min_period": config.min_period,
        "max_period": config.max_period,
        "shapes": asdict(config.shapes),
    }
    if config.row_time:
        out["row_time"] = True
    if small:
        mode = "cross_attn" if config.self_every else "self_attn"
        out |= {
            "vlm_model_name": config.vlm,
            "num_vlm_layers": config.shapes.text.layers,
            "attention_mode": mode,
            "self_attn_every_n_layers": config.self_every or -1,
        }
    return out
