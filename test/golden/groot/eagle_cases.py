"""The small GR00T N1.5 and N1.6 of the golden files; read by two programs: plain values only."""

from __future__ import annotations

from typing import Any

#: What Eagle's config.json says otherwise, in its words. N1.6's table is stretched from 5 x 5 to
#: the 6 x 6 patches of a picture of 84 pixels; N1.5's pictures have 4 x 4.
TEXT: dict[str, Any] = {
    "hidden_size": 40, "intermediate_size": 52, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 12, "num_hidden_layers": 4, "vocab_size": 280, "rope_theta": 1000000,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 24, "intermediate_size": 36, "num_attention_heads": 2, "num_hidden_layers": 2,
    "patch_size": 14,
}  # fmt: skip
IMAGE_TOKEN = 265
SELECT = 3  # layers of the language model that are used

#: The head's, in the words of NVIDIA's config.
HEAD: dict[str, Any] = {
    "hidden_size": 28, "input_embedding_dim": 36, "max_seq_len": 16, "action_horizon": 7,
    "num_inference_timesteps": 4,
}  # fmt: skip
DIT: dict[str, Any] = {
    "positional_embeddings": None, "num_attention_heads": 3, "attention_head_dim": 12,
    "norm_type": "ada_norm", "dropout": 0.2, "final_dropout": True, "output_dim": 28,
    "interleave_self_attention": True,
}  # fmt: skip

TASK = "Put the Red cube, on it!"
TAG = "libero_panda"
CAMERAS = {"image": (60, 80), "wrist_image": (96, 96)}
STATES = {"x": 1, "arm": 3, "gripper": 2}
ACTIONS = {"x": 1, "turn": 3, "gripper": 1}
MERGES = ["Ġ t", "Ġt h", "Ġth e", "r e", "re d", "c u"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<IMG_CONTEXT>", "<img>", "</img>"]
FIRST_SPECIAL = 262  # the next id: tokenizers gives out no other


def vocabulary(alphabet: list[str]) -> dict[str, int]:
    """Every byte, and what the merges make."""
    return {token: i for i, token in enumerate([*alphabet, *(m.replace(" ", "") for m in MERGES)])}


N15_TAG = "new_embodiment"
N15_CAMERAS = {"front": (60, 80), "wrist": (60, 80)}
N15_STATES = {"single_arm": 4, "gripper": 2}
N15_ACTIONS = {"single_arm": 3, "gripper": 1}
