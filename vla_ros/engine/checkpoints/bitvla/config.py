"""A BitVLA ``config.json`` and ``preprocessor_config.json``.

Sources: BitVLA ``configuration_bit_vla.py``, ``configuration_bitnet.py``,
``configuration_llava.py`` and ``image_processing_siglip.py``, whose defaults hold where a key is
absent. The number of actions, cameras and values of state is in none of them: `vla-ros convert`
writes it beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vla_ros.engine.checkpoints.config import INTERPOLATIONS, ModelConfig, TextConfig, TowerConfig
from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.errors import CheckpointError

BITVLA = "bitvla"
PROCESSORS = ("SiglipImageProcessor", "SiglipImageProcessorFast")
DEEPEST = 1000
#: BitNet-b1.58-2B-4T and BitSigLIP-L at 224 pixels: the published model
TEXT = TextConfig(
    "bitnet", vocab_size=128256, hidden_size=2560, intermediate_size=6912, layers=30, heads=20,
    kv_heads=5, head_dim=128, rope_theta=5e5, rms_eps=1e-5, tied=True,
)  # fmt: skip
TOWER = TowerConfig(1152, 27, 16, 4304, activation="gelu_tanh", ternary=True)
END = 128001  # <|end_of_text|>
_GELU_TANH, _GELU = "gelu_pytorch_tanh", "gelu"


def parse_bitvla(raw: Mapping[str, Any]) -> ModelConfig:
    """Turn a config.json's content into a :class:`ModelConfig`; ``parallel`` where it has been
    converted. CheckpointError names what is asked for and not computed here."""
    top = Fields(raw)
    text = _text(top.part("text_config"))
    if top.choice("vision_feature_select_strategy", "default", ("default", "full")) != "full":
        raise top.wrong("vision_feature_select_strategy", "full: every patch has a token")
    top.only("vision_feature_layer", -2)
    top.only("projector_hidden_act", _GELU)
    top.only("multimodal_projector_bias", True)
    images = top.whole("image_sequence_len", 1)
    if images > 2:
        raise CheckpointError(f"image_sequence_len is {images}: one camera or two are supported")
    stop = top.part("text_config").whole("eos_token_id", END, 0, text.vocab_size - 1)
    return ModelConfig(
        text=text,
        towers=(_tower(top.part("vision_config")),),
        action_vocab=text.vocab_size,
        prompt_style=BITVLA,
        bins=top.whole("n_action_bins", 256, 2),
        images=images,
        chunk=top.whole("action_chunk", 1),
        parallel=top.flag("parallel_decoding", False),
        proprio_dim=top.whole("proprio_dim", 0, 0),
        action_dim=top.whole("action_dim", 7),
        minmax=top.flag("normalise_by_minmax", False),
        stop_token=stop,
    )


def refuse_headless(directory: Path, config: ModelConfig) -> None:
    """CheckpointError for a BitVLA without an action head: the vision-language model, or the base
    of a fine-tune."""
    if config.text.ternary and not config.parallel:
        raise CheckpointError(
            f"{directory} is BitVLA without an action head, which says no actions: give a"
            " fine-tuned one, with action_head--*_checkpoint.pt, after `vla-ros convert`"
        )


def apply_siglip(config: ModelConfig, raw: Mapping[str, Any]) -> ModelConfig:
    """``config`` with the content of a SiglipImageProcessor's file."""
    fields, (tower,) = Fields(raw), config.towers
    fields.choice("image_processor_type", PROCESSORS[0], PROCESSORS)
    for name in ("do_resize", "do_rescale", "do_normalize"):
        fields.only(name, True)
    size = fields.part("size")
    for side in ("height", "width"):
        size.only(side, tower.image_size)
    factor = fields.number("rescale_factor", 1 / 255)
    if abs(factor - 1 / 255) > 1e-6:
        raise fields.wrong("rescale_factor", "1 / 255")
    mean, std = (
        fields.triple(n, fields.raw.get(n) or [0.5] * 3) for n in ("image_mean", "image_std")
    )
    if min(std) <= 0:
        raise fields.wrong("image_std", "numbers above 0")
    number = fields.whole("resample", 3, 0, len(INTERPOLATIONS) - 1)
    tower = replace(tower, mean=mean, std=std, interpolation=INTERPOLATIONS[number])
    return replace(config, towers=(tower,))


