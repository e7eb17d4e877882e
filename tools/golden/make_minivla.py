"""MiniVLA with the authors' own classes, as their trainer saves it: OUT CLONE VQ_CLONE.

One run speaks in bins, with a wrist camera beside the other; one in codes of a VQ-VAE.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from authors import SIDE, packages, randomize, save, small_towers, speak_actions, statistics
from PIL import Image
from scenes import INSTRUCTIONS, pairs, pictures

TEXT = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "rope_theta": 1e6, "tie_word_embeddings": True, "vocab_size": 640,
    "max_position_embeddings": 2048, "use_sliding_window": False,
}  # fmt: skip
VQ = {"input_dim_w": 7, "input_dim_h": 8, "n_latent_dims": 16, "vqvae_n_embed": 64,
      "vqvae_groups": 7, "act_scale": 1.0, "encoder_loss_multiplier": 1.0}  # fmt: skip
BASE = "prism-qwen25-extra-dinosiglip-224px+0_5b"


def qwen(directory: Path) -> Path:
    """A small Qwen2.5 as on the hub: config.json, and a tokenizer with its special tokens."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import Qwen2Config
    from transformers.models.qwen2.tokenization_qwen2_fast import Qwen2TokenizerFast

    directory.mkdir(parents=True)
    Qwen2Config(**TEXT).save_pretrained(directory)
    trained = ByteLevelBPETokenizer()
    corpus = [f"What action should the robot take to {text.lower()}?" for text in INSTRUCTIONS]
    corpus += ["True", "False", "Yes", "No"] * 50  # PrismaticVLM wants one token for each
    trained.train_from_iterator(corpus * 4, vocab_size=420, show_progress=False)
    trained.save_model(str(directory))
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Qwen2TokenizerFast(
        str(directory / "vocab.json"), str(directory / "merges.txt"),
        additional_special_tokens=special,
    )  # fmt: skip
    tokenizer.save_pretrained(directory)
    return directory


def vq_vae(directory: Path, seed: int) -> Path:
    """A VQ-VAE as vla-scripts/pretrain_vq.py saves it."""
    from vqvae.vqvae import VqVae

    torch.manual_seed(seed)  # of the encoder, which is not randomised
    model = VqVae(**VQ, eval=False, device="cpu", load_dir=None)
    randomize(model.decoder, seed)
    rng = np.random.default_rng(seed + 1)
    for layer in model.vq_layer.layers:
        shape = tuple(layer._codebook.embed.shape)
        layer._codebook.embed.copy_(torch.from_numpy(rng.integers(-7, 8, shape) / 8))
    (directory / "checkpoints").mkdir(parents=True)
    torch.save(model.state_dict(), directory / "checkpoints" / "model.pt")
    said = {**VQ, "load_dir": None, "eval": False, "device": "cuda"}
    (directory / "config.json").write_text(json.dumps(said))
    return directory


def case(out: Path, hub: Path, action_tokenizer: str, images: int, seed: int, codes: int) -> None:
    from prismatic.models.backbones.llm import qwen25
    from prismatic.models.backbones.vision.dinosiglip_vit import DinoSigLIPViTBackbone
    from prismatic.models.vlas.openvla import OpenVLA
    from prismatic.vla.action_tokenizer import ACTION_TOKENIZERS

    qwen25.QWEN25_MODELS["qwen25-0_5b-extra"]["hf_hub_path"] = str(hub)
    vision = DinoSigLIPViTBackbone("dinosiglip-vit-so-224px", "resize-naive", SIDE, images)
    language = qwen25.Qwen25LLMBackbone(
        "qwen25-0_5b-extra", inference_mode=True, num_extra_tokens=256
    )
    stats = statistics(7, 0, "libero_90")
    actions = ACTION_TOKENIZERS[action_tokenizer](language.tokenizer)
    model = OpenVLA(
        BASE, vision, language, arch_specifier="no-align+fused-gelu-mlp", norm_stats=stats,
        action_tokenizer=actions,
    ).eval()  # fmt: skip
    last = len(language.tokenizer)
    randomize(model, seed)
    speak_actions(language.llm, last, last - codes, codes)
    (out / "checkpoints").mkdir(parents=True)
    parts = {name: getattr(model, name).state_dict() for name in model.all_module_keys}
    torch.save({"model": parts, "optimizer": {}},
               out / "checkpoints" / "step-000010-epoch-01-loss=0.1000.pt")  # fmt: skip
    vla = {"base_vlm": BASE, "action_tokenizer": action_tokenizer, "image_sequence_len": images,
           "use_wrist_image": images == 2}  # fmt: skip
    (out / "config.json").write_text(json.dumps({"vla": vla}))
    (out / "dataset_statistics.json").write_text(json.dumps(stats))
    language.tokenizer.save_pretrained(out)
    generate = super(type(model).__mro__[1], model).generate
    found: dict[str, list[np.ndarray]] = {"pixels": [], "logits": [], "tokens": [], "actions": []}
    ids: dict[str, Any] = {}
    transform, shown = vision.get_image_transform(), pictures()
    for number, text in pairs():
        seen = [Image.fromarray(shown[(number + i) % len(shown)]) for i in range(images)]
        asked = seen if images > 1 else seen[0]
        builder = model.get_prompt_builder()
        builder.add_turn("human", f"What action should the robot take to {text.lower()}?")
        given = language.tokenizer(builder.get_prompt(), return_tensors="pt").input_ids
        ids[f"ids_{INSTRUCTIONS.index(text)}"] = given[0].numpy()
        pixels = {name: tensor[None] for name, tensor in transform(asked).items()}
        with torch.inference_mode():
            said = generate(
                input_ids=given, pixel_values=pixels, max_new_tokens=7, do_sample=False,
                return_dict_in_generate=True, output_scores=True,
            )  # fmt: skip
        found["pixels"].append(torch.cat([pixels["dino"], pixels["siglip"]], -3)[0].numpy())
        found["logits"].append(torch.stack(said.scores)[:, 0, last - codes : last].numpy())
        found["tokens"].append(said.sequences[0, -7:].numpy())
        found["actions"].append(
            np.asarray(model.predict_action(asked, text, unnorm_key="libero_90", do_sample=False))
        )
    kept = {"pixels": 3, "logits": 5}
    arrays = {name: np.stack(values[: kept.get(name)]) for name, values in found.items()}
    sizes = {"last": last, "rows": language.llm.get_input_embeddings().weight.shape[0]}
    save(out, **ids, **arrays, **sizes)


def main(out: Path, clone: Path, vq_clone: Path) -> None:
    packages(clone, "prismatic", "prismatic.models", "prismatic.vla", "prismatic.util")
    sys.path.insert(0, str(vq_clone))
    small_towers()
    from prismatic.vla import action_tokenizer

    hub = qwen(out / "qwen.tmp")
    vq = vq_vae(out / "minivla-vq" / "vq", 33)
    action_tokenizer.ACTION_TOKENIZERS["libero_vq_extra_action_tokenizer"] = partial(
        action_tokenizer.VQActionTokenizer, vq_vae_path=str(vq), use_extra=True
    )
    case(out / "minivla", hub, "extra_action_tokenizer", 2, 31, 256)
    codes = VQ["vqvae_n_embed"]
    case(out / "minivla-vq", hub, "libero_vq_extra_action_tokenizer", 1, 32, int(codes))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
