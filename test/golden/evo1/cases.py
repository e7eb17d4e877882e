"""The cases of Evo-1's golden files: what is small, odd or absent in each. No torch here."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: ``shapes`` of config.json; the model is built from the same numbers in transformers' words.
SHAPES: dict[str, Any] = {
    "vision": {
        "width": 30, "depth": 2, "heads": 3, "mlp": 44, "image_size": 42, "patch": 7,
        "class_token": True, "layer_scale": True, "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
    },
    "text": {
        "kind": "qwen2", "vocab_size": 263, "hidden_size": 36, "intermediate_size": 52,
        "layers": 5, "heads": 6, "kv_heads": 2, "head_dim": 6, "rope_theta": 1e6,
    },
    "shuffle": 2,
}  # fmt: skip
TOKENS = ("<img>", "</img>", "<IMG_CONTEXT>")


@dataclass(frozen=True)
class Case:
    """``cameras``: name -> (height, width), None for one that the batch lacks.

    ``config`` are further fields of LeRobot's Evo1Config; ``modes`` of STATE and ACTION.
    """

    cameras: dict[str, tuple[int, int] | None]
    state: int
    action: int
    task: str
    modes: tuple[str, str] = ("MIN_MAX", "MIN_MAX")
    config: dict[str, object] = field(default_factory=dict)


_SIZES = {
    "max_state_dim": 13, "max_action_dim": 11, "chunk_size": 7, "n_action_steps": 7,
    "embed_dim": 36, "hidden_dim": 40, "state_hidden_dim": 28, "num_heads": 4, "num_layers": 3,
    "vlm_num_layers": 3, "image_resolution": (42, 42), "max_text_length": 160,
}  # fmt: skip

CASES = {
    # Two cameras of three places, pictures of other shapes; more steps than are published.
    "plain": Case(
        {"front": (48, 64), "wrist": (42, 42)}, 8, 7, "pick up the red cube",
        config={**_SIZES, "num_inference_timesteps": 6},
    ),
    # The middle camera is always empty: the last one takes its place. All layers are used.
    "absent": Case(
        {"top": (30, 42), "empty_camera_0": None, "right": (64, 48)}, 6, 6, " open the drawer \n",
        config={**_SIZES, "empty_cameras": 1, "num_inference_timesteps": 32,
                "vlm_num_layers": None},
    ),
    # Several embodiments in one checkpoint, another scaling, a gripper that is open or closed.
    "many": Case(
        {"front": (42, 60)}, 8, 7, "stack", ("QUANTILES", "MEAN_STD"),
        config={**_SIZES, "num_categories": 3, "default_embodiment_id": 2, "max_views": 2,
                "num_inference_timesteps": 5, "binarize_gripper": True, "gripper_index": 6,
                "gripper_threshold": 0.1},
    ),
}  # fmt: skip


def weight(name: str, shape: tuple[int, ...]) -> Any:
    """A tensor of a model: every part of it must move what the model says."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    plain = random.standard_normal(shape).astype(np.float32)
    if len(shape) == 1:
        if "norm" in name and name.endswith("weight"):
            return 0.2 * plain + 1.0
        return (0.1 * plain + (0.6 if "lambda" in name else 0.0)).astype(np.float32)
    if any(part in name for part in ("embed_tokens", "position_embeddings", "cls_token")):
        return plain * np.float32(0.5)
    categories = len(shape) == 3
    fan_in = int(np.prod(shape[1:2] if categories else shape[1:]))
    gain = 2.0 if ".q_proj." in name or ".k_proj." in name else 1.2
    gain = 0.3 if "multi_modal_projector" in name else 0.9 if "in_proj" in name else gain
    gain = 3.0 if "state_encoder" in name else gain  # one row of many
    return (plain * gain * fan_in**-0.5).astype(np.float32)