def _text(fields: Fields) -> TextConfig:
    fields.choice("model_type", "BitNet", ("BitNet", "bitnet"))
    # their class computes ReLU squared whatever its hidden_act says
    fields.only("hidden_act", "silu", "relu2")
    fields.only("attention_bias", False)
    fields.only("use_sliding_window", False)
    heads = fields.whole("num_attention_heads", TEXT.heads)
    kv_heads = fields.whole("num_key_value_heads", TEXT.kv_heads)
    hidden = fields.whole("hidden_size", TEXT.hidden_size)
    if hidden % heads or heads % kv_heads or hidden // heads % 2:
        raise CheckpointError(
            f"text_config has hidden_size {hidden}, {heads} heads, {kv_heads} key-value heads:"
            " these do not go together"
        )
    return TextConfig(
        "bitnet",
        vocab_size=fields.whole("vocab_size", TEXT.vocab_size),
        hidden_size=hidden,
        intermediate_size=fields.whole("intermediate_size", TEXT.intermediate_size),
        layers=fields.whole("num_hidden_layers", TEXT.layers, most=DEEPEST),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        rope_theta=fields.number("rope_theta", TEXT.rope_theta),
        rms_eps=fields.number("rms_norm_eps", TEXT.rms_eps),
        tied=fields.flag("tie_word_embeddings", True),
    )


def _tower(fields: Fields) -> TowerConfig:
    fields.only("num_channels", 3)
    fields.only("layer_norm_eps", 1e-6)
    bits = fields.whole("vit_weight_bits", 32), fields.whole("vit_act_bits", 32)
    if bits not in ((1, 8), (32, 32)):
        raise CheckpointError(
            f"vision_config has vit_weight_bits {bits[0]} and vit_act_bits {bits[1]}: 1 and 8,"
            " or 32 and 32, are computed here"
        )
    fields.only("vit_weight_quant_method", "absmean")
    fields.only("vit_act_quant_method", "absmax_per_token")
    activation = fields.choice("hidden_act", _GELU_TANH, (_GELU_TANH, _GELU))
    width, heads = fields.whole("hidden_size", 768), fields.whole("num_attention_heads", 12)
    if width % heads:
        raise fields.wrong("hidden_size", f"a multiple of the {heads} heads")
    return TowerConfig(
        width,
        fields.whole("num_hidden_layers", 12, 2, DEEPEST),
        heads,
        fields.whole("intermediate_size", 3072),
        image_size=fields.whole("image_size", 224),
        patch=fields.whole("patch_size", 16),
        activation="gelu" if activation == _GELU else "gelu_tanh",
        ternary=bits == (1, 8),
    )


def bitvla_json(config: ModelConfig) -> dict[str, Any]:
    """The config.json that :func:`parse_bitvla` reads back as ``config``."""
    text, (tower,) = config.text, config.towers
    return {
        "architectures": ["BitVLAForActionPrediction"],
        "model_type": BITVLA,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "full",
        "projector_hidden_act": _GELU,
        "vocab_size": text.vocab_size,
        "n_action_bins": config.bins,
        "text_config": {
            "model_type": "BitNet",
            "vocab_size": text.vocab_size,
            "hidden_size": text.hidden_size,
            "intermediate_size": text.intermediate_size,
            "num_hidden_layers": text.layers,
            "num_attention_heads": text.heads,
            "num_key_value_heads": text.kv_heads,
            "rope_theta": text.rope_theta,
            "rms_norm_eps": text.rms_eps,
            "tie_word_embeddings": text.tied,
            "eos_token_id": config.stop_token,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": tower.width,
            "intermediate_size": tower.mlp,
            "num_hidden_layers": tower.depth,
            "num_attention_heads": tower.heads,
            "image_size": tower.image_size,
            "patch_size": tower.patch,
            "hidden_act": _GELU if tower.activation == "gelu" else _GELU_TANH,
            "vit_weight_bits": 1 if tower.ternary else 32,
            "vit_act_bits": 8 if tower.ternary else 32,
        },
        "parallel_decoding": config.parallel,
        "action_chunk": config.chunk,
        "image_sequence_len": config.images,
        "action_dim": config.action_dim,
        "proprio_dim": config.proprio_dim,
        "normalise_by_minmax": config.minmax,
    }
