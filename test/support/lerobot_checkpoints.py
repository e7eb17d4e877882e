"""Make small LeRobot checkpoints with LeRobot itself, and what it says of one observation.

    PYTHON_OF_LEROBOT test/support/lerobot_checkpoints.py FOLDER

For each of act, diffusion and smolvla a folder as LeRobot saves it (random weights), and a
``said.npz``: images, state and LeRobot's own chunk after its postprocessor. Needs no network.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors

TASK = "push the blue block"
SEED = 5
SIZE = (48, 64)
CAMERAS = {"act": ("gripper_wrist", "top", "side")}
TWO = ("gripper_wrist", "top")
_VLM = {
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

KINDS: dict[str, dict[str, Any]] = {
    "act": {
        "chunk_size": 5, "n_action_steps": 5, "dim_model": 32, "n_heads": 2, "dim_feedforward": 48,
        "n_encoder_layers": 1, "n_decoder_layers": 1, "n_vae_encoder_layers": 1, "latent_dim": 8,
        "pretrained_backbone_weights": None,
    },
    "diffusion": {
        "n_obs_steps": 2, "horizon": 8, "n_action_steps": 4, "down_dims": (16, 32),
        "n_groups": 4, "spatial_softmax_num_keypoints": 4, "diffusion_step_embed_dim": 16,
        "num_inference_steps": 3, "crop_ratio": 1.0, "pretrained_backbone_weights": None,
    },
    "smolvla": {
        "chunk_size": 9, "n_action_steps": 9, "max_state_dim": 16, "max_action_dim": 15,
        "num_vlm_layers": 4, "num_steps": 4, "expert_width_multiplier": 0.72,
        "resize_imgs_with_padding": (56, 56), "load_vlm_weights": False,
    },
}  # fmt: skip


def save_vlm(folder: Path) -> None:
    """SmolVLA's language model without weights: configuration, tokenizer, processor."""
    import json

    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, SmolVLMImageProcessor, SmolVLMProcessor
    from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor

    special = ("<pad>", "<bos>", "<eos>", "<unk>")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate((*special, *alphabet))}
    bytes_only = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = PreTrainedTokenizerFast(
        tokenizer_object=bytes_only, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>",
        extra_special_tokens={
            "fake_image_token": "<unk>", "image_token": "<eos>", "global_image_token": "<bos>",
            "end_of_utterance_token": "<eos>",
        },
    )  # fmt: skip
    SmolVLMProcessor(
        image_processor=SmolVLMImageProcessor(), tokenizer=words,
        video_processor=SmolVLMVideoProcessor(), chat_template="",
    ).save_pretrained(str(folder))  # fmt: skip
    (folder / "config.json").write_text(json.dumps(_VLM))


def make(kind: str, folder: Path) -> None:
    torch.manual_seed(SEED)
    folder.mkdir(parents=True)
    settings = dict(KINDS[kind])
    if kind == "smolvla":
        save_vlm(folder / "vlm")
        settings["vlm_model_name"] = str(folder / "vlm")
    features = {
        f"observation.images.{name}": PolicyFeature(FeatureType.VISUAL, (3, *SIZE))
        for name in CAMERAS.get(kind, TWO)
    }
    features["observation.state"] = PolicyFeature(FeatureType.STATE, (6,))
    config = make_policy_config(
        kind, device="cpu", input_features=features,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (6,))},
        **settings,
    )  # fmt: skip
    policy = get_policy_class(kind)(config).eval()
    draw = np.random.default_rng(SEED)
    stats = {
        key: {
            name: torch.from_numpy(draw.uniform(low, low + 1, 6).astype(np.float32))
            for name, low in (("mean", 0.0), ("std", 0.5), ("min", -2.0), ("max", 1.0))
        }
        for key in ("observation.state", "action")
    }
    image = {"mean": torch.full((3, 1, 1), 0.4), "std": torch.full((3, 1, 1), 0.3),
             "min": torch.zeros(3, 1, 1), "max": torch.ones(3, 1, 1)}  # fmt: skip
    stats |= {name: image for name in features if "images" in name}
    before, after = make_pre_post_processors(config, dataset_stats=stats)
    if kind == "smolvla":  # as a download that was moved: beside the weights, by a relative name
        config.vlm_model_name = "vlm"
        for step in before.steps:
            if hasattr(step, "tokenizer_name"):
                step.tokenizer_name = "vlm"
    before.save_pretrained(str(folder))
    after.save_pretrained(str(folder))
    policy.save_pretrained(str(folder))
    np.savez(folder / "said.npz", **said(policy, before, after, draw))


def said(policy: Any, before: Any, after: Any, draw: np.random.Generator) -> dict[str, np.ndarray]:
    """LeRobot's own words, without a line of ours; the noise is that of seed 5 and stamp 1000."""
    from hashlib import blake2b

    pixels = draw.integers(0, 256, (3, *SIZE, 3), np.uint8)
    state = draw.uniform(-1, 1, 6).astype(np.float32)
    batch = {"observation.state": torch.from_numpy(state), "task": TASK}
    for name, image in zip(CAMERAS.get(policy.config.type, TWO), pixels, strict=False):
        batch[f"observation.images.{name}"] = torch.from_numpy(image).permute(2, 0, 1) / 255.0
    policy.reset()
    torch.manual_seed(int.from_bytes(blake2b(b"5 1000", digest_size=4).digest(), "big"))
    if policy.config.type == "diffusion":
        actions = [policy.select_action(before(batch))]
        actions += [policy.select_action(before(batch)) for _ in range(3)]
        chunk = torch.stack(actions, 1)
    else:
        chunk = policy.predict_action_chunk(before(batch))
    return {"wrist": pixels[0], "main": pixels[1], "side": pixels[2], "state": state,
            "actions": after(chunk)[0].detach().numpy()}  # fmt: skip


if __name__ == "__main__":
    for each in sys.argv[2:] or KINDS:
        make(each, Path(sys.argv[1]) / each)
