"""config.json as the family's classes read it: defaults, and what is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from vla_ros.engine import CheckpointError
from vla_ros.engine.io.config import LLAMA_EMPTY_TOKEN, parse_config, parse_text

OPENVLA: dict[str, Any] = {
    "vision_backbone_id": "dinosiglip-vit-so-224px",
    "llm_backbone_id": "llama2-7b-pure",
    "text_config": {"model_type": "llama", "vocab_size": 32064},
}


@pytest.mark.parametrize("pad", [32, 64, 128])
def test_the_empty_token_does_not_depend_on_the_padding_of_the_vocabulary(pad: int) -> None:
    """modeling_prismatic.py appends 29871 whatever pad_to_multiple_of is."""
    config = parse_config({**OPENVLA, "pad_to_multiple_of": pad})
    assert config.empty_token_id == LLAMA_EMPTY_TOKEN
    assert config.action_vocab == 32064 - pad
    assert parse_config({**OPENVLA, "empty_token_id": None}).empty_token_id is None


def test_what_text_config_leaves_out_is_its_class_s_default() -> None:
    """transformers 4.40's Qwen2Config and LlamaConfig."""
    qwen = parse_text({"model_type": "qwen2"})
    assert (qwen.vocab_size, qwen.hidden_size, qwen.intermediate_size) == (151936, 4096, 22016)
    assert (qwen.layers, qwen.heads, qwen.kv_heads) == (32, 32, 32)
    assert parse_text({"model_type": "qwen2", "num_attention_heads": 64}).kv_heads == 32
    llama = parse_text({"model_type": "llama"})
    assert (llama.vocab_size, llama.intermediate_size, llama.rope_theta) == (32000, 11008, 1e4)
    assert parse_text({"num_attention_heads": 64}).kv_heads == 64


def test_the_language_model_s_kind_follows_from_the_backbone() -> None:
    raw = {**OPENVLA, "llm_backbone_id": "qwen25-0_5b-extra", "text_config": {}}
    raw["action_vocab"] = 151921
    config = parse_config(raw)
    assert (config.text.kind, config.text.vocab_size) == ("qwen2", 151936)
    assert (config.prompt_style, config.empty_token_id) == ("qwen", None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text_config": {"hidden_act": "gelu"}}, "text_config.hidden_act is 'gelu'"),
        ({"text_config": {"attention_bias": True}}, "attention_bias is True"),
        ({"text_config": {"mlp_bias": True}}, "mlp_bias is True"),
        ({"text_config": {"use_sliding_window": True}}, "use_sliding_window is True"),
        ({"text_config": {"rope_scaling": {"type": "linear"}}}, "rope_scaling.type is 'linear'"),
        ({"text_config": {"hidden_size": "4096"}}, "text_config.hidden_size is '4096'"),
        ({"text_config": {"num_attention_heads": 0}}, "num_attention_heads is 0"),
        ({"text_config": {"num_attention_heads": 7}}, "do not go together"),
        ({"text_config": {"num_hidden_layers": 10**9}}, "num_hidden_layers is 1000000000"),
        (
            {"text_config": {"rms_norm_eps": "small"}},
            "rms_norm_eps is 'small': wanted a finite number above 0",
        ),
        ({"text_config": []}, r"text_config is \[\]: wanted an object"),
        ({"text_config": {"vocab_size": 100}}, "256 action bins at the end of 36 tokens"),
        ({"quantization_config": {"load_in_4bit": True}}, "quantized weights"),
        ({"image_resize_strategy": "stretch"}, "image_resize_strategy is 'stretch'"),
        ({"vision_backbone_id": "clip-vit-l"}, "vision_backbone_id is 'clip-vit-l'"),
        ({"use_fused_vision_backbone": False}, "use_fused_vision_backbone is False"),
        ({"timm_override_act_layers": ["quick_gelu"]}, "timm_override_act_layers is"),
        ({"n_action_bins": 0}, "n_action_bins is 0"),
        ({"parallel_decoding": "yes"}, "parallel_decoding is 'yes': wanted true or false"),
        ({"empty_token_id": 99999}, "empty_token_id 99999 is no token"),
        ({"vision_config": {"towers": []}}, "vision_config has 0 towers"),
        ({"vision_config": {"towers": [7]}}, r"vision_config.towers\[0\] is 7"),
        ({"vision_config": {"towers": [{"width": 64}]}}, "lacks depth, heads, mlp"),
    ],
)
def test_what_is_asked_for_and_not_computed_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse_config({**OPENVLA, **changes})
