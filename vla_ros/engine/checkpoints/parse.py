"""From a checkpoint's ``config.json`` to a :class:`ModelConfig`.

Sources: the published config.json of openvla/openvla-7b and the classes that read it, openvla
``prismatic/extern/hf/configuration_prismatic.py`` and transformers 4.40's ``LlamaConfig`` and
``Qwen2Config``, whose defaults hold where a key is absent. What a file asks for and this engine
does not compute is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from pathlib import Path
from typing import Any

from vla_ros.engine.checkpoints.bitvla.config import BITVLA, parse_bitvla, refuse_headless
from vla_ros.engine.checkpoints.config import (
    ACTIVATIONS,
    BACKBONES,
    INTERPOLATIONS,
    MOST_DELAY,
    STRATEGIES,
    ModelConfig,
    TextConfig,
    TowerConfig,
    VqConfig,
)
from vla_ros.engine.checkpoints.family import refuse_foreign
from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.checkpoints.preprocessor import read_preprocessor
from vla_ros.engine.errors import CheckpointError

LLAMA_EMPTY_TOKEN = 29871  # "▁" of Llama-2's tokenizer: OpenVLA expects it at the prompt's end
DEEPEST = 1000  # layers; more is a damaged file, and would fill the memory with their names
#: What a kind of language model has where ``text_config`` does not say.
DEFAULTS = {
    "llama": TextConfig("llama"),
    "qwen2": TextConfig("qwen2", vocab_size=151936, intermediate_size=22016),
}


def read_config(directory: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Read ``config.json``, and ``preprocessor_config.json`` where there is one.

    Returns the config and the raw config.json (for its ``norm_stats``). Raises CheckpointError,
    beginning with the file's name, when they are missing, damaged or describe something else.
    """
    refuse_foreign(directory)
    path = directory / "config.json"
    raw = read_json(path)
    try:
        config = parse_config(raw)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    refuse_headless(directory, config)
    return read_preprocessor(directory, config), raw


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Turn a config.json's content into a :class:`ModelConfig`."""
    if raw.get("model_type") == BITVLA:
        return parse_bitvla(raw)
    top = Fields(raw)
    if top.raw.get("quantization_config"):
        raise CheckpointError("quantization_config: quantised weights are not supported")
    llm = top.text("llm_backbone_id", "")
    text = parse_text(top.part("text_config").raw, "qwen2" if llm.startswith("qwen") else "llama")
    if text.kind == "qwen2" and "action_vocab" not in raw:
        raise CheckpointError(
            "a Qwen checkpoint lacks action_vocab: give its tokenizer's length"
            " (MiniVLA: 151921), the embedding's padding does not tell"
        )
    vocab = top.whole("action_vocab", text.vocab_size - top.whole("pad_to_multiple_of", 64, 0))
    bins = top.whole("n_action_bins", 256, 2)
    if not bins < vocab <= text.vocab_size:
        raise CheckpointError(
            f"{bins} action bins at the end of {vocab} tokens do not fit into"
            f" text_config.vocab_size {text.vocab_size}"
        )
    images = top.whole("image_sequence_len", 1)
    if images > 2:
        raise CheckpointError(f"image_sequence_len is {images}: one camera or two are supported")
    style = _prompt_style(llm, text)
    empty = raw.get("empty_token_id", None if style == "qwen" else LLAMA_EMPTY_TOKEN)
    if empty is not None and not (isinstance(empty, int) and 0 <= empty < text.vocab_size):
        raise CheckpointError(f"empty_token_id {empty!r} is no token of {text.vocab_size}")
    return ModelConfig(
        text=text,
        towers=_towers(top),
        action_vocab=vocab,
        prompt_style=style,
        empty_token_id=empty,
        resize=top.choice("image_resize_strategy", "resize-naive", STRATEGIES),
        fill=top.colour("letterbox_fill", top.raw.get("letterbox_fill")),
        bins=bins,
        images=images,
        chunk=top.whole("action_chunk", 1),
        parallel=top.flag("parallel_decoding", False),
        proprio_dim=top.whole("proprio_dim", 0, 0),
        action_dim=top.whole("action_dim", 7),
        minmax=top.flag("normalise_by_minmax", False),
        vq=_vq(top),
        max_delay=_max_delay(top),
        stop_token=top.whole("stop_token", 2, 0, text.vocab_size - 1),
    )


