"""What a GR00T is to the engine, and what NVIDIA's ``config.json`` says about one.

Source: NVIDIA/Isaac-GR00T ``configs/model/gr00t_n1d7.py``. A checkpoint names its vision-language
model and does not have its config: the published one is known here. One key is this project's own:
``shapes``, for models of other sizes, in transformers' words ({"vision_config", "text_config",
"image_token_id"}).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vla_ros.engine.checkpoints.config import TextConfig
from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.groot.eagle import EagleConfig
from vla_ros.engine.flow.groot.qwen_tower import MOMENTS, QwenTowerConfig
from vla_ros.engine.flow.groot.qwen_vl import IMAGE_TOKEN, QwenVlConfig, first_layers
from vla_ros.engine.flow.groot.shapes import HeadConfig

N17 = "groot-n1.7"
#: ``model_type`` in config.json, and the kind that it is here.
KINDS = {"Gr00tN1d7": N17}
#: The vision-language models of N1.7, all of the same sizes.
QWENS = ("nvidia/Cosmos-Reason2-2B", "Qwen/Qwen3-VL-2B-Instruct")
MAX_TEXT = 128  # rows of a prompt beside its pictures; the authors' code knows no limit


@dataclass(frozen=True, slots=True)
class GrootConfig:
    """A GR00T for one robot of those that it was trained for.

    ``embodiment`` is the robot's tag and ``row`` its place among the head's encoders. ``horizon``
    actions of a chunk are the robot's; the head makes ``head.horizon``, and what is behind them was
    padding when it was trained. ``max_text``: the most rows of a prompt beside its pictures.
    """

    kind: str
    backbone: QwenVlConfig | EagleConfig
    head: HeadConfig
    embodiment: str
    row: int
    horizon: int
    state_dim: int
    action_dim: int
    cameras: tuple[str, ...]
    max_text: int = MAX_TEXT

    @property
    def steps(self) -> int:
        """Of the solver."""
        return self.head.steps

    @property
    def action_width(self) -> int:
        """Values of an action in model space."""
        return self.head.action_width

    @property
    def continues(self) -> tuple[str, ...]:
        """How a chunk can continue an earlier one."""
        return ("rtc",)

    @property
    def image_size(self) -> int:
        """The side of a picture as the model sees it."""
        return self.backbone.vision.image_size

    @property
    def view_tokens(self) -> int:
        """Rows of one camera."""
        return self.backbone.view_tokens

    @property
    def longest(self) -> int:
        """Rows of the longest prompt."""
        return len(self.cameras) * self.view_tokens + self.max_text


def with_steps(head: HeadConfig, steps: int | None) -> HeadConfig:
    """The same with another number of solver steps."""
    return head if steps is None else replace(head, steps=steps)


def parse_head(fields: Fields, future: int = 0) -> HeadConfig:
    """The head of N1.6 and N1.7, in the words of their config.json. CheckpointError."""
    blocks = fields.part("diffusion_model_cfg")
    blocks.only("norm_type", "ada_norm")
    blocks.only("interleave_self_attention", True)
    blocks.only("positional_embeddings", None)
    blocks.only("activation_fn", "gelu-approximate")
    blocks.only("attention_bias", True)
    context = fields.part("vl_self_attention_cfg")
    context.only("positional_embeddings", None)
    fields.only("state_history_length", 1)
    wide = fields.whole("backbone_embedding_dim", 2048)
    head = HeadConfig(
        horizon=fields.whole("action_horizon", 40),
        action_width=fields.whole("max_action_dim", 132),
        state_width=fields.whole("max_state_dim", 132),
        layers=blocks.whole("num_layers", 32),
        heads=blocks.whole("num_attention_heads", 32),
        head_dim=blocks.whole("attention_head_dim", 48),
        context_width=wide,
        hidden=fields.whole("hidden_size", 1024),
        text_every=fields.whole("attend_text_every_n_blocks", 2)
        * fields.flag("use_alternate_vl_dit", True),
        future=future,
        context_norm=fields.flag("use_vlln", True),
        context_layers=context.whole("num_layers", 0, least=0),
        context_heads=context.whole("num_attention_heads", 32),
        positions=fields.whole("max_seq_len", 1024) * fields.flag("add_pos_embed", True),
        steps=fields.whole("num_inference_timesteps", 4, most=1000),
        buckets=fields.whole("num_timestep_buckets", 1000),
        embodiments=fields.whole("max_num_embodiments", 32),
    )
    _check_head(fields, blocks, context, head)
    return head


def _check_head(fields: Fields, blocks: Fields, context: Fields, head: HeadConfig) -> None:
    if fields.whole("input_embedding_dim", 1536) != head.width:
        raise fields.wrong("input_embedding_dim", f"{head.width}, the transformer's width")
    if blocks.whole("output_dim", head.hidden) != head.hidden:
        raise blocks.wrong("output_dim", f"{head.hidden}, as hidden_size")
    each = context.whole("attention_head_dim", head.context_width // head.context_heads)
    if head.context_layers and each * head.context_heads != head.context_width:
        raise context.wrong(
            "attention_head_dim", f"{head.context_width} / {head.context_heads} heads"
        )
    if head.positions and head.positions < head.horizon:
        raise fields.wrong("max_seq_len", f"at least the {head.horizon} of action_horizon")
    if head.width % 2:
        raise blocks.wrong("attention_head_dim", "an even width in all")


def parse_qwen(fields: Fields, image_size: int) -> QwenVlConfig:
    """The vision-language model of an N1.7 and the layers of it that are used."""
    fields.only("reproject_vision", False)
    layers = fields.whole("select_layer", 16)
    name = fields.text("model_name", QWENS[0])
    if fields.raw.get("shapes") is not None:
        config = _own_qwen(fields.part("shapes"), image_size)
    elif name in QWENS:
        config = QwenVlConfig(QwenTowerConfig(image_size=image_size))
    else:
        raise CheckpointError(
            f"model_name is {name!r}, of which this engine knows no sizes: it knows"
            f" {' and '.join(QWENS)}"
        )
    if not layers <= config.text.layers:
        raise fields.wrong("select_layer", f"at most {config.text.layers} layers")
    config = first_layers(config, layers)
    _check_qwen(fields, config)
    return config


def _check_qwen(fields: Fields, config: QwenVlConfig) -> None:
    vision, text = config.vision, config.text
    if fields.whole("backbone_embedding_dim", 2048) != text.hidden_size:
        raise fields.wrong("backbone_embedding_dim", f"{text.hidden_size}, as of {QWENS[0]}")
    if vision.image_size % (vision.patch * vision.merge):
        raise CheckpointError(
            f"pictures of {vision.image_size} pixels do not divide into blocks of"
            f" {vision.patch * vision.merge}"
        )
    if vision.out != text.hidden_size or len(vision.taps) > text.layers:
        raise CheckpointError("the tower's tokens or taps do not fit the language model's layers")
    if sum(config.sections) != text.head_dim // 2:
        raise CheckpointError(f"mrope_section {list(config.sections)} of heads of {text.head_dim}")


def _own_qwen(shapes: Fields, image_size: int) -> QwenVlConfig:
    """``shapes``: what is left out is as in the published model."""
    eyes, words, known = shapes.part("vision_config"), shapes.part("text_config"), QwenVlConfig()
    rope = words.part("rope_scaling")
    v, t = known.vision, known.text
    eyes.only("temporal_patch_size", MOMENTS)
    words.only("attention_bias", False)
    table = eyes.whole("num_position_embeddings", v.table**2)
    side = round(table**0.5)
    if side * side != table:
        raise eyes.wrong("num_position_embeddings", "a square number")
    vision = QwenTowerConfig(
        eyes.whole("hidden_size", v.width), eyes.whole("depth", v.depth),
        eyes.whole("num_heads", v.heads), eyes.whole("intermediate_size", v.mlp),
        eyes.whole("out_hidden_size", v.out), image_size, eyes.whole("patch_size", v.patch),
        eyes.whole("spatial_merge_size", v.merge), side,
        _wholes(eyes, "deepstack_visual_indexes", v.taps),
    )  # fmt: skip
    text = TextConfig(
        "qwen3", words.whole("vocab_size", t.vocab_size), words.whole("hidden_size", t.hidden_size),
        words.whole("intermediate_size", t.intermediate_size),
        words.whole("num_hidden_layers", 28), words.whole("num_attention_heads", t.heads),
        words.whole("num_key_value_heads", t.kv_heads), words.whole("head_dim", t.head_dim),
        words.number("rope_theta", t.rope_theta), words.number("rms_norm_eps", t.rms_eps),
        tied=True,
    )  # fmt: skip
    sections = _wholes(rope, "mrope_section", known.sections)
    if len(sections) != 3:
        raise rope.wrong("mrope_section", "three whole numbers")
    one, two, three = sections
    token = shapes.whole("image_token_id", IMAGE_TOKEN, least=0)
    return QwenVlConfig(vision, text, (one, two, three), token)


def _wholes(fields: Fields, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    values = fields.raw.get(name)
    if values is None:
        return default
    found = fields.items(name)
    if any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in found):
        raise fields.wrong(name, "whole numbers")
    return tuple(found)


def qwen_json(config: QwenVlConfig, layers: int) -> dict[str, Any]:
    """``shapes`` that :func:`parse_qwen` reads back, of a model with so many layers in all."""
    vision, text = config.vision, config.text
    return {
        "image_token_id": config.image_token,
        "vision_config": {
            "hidden_size": vision.width, "depth": vision.depth, "num_heads": vision.heads,
            "intermediate_size": vision.mlp, "out_hidden_size": vision.out,
            "patch_size": vision.patch, "spatial_merge_size": vision.merge,
            "temporal_patch_size": MOMENTS, "num_position_embeddings": vision.table**2,
            "deepstack_visual_indexes": list(vision.taps),
        },
        "text_config": {
            "vocab_size": text.vocab_size, "hidden_size": text.hidden_size,
            "intermediate_size": text.intermediate_size, "num_hidden_layers": layers,
            "num_attention_heads": text.heads, "num_key_value_heads": text.kv_heads,
            "head_dim": text.head_dim, "rope_theta": text.rope_theta,
            "rms_norm_eps": text.rms_eps, "attention_bias": False,
            "rope_scaling": {"mrope_section": list(config.sections), "mrope_interleaved": True},
        },
    }  # fmt: skip


def head_json(head: HeadConfig) -> dict[str, Any]:
    """The head in the words of config.json, as :func:`parse_head` reads it."""
    common = {"positional_embeddings": None, "dropout": 0.2, "final_dropout": True}
    return {
        "action_horizon": head.horizon,
        "max_action_dim": head.action_width,
        "max_state_dim": head.state_width,
        "hidden_size": head.hidden,
        "input_embedding_dim": head.width,
        "backbone_embedding_dim": head.context_width,
        "add_pos_embed": head.positions > 0,
        "max_seq_len": head.positions or 1024,
        "use_vlln": head.context_norm,
        "use_alternate_vl_dit": head.text_every > 0,
        "attend_text_every_n_blocks": head.text_every or 2,
        "num_inference_timesteps": head.steps,
        "num_timestep_buckets": head.buckets,
        "max_num_embodiments": head.embodiments,
        "diffusion_model_cfg": {
            **common,
            "num_layers": head.layers,
            "num_attention_heads": head.heads,
            "attention_head_dim": head.head_dim,
            "norm_type": "ada_norm",
            "output_dim": head.hidden,
            "interleave_self_attention": True,
        },
        "vl_self_attention_cfg": {
            **common,
            "num_layers": head.context_layers,
            "num_attention_heads": head.context_heads,
            "attention_head_dim": head.context_width // head.context_heads,
        },
    }


def model_type(raw: Mapping[str, Any]) -> str | None:
    """The kind of GR00T that a config.json is of; None: it is none."""
    found = raw.get("model_type")
    return KINDS.get(found) if isinstance(found, str) else None
