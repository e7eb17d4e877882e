"""What the ``config.json`` of a GR00T N1.5 or N1.6 says about its two halves.

Sources: NVIDIA/Isaac-GR00T n1.5 ``gr00t_n1.py``, ``eagle_backbone.py``,
``flow_matching_action_head.py``; n1.6 ``configs/model/gr00t_n1d6.py``, ``eagle_backbone.py``. The
config.json of Eagle lies beside NVIDIA's code and not in a checkpoint: the published one is known
here. One key is this project's own: ``shapes``, for models of other sizes, in the words of that
file ({"vision_config", "text_config", "image_token_index"}).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vla_ros.engine.checkpoints.config import TextConfig, TowerConfig
from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.groot.config import parse_head
from vla_ros.engine.flow.groot.eagle import EagleConfig, eagle_n15, eagle_n16
from vla_ros.engine.flow.groot.shapes import HeadConfig

N15, N16 = "groot-n1.5", "groot-n1.6"
EAGLE = "nvidia/Eagle-Block2A-2B-v2"
FACTOR = 28  # sides of N1.6's pictures are multiples: two patches of 14
#: Where NVIDIA's N1.6 differs from its N1.7 in what a config.json that leaves it out means.
_N16 = {"action_horizon": 16, "max_action_dim": 29, "max_state_dim": 29}
_N15 = {"max_state_dim": 64, "num_target_vision_tokens": 32, "max_num_embodiments": 32}


def parse_n16(fields: Fields, image_size: int) -> tuple[EagleConfig, HeadConfig]:
    """Both halves of an N1.6 that sees squares of ``image_size`` pixels. CheckpointError."""
    fields.only("model_name", EAGLE)
    fields.only("reproject_vision", False)
    fields.only("backbone_model_type", "eagle")
    head = parse_head(Fields({**_N16, **fields.raw}))
    eagle = _sized(fields, eagle_n16(side=image_size), fields.whole("select_layer", 16))
    _fits(fields, eagle, head)
    return eagle, head


def parse_n15(fields: Fields) -> tuple[EagleConfig, HeadConfig]:
    """Both halves of an N1.5. CheckpointError."""
    front, back = fields.part("backbone_cfg"), fields.part("action_head_cfg")
    front.only("reproject_vision", False)
    front.only("project_to_dim", None)
    said: dict[str, Any] = {**_N15, **back.raw}
    horizon = fields.whole("action_horizon", back.whole("action_horizon", 16))
    said |= {
        "max_action_dim": back.whole("action_dim", 32), "use_alternate_vl_dit": False,
        "action_horizon": horizon,
    }  # fmt: skip
    whole = Fields(said, "action_head_cfg")
    head = parse_head(whole, whole.whole("num_target_vision_tokens", 32, least=0))
    blocks = back.part("diffusion_model_cfg")
    if blocks.whole("cross_attention_dim", head.context_width) != head.context_width:
        raise blocks.wrong("cross_attention_dim", f"{head.context_width}")
    if not head.context_norm:
        head = replace(head, context_layers=0)
    eagle = _sized(fields, eagle_n15(), front.whole("select_layer", 12))
    _fits(whole, eagle, head)
    return eagle, head


def smart_side(side: int) -> int:
    """The side that N1.6's pictures of ``side`` pixels are brought to: the nearest multiple of 28.

    Source: ``smart_resize`` with its factor and its least number of pixels, of a square.
    """
    return max(2 * FACTOR, round(side / FACTOR) * FACTOR)


def eagle_json(config: EagleConfig) -> dict[str, Any]:
    """``shapes`` that is read back."""
    vision, text = config.vision, config.text
    return {
        "image_token_index": config.image_token,
        "vision_config": {
            "hidden_size": vision.width, "num_hidden_layers": vision.depth,
            "num_attention_heads": vision.heads, "intermediate_size": vision.mlp,
            "patch_size": vision.patch, "num_patches": config.table**2,
            "image_size": vision.image_size,
        },
        "text_config": {
            "vocab_size": text.vocab_size, "hidden_size": text.hidden_size,
            "intermediate_size": text.intermediate_size, "num_hidden_layers": text.layers,
            "num_attention_heads": text.heads, "num_key_value_heads": text.kv_heads,
            "head_dim": text.head_dim, "rope_theta": text.rope_theta,
            "rms_norm_eps": text.rms_eps,
        },
    }  # fmt: skip


def head15_json(head: HeadConfig, layers: int) -> dict[str, Any]:
    """``backbone_cfg`` and ``action_head_cfg`` that :func:`parse_n15` reads back."""
    common = {"dropout": 0.2, "final_dropout": True, "positional_embeddings": None}
    return {
        "action_dim": head.action_width,
        "action_horizon": head.horizon,
        "hidden_size": head.context_width,
        "backbone_cfg": {
            "load_bf16": False, "project_to_dim": None, "reproject_vision": False,
            "select_layer": layers, "tune_llm": False, "tune_visual": True,
        },
        "action_head_cfg": {
            "action_dim": head.action_width, "max_action_dim": head.action_width,
            "max_state_dim": head.state_width, "action_horizon": head.horizon,
            "add_pos_embed": head.positions > 0, "max_seq_len": head.positions or 1024,
            "backbone_embedding_dim": head.context_width, "hidden_size": head.hidden,
            "input_embedding_dim": head.width, "num_inference_timesteps": head.steps,
            "num_target_vision_tokens": head.future, "num_timestep_buckets": head.buckets,
            "max_num_embodiments": head.embodiments, "use_vlln": head.context_norm,
            "diffusion_model_cfg": {
                **common, "attention_head_dim": head.head_dim,
                "cross_attention_dim": head.context_width, "interleave_self_attention": True,
                "norm_type": "ada_norm", "num_attention_heads": head.heads,
                "num_layers": head.layers, "output_dim": head.hidden,
            },
            "vl_self_attention_cfg": {
                **common, "attention_head_dim": head.context_width // head.context_heads,
                "num_attention_heads": head.context_heads, "num_layers": head.context_layers,
            },
        },
    }  # fmt: skip


def _sized(fields: Fields, known: EagleConfig, layers: int) -> EagleConfig:
    """The published sizes, or those of ``shapes``, with the first ``layers`` of its layers."""
    config = known
    if fields.raw.get("shapes") is not None:
        config = _own(fields.part("shapes"), known)
    elif layers > 28:  # Qwen3-1.7B's
        raise CheckpointError(f"select_layer is {layers}: Qwen3-1.7B has 28 layers")
    return replace(config, text=replace(config.text, layers=layers))


def _own(shapes: Fields, known: EagleConfig) -> EagleConfig:
    eyes, words = shapes.part("vision_config"), shapes.part("text_config")
    v, t = known.vision, known.text
    eyes.only("use_rope", False)
    eyes.only("use_windows_attn", False)
    words.only("attention_bias", False)
    # N1.6's pictures have a size of their own, which the processor says.
    side = eyes.whole("image_size", v.image_size) if known.shuffle == 1 else v.image_size
    patch = eyes.whole("patch_size", v.patch)
    count = eyes.whole("num_patches", (side // patch) ** 2 if known.shuffle == 1 else 256)
    table = round(count**0.5)
    if table * table != count:
        raise eyes.wrong("num_patches", "a square number")
    vision = TowerConfig(
        eyes.whole("hidden_size", v.width), eyes.whole("num_hidden_layers", v.depth),
        eyes.whole("num_attention_heads", v.heads), eyes.whole("intermediate_size", v.mlp),
        image_size=side, patch=patch,
    )  # fmt: skip
    text = TextConfig(
        "qwen3", words.whole("vocab_size", t.vocab_size), words.whole("hidden_size", t.hidden_size),
        words.whole("intermediate_size", t.intermediate_size),
        words.whole("num_hidden_layers", 28), words.whole("num_attention_heads", t.heads),
        words.whole("num_key_value_heads", t.kv_heads), words.whole("head_dim", t.head_dim),
        words.number("rope_theta", t.rope_theta), words.number("rms_norm_eps", t.rms_eps),
        tied=True,
    )  # fmt: skip
    token = shapes.whole("image_token_index", known.image_token, least=0)
    return EagleConfig(known.base, vision, text, table, known.shuffle, token)


def _fits(fields: Fields, eagle: EagleConfig, head: HeadConfig) -> None:
    vision, text = eagle.vision, eagle.text
    if head.context_width != text.hidden_size:
        raise fields.wrong("backbone_embedding_dim", f"{text.hidden_size}, as of its Qwen3")
    if vision.image_size % (vision.patch * eagle.shuffle):
        raise CheckpointError(
            f"pictures of {vision.image_size} pixels do not divide into blocks of"
            f" {vision.patch * eagle.shuffle}"
        )
    if text.head_dim % 2 or text.heads % text.kv_heads or vision.width % vision.heads:
        raise CheckpointError("heads do not divide the widths of Eagle's shapes")


def shapes_of(raw: Mapping[str, Any], eagle: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json with ``shapes`` from Eagle's own config.json, for a model of other sizes."""
    names = ("vision_config", "text_config", "image_token_index")
    return {**raw, "shapes": {name: eagle[name] for name in names}}