def parse_text(raw: Mapping[str, Any], kind: str = "llama") -> TextConfig:
    """Read ``text_config``; ``kind`` is the language model's where it does not say."""
    text = Fields(raw, "text_config")
    kind = text.choice("model_type", kind, tuple(DEFAULTS))
    defaults = DEFAULTS[kind]
    _refuse_unbuilt(text)
    rope = text.part("rope_parameters" if raw.get("rope_parameters") else "rope_scaling")
    rope.only("rope_type", "default")
    rope.only("type", "default")
    heads = text.whole("num_attention_heads", defaults.heads)
    hidden = text.whole("hidden_size", defaults.hidden_size)
    kv_heads = text.whole("num_key_value_heads", heads if kind == "llama" else defaults.kv_heads)
    head_dim = text.whole("head_dim", hidden // heads)
    if heads % kv_heads or head_dim % 2 or (hidden % heads and not raw.get("head_dim")):
        raise CheckpointError(
            f"text_config has hidden_size {hidden}, {heads} heads, {kv_heads} key-value heads,"
            f" head_dim {head_dim}: these do not go together"
        )
    return TextConfig(
        kind=kind,
        vocab_size=text.whole("vocab_size", defaults.vocab_size),
        hidden_size=hidden,
        intermediate_size=text.whole("intermediate_size", defaults.intermediate_size),
        layers=text.whole("num_hidden_layers", defaults.layers, most=DEEPEST),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope_theta=text.number("rope_theta", rope.number("rope_theta", defaults.rope_theta)),
        rms_eps=text.number("rms_norm_eps", defaults.rms_eps),
        tied=text.flag("tie_word_embeddings", False),
    )


def _refuse_unbuilt(text: Fields) -> None:
    """Variants of Llama and Qwen2 that the decoder does not compute."""
    text.only("hidden_act", "silu", "swish")
    text.only("attention_bias", False)
    text.only("mlp_bias", False)
    text.only("use_sliding_window", False)
    text.only("partial_rotary_factor", 1.0)


def _towers(top: Fields) -> tuple[TowerConfig, ...]:
    if any(top.items("timm_override_act_layers")):
        raise top.wrong("timm_override_act_layers", "null, the towers' own GELU")
    if top.raw.get("vision_config"):
        listed = top.part("vision_config").items("towers")
        if not 1 <= len(listed) <= 2:
            raise CheckpointError(f"vision_config has {len(listed)} towers: wanted one or two")
        towers = tuple(
            _tower(Fields(tower, f"vision_config.towers[{i}]")) for i, tower in enumerate(listed)
        )
        if len({tower.patches for tower in towers}) > 1:
            raise CheckpointError("vision_config: the towers see different numbers of patches")
        return towers
    name = top.text("vision_backbone_id", "")
    if name not in BACKBONES:
        raise CheckpointError(
            f"vision_backbone_id is {name!r}: known are {', '.join(BACKBONES)};"
            " other towers need a vision_config"
        )
    fused = len(BACKBONES[name]) == 2
    if top.flag("use_fused_vision_backbone", fused) != fused:
        raise top.wrong("use_fused_vision_backbone", f"{fused}, for {name}")
    return BACKBONES[name]


def _tower(tower: Fields) -> TowerConfig:
    unknown = sorted(set(tower.raw) - {field.name for field in dataclass_fields(TowerConfig)})
    if unknown:
        raise CheckpointError(f"vision_config has unknown keys {', '.join(unknown)}")
    missing = [name for name in ("width", "depth", "heads", "mlp") if name not in tower.raw]
    if missing:
        raise CheckpointError(f"a tower of vision_config lacks {', '.join(missing)}")
    base = TowerConfig(
        tower.whole("width", 0),
        tower.whole("depth", 0, 2, DEEPEST),
        tower.whole("heads", 0),
        tower.whole("mlp", 0),
    )
    if base.width % base.heads:
        raise tower.wrong("width", f"a multiple of the {base.heads} heads")
    return replace(
        base,
        image_size=tower.whole("image_size", base.image_size),
        patch=tower.whole("patch", base.patch),
        class_token=tower.flag("class_token", base.class_token),
        registers=tower.whole("registers", base.registers, 0),
        layer_scale=tower.flag("layer_scale", base.layer_scale),
        mean=tower.triple("mean", tower.raw.get("mean", base.mean)),
        std=tower.triple("std", tower.raw.get("std", base.std)),
        interpolation=tower.choice("interpolation", base.interpolation, INTERPOLATIONS),
        activation=tower.choice("activation", base.activation, ACTIVATIONS),
        ternary=tower.flag("ternary", base.ternary),
    )


def _vq(top: Fields) -> VqConfig | None:
    if not top.raw.get("vq"):
        return None
    vq, usual = top.part("vq"), VqConfig()
    return VqConfig(
        vq.whole("horizon", usual.horizon),
        vq.whole("latent", usual.latent),
        vq.whole("hidden", usual.hidden),
        vq.number("scale", usual.scale),
    )


def _max_delay(top: Fields) -> int:
    delay = top.whole("max_delay", 0, 0)
    if delay > MOST_DELAY:
        raise CheckpointError(f"max_delay is {delay}: a prompt names a delay by one digit")
    return delay


def _prompt_style(llm: str, text: TextConfig) -> str:
    if text.kind == "qwen2" or llm.startswith("qwen"):
        return "qwen"
    return "openvla-v0.1" if llm.startswith("vicuna") else "openvla"
