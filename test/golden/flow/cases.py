"""The cases of the golden files: what is small, odd or absent in each. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field

#: ``shapes`` of config.json for pi0 and pi0.5 (LeRobot fixes the published ones in its code).
PI_SHAPES = {
    "vision": {"width": 30, "depth": 2, "heads": 3, "mlp": 44, "image_size": 28, "patch": 7},
    "text": {
        "vocab_size": 260, "hidden_size": 36, "intermediate_size": 52, "layers": 3, "heads": 4,
        "kv_heads": 1, "head_dim": 10, "tied": True,
    },
    "expert": {
        "vocab_size": 260, "hidden_size": 22, "intermediate_size": 34, "layers": 3, "heads": 4,
        "kv_heads": 1, "head_dim": 10, "tied": True,
    },
    "shuffle": 1,
}  # fmt: skip

#: The config.json of SmolVLA's language model, in SmolVLM's words.
VLM = {
    "model_type": "smolvlm",
    "scale_factor": 2,
    "vision_config": {
        "model_type": "smolvlm_vision", "hidden_size": 30, "num_hidden_layers": 2,
        "num_attention_heads": 3, "intermediate_size": 44, "image_size": 56, "patch_size": 7,
    },
    "text_config": {
        "model_type": "llama", "vocab_size": 260, "hidden_size": 42, "intermediate_size": 50,
        "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 2,
        "head_dim": 14, "rms_norm_eps": 1e-5,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """``cameras``: name -> (height, width), None for one that the batch lacks.

    ``config`` are further fields of LeRobot's config class; ``modes`` of STATE and ACTION.
    """

    kind: str
    cameras: dict[str, tuple[int, int] | None]
    state: int
    action: int
    task: str
    modes: tuple[str, str] = ("MEAN_STD", "MEAN_STD")
    config: dict[str, object] = field(default_factory=dict)


_SIZES = {"max_state_dim": 16, "max_action_dim": 15, "chunk_size": 9, "n_action_steps": 9}
_SMOL = {
    "vlm_model_name": "tiny-vlm", "num_vlm_layers": 4, "num_steps": 4,
    "expert_width_multiplier": 0.72,
}  # fmt: skip

CASES = {
    "pi0": Case(
        "pi0", {"front": (28, 28), "wrist": (41, 64)}, 6, 7, "pick up the red cube",
        config={**_SIZES, "image_resolution": (28, 28), "num_inference_steps": 4},
    ),
    "pi0_relative": Case(
        "pi0", {"top": (60, 33), "left": None, "right": (20, 25)}, 14, 14, "open\tthe drawer\n",
        modes=("MIN_MAX", "QUANTILES"),
        config={
            **_SIZES, "image_resolution": (28, 28), "num_inference_steps": 3,
            "use_relative_actions": True, "relative_exclude_joints": ["gripper"],
            "action_feature_names": [
                *(f"left_{i}" for i in range(6)), "left_gripper",
                *(f"right_{i}" for i in range(6)), "Right_Gripper",
            ],
        },
    ),
    "pi05": Case(
        "pi05", {"front": (48, 64), "wrist": (28, 28)}, 8, 7, " pick_up the\nred cube ",
        modes=("QUANTILES", "QUANTILES"),
        config={
            **_SIZES, "image_resolution": (28, 28), "num_inference_steps": 4, "empty_cameras": 1,
        },
    ),
    "smolvla": Case(
        "smolvla", {"front": (48, 64), "wrist": (70, 56)}, 6, 7, "push the blue block",
        config={**_SIZES, **_SMOL, "resize_imgs_with_padding": (56, 56)},
    ),
    "smolvla_small_images": Case(
        "smolvla", {"a": (30, 44), "b": (64, 64), "c": None}, 9, 6, "stack",
        modes=("QUANTILE10", "MIN_MAX"),
        config={
            **_SIZES, **_SMOL, "resize_imgs_with_padding": (42, 42), "empty_cameras": 1,
            "self_attn_every_n_layers": 3, "prefix_length": 90,
        },
    ),
}  # fmt: skip
