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
