"""The small GR00Ts of the golden files; read by two programs, so nothing but plain values."""

from __future__ import annotations

from typing import Any

#: Heads by themselves: what differs from NVIDIA's defaults, in its words.
HEADS: dict[str, dict[str, Any]] = {
    "alternate": {"use_alternate_vl_dit": True, "vl_layers": 2, "layers": 6},
    "plain": {"use_alternate_vl_dit": False, "vl_layers": 0, "layers": 4},
}
HEADS_ALL: dict[str, Any] = {
    "backbone_embedding_dim": 40,
    "hidden_size": 28,
    "input_embedding_dim": 36,
    "max_state_dim": 9,
    "max_action_dim": 11,
    "action_horizon": 7,
    "max_seq_len": 16,
    "max_num_embodiments": 5,
    "attend_text_every_n_blocks": 2,
    "num_inference_timesteps": 4,
}
HEAD_HEADS, HEAD_DIM, CONTEXT_HEADS = 3, 12, 5
EMBODIMENT = 3
CONTEXT = "tiiittiiit"  # which rows of a context are text and which images

#: A whole N1.7: its vision-language model in transformers' words, and the rest in NVIDIA's.
QWEN: dict[str, Any] = {
    "image_token_id": 7, "video_token_id": 8, "vision_start_token_id": 5, "vision_end_token_id": 6,
    "tie_word_embeddings": True,
    "text_config": {
        "vocab_size": 300, "hidden_size": 40, "intermediate_size": 72, "num_hidden_layers": 5,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "rms_norm_eps": 1e-6,
        "rope_theta": 5000000, "attention_bias": False, "tie_word_embeddings": True,
        "rope_scaling": {
            "mrope_interleaved": True, "mrope_section": [2, 2, 2], "rope_type": "default",
        },
    },
    "vision_config": {
        "depth": 4, "hidden_size": 24, "intermediate_size": 56, "num_heads": 2, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 40, "in_channels": 3,
        "num_position_embeddings": 100, "deepstack_visual_indexes": [0, 2],
        "hidden_act": "gelu_pytorch_tanh",
    },
}  # fmt: skip
LAYERS = 4
SIDE = 96  # pixels
VIEWS = ("image", "wrist_image")
#: Ids of a prompt; 7 is one row of a picture, of which each has 9.
PROMPT = [3, 40, 13, 5, *[7] * 9, 6, 5, *[7] * 9, 6, 60, 61, 62, 63, 64, 65, 66, 4, 13]
