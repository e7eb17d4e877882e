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

#: Pictures: their size, what they become, how much of the middle stays; every n-th pixel is kept.
PICTURES: dict[str, dict[str, Any]] = {
    "camera": {"size": (480, 640), "side": 256, "crop": 230, "every": 5},
    "square": {"size": (256, 256), "side": 256, "crop": 230, "every": 5},
    "twice": {"size": (512, 512), "side": 256, "crop": 243, "every": 5},
    "small": {"size": (90, 128), "side": 96, "crop": 86, "every": 2},
    "tall": {"size": (301, 97), "side": 96, "crop": 96, "every": 2},
}

_ONE = {"delta_indices": [0]}
#: Robots in the words of processor_config.json.
ROBOTS: dict[str, dict[str, Any]] = {
    "arm": {
        "video": {**_ONE, "modality_keys": ["front", "wrist_image"]},
        "state": {
            **_ONE, "modality_keys": ["pose", "joints", "angles", "grip"],
            "sin_cos_embedding_keys": ["angles"], "mean_std_embedding_keys": ["grip"],
        },
        "action": {
            "delta_indices": [0, 1, 2, 3, 4, 5],
            "modality_keys": ["pose", "moved", "grip"],
            "mean_std_embedding_keys": ["grip"],
            "action_configs": [
                {"rep": "RELATIVE", "type": "EEF", "format": "XYZ_ROT6D", "state_key": "pose"},
                {"rep": "RELATIVE", "type": "NON_EEF", "format": "DEFAULT", "state_key": "joints"},
                {"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None},
            ],
        },
        "language": {**_ONE, "modality_keys": ["task"]},
    },
    "turner": {
        "video": {**_ONE, "modality_keys": ["front"]},
        "state": {**_ONE, "modality_keys": ["twist"]},
        "action": {
            "delta_indices": [0, 1, 2],
            "modality_keys": ["twist"],
            "action_configs": [
                {"rep": "RELATIVE", "type": "EEF", "format": "XYZ_ROTVEC", "state_key": None},
            ],
        },
        "language": {**_ONE, "modality_keys": ["task"]},
    },
}  # fmt: skip
_SIZES = {"pose": 9, "joints": 4, "moved": 4, "angles": 2, "grip": 1, "twist": 6}


def robot_statistics(name: str, draw: Any) -> dict[str, Any]:
    """Statistics in the words of statistics.json, of values that ``draw`` gives."""
    robot, out = ROBOTS[name], {}
    rows = len(robot["action"]["delta_indices"])
    for kind in ("state", "action"):
        out[kind] = {
            key: _statistics(f"{name}/{kind}/{key}", draw, _SIZES[key])
            for key in robot[kind]["modality_keys"]
        }
    out["relative_action"] = {
        key: _statistics(f"{name}/relative/{key}", draw, rows, _SIZES[key])
        for key, said in zip(
            robot["action"]["modality_keys"], robot["action"]["action_configs"], strict=True
        )
        if said["rep"] == "RELATIVE"
    }
    return out


def _statistics(name: str, draw: Any, *shape: int) -> dict[str, Any]:
    middle, spread = 0.5 * draw(f"{name}/middle", *shape), abs(draw(f"{name}/spread", *shape)) + 0.3
    least, greatest = middle - 2 * spread, middle + 2 * spread
    if shape == (4,):  # one that never moved
        greatest[2] = least[2]
    values = {
        "min": least, "max": greatest, "mean": middle, "std": spread,
        "q01": middle - 1.5 * spread, "q99": middle + 1.6 * spread,
    }  # fmt: skip
    return {key: value.astype("float64").tolist() for key, value in values.items()}
