"""OpenVLA with the authors' Hugging Face classes: OUT CLONE FIXTURES."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from authors import (
    SIDE,
    llama_tokenizer,
    packages,
    randomize,
    save,
    small_towers,
    speak_actions,
    statistics,
    tower_config,
)  # fmt: skip
from PIL import Image
from scenes import INSTRUCTIONS, pairs, pictures

PROMPTS = {
    "llama2-7b-pure": "In: What action should the robot take to {}?\nOut:",
    "vicuna-v15-7b": (
        "A chat between a curious user and an artificial intelligence assistant. The assistant"
        " gives helpful, detailed, and polite answers to the user's questions. USER: What action"
        " should the robot take to {}? ASSISTANT:"
    ),
}  # vla-scripts/deploy.py
TEXT = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": 32064,
}  # fmt: skip


def processor_of(backbone: str, strategy: str, tokenizer: Any) -> Any:
    """As vla-scripts/extern/convert_openvla_weights_to_hf.py makes it, bfloat16 and all."""
    import timm
    from prismatic.extern.hf.configuration_prismatic import VISION_BACKBONE_TO_TIMM_ID
    from prismatic.extern.hf.processing_prismatic import PrismaticImageProcessor, PrismaticProcessor

    torch.set_default_dtype(torch.bfloat16)
    configs = [
        timm.data.resolve_model_data_config(timm.create_model(name, num_classes=0))
        for name in VISION_BACKBONE_TO_TIMM_ID[backbone]
    ]
    images = PrismaticImageProcessor(
        use_fused_vision_backbone=len(configs) == 2,
        image_resize_strategy=strategy,
        input_sizes=[(3, SIDE, SIDE)] * len(configs),
        interpolations=[config["interpolation"] for config in configs],
        means=[config["mean"] for config in configs],
        stds=[config["std"] for config in configs],
    )
    torch.set_default_dtype(torch.float32)
    return PrismaticProcessor(image_processor=images, tokenizer=tokenizer)


def model_of(backbone: str, llm: str, stats: dict[str, Any], text: dict[str, Any]) -> Any:
    from prismatic.extern.hf import configuration_prismatic as configuration
    from prismatic.extern.hf.modeling_prismatic import OpenVLAForActionPrediction

    fused = backbone.startswith("dinosiglip")
    configuration.VISION_BACKBONE_TO_RESOLUTION[backbone] = [SIDE] * (1 + fused)
    config = configuration.OpenVLAConfig(
        vision_backbone_id=backbone, llm_backbone_id=llm, norm_stats=stats,
        image_resize_strategy="resize-naive" if fused else "letterbox",
        arch_specifier="no-align+fused-gelu-mlp" if fused else "no-align+gelu-mlp",
        text_config={**TEXT, **text},
    )  # fmt: skip
    return OpenVLAForActionPrediction(config).eval()


def write(model: Any, processor: Any, out: Path, fused: bool) -> None:
    """What the authors' programs save, and the sizes of the small towers."""
    model.save_pretrained(out)
    processor.save_pretrained(out)
    raw = json.loads((out / "config.json").read_text())
    raw["vision_config"] = tower_config(fused)
    (out / "config.json").write_text(json.dumps(raw, indent=1))


def case(out: Path, fixtures: Path, backbone: str, llm: str, seed: int, **text: Any) -> None:
    """A checkpoint, and what the original says with it."""
    fused = backbone.startswith("dinosiglip")
    stats = statistics(7, 0, "bridge_orig") | statistics(5, 2, "five", gripper=False)
    model = model_of(backbone, llm, stats, text)
    randomize(model, seed)
    speak_actions(model.language_model, 32000, 1000)
    processor = processor_of(
        backbone, model.config.image_resize_strategy, llama_tokenizer(fixtures)
    )
    write(model, processor, out, fused)
    processor = type(processor)(  # what a user runs is what was saved
        type(processor.image_processor).from_pretrained(out), processor.tokenizer
    )
    say(out, type(model).from_pretrained(out).eval(), processor, PROMPTS[llm])


def say(out: Path, model: Any, processor: Any, prompt: str) -> None:
    """Write what the original says to every pair."""
    shown = pictures()
    found: dict[str, list[np.ndarray]] = {"pixels": [], "logits": [], "tokens": [], "actions": []}
    ids = {
        f"ids_{i}": [*processor.tokenizer(prompt.format(text.lower())).input_ids, 29871]
        for i, text in enumerate(INSTRUCTIONS)
    }
    with torch.inference_mode():
        for number, text in pairs():
            inputs = processor(prompt.format(text.lower()), Image.fromarray(shown[number]))
            wanted = torch.tensor([ids[f"ids_{INSTRUCTIONS.index(text)}"]])
            said = model.generate(
                wanted, pixel_values=inputs["pixel_values"], max_new_tokens=7, do_sample=False,
                return_dict_in_generate=True, output_scores=True,
            )  # fmt: skip
            found["pixels"].append(inputs["pixel_values"][0].numpy())
            found["logits"].append(torch.stack(said.scores)[:, 0, 32000 - 256 : 32000].numpy())
            found["tokens"].append(said.sequences[0, -7:].numpy())
            found["actions"].append(
                model.predict_action(**inputs, unnorm_key="bridge_orig", do_sample=False)
            )
    five = model.predict_action(**inputs, unnorm_key="five", do_sample=False)
    kept = {"pixels": 3, "logits": 5}  # of these some will do
    arrays = {name: np.stack(values[: kept.get(name)]) for name, values in found.items()}
    save(out, five=five, **ids, **arrays)


def adapter(out: Path, base: Path, fixtures: Path) -> None:
    """What vla-scripts/finetune.py trains and saves, and what the merged model says."""
    from peft import LoraConfig, get_peft_model
    from prismatic.extern.hf.modeling_prismatic import OpenVLAForActionPrediction
    from prismatic.extern.hf.processing_prismatic import PrismaticImageProcessor, PrismaticProcessor

    model = OpenVLAForActionPrediction.from_pretrained(base).eval()
    config = LoraConfig(
        r=2, lora_alpha=1, target_modules="all-linear", init_lora_weights="gaussian"
    )
    tuned = get_peft_model(model, config)
    factors = torch.nn.ParameterDict(
        {n.replace(".", "/"): p for n, p in tuned.named_parameters() if "lora_" in n}
    )
    randomize(factors, 5)
    tuned.save_pretrained(out)
    images = PrismaticImageProcessor.from_pretrained(base)
    processor = PrismaticProcessor(images, llama_tokenizer(fixtures))
    say(out, tuned.merge_and_unload().eval(), processor, PROMPTS["llama2-7b-pure"])


def squares(out: Path, fixtures: Path) -> None:
    """What each strategy makes of each picture, with both towers' normalisation."""
    tokenizer = llama_tokenizer(fixtures)
    arrays = {}
    for strategy in ("resize-naive", "resize-crop", "letterbox"):
        processor = processor_of("dinosiglip-vit-so-224px", strategy, tokenizer).image_processor
        directory = out / strategy
        processor.save_pretrained(directory)
        reloaded = type(processor).from_pretrained(directory)
        shown = [Image.fromarray(picture) for picture in pictures()]
        pixels = [reloaded(picture, return_tensors="pt")["pixel_values"][0] for picture in shown]
        arrays[strategy] = torch.stack(pixels).numpy()
    save(out, **arrays)


def main(out: Path, clone: Path, fixtures: Path) -> None:
    packages(clone, "prismatic", "prismatic.extern", "prismatic.extern.hf")
    small_towers()
    case(out / "openvla", fixtures, "dinosiglip-vit-so-224px", "llama2-7b-pure", 1)
    case(out / "openvla-v01", fixtures, "siglip-vit-so400m", "vicuna-v15-7b", 2,
         num_key_value_heads=2, rope_theta=5e5)  # fmt: skip
    adapter(out / "openvla-lora", out / "openvla", fixtures)
    (out / "squares").mkdir()
    squares(out / "squares", fixtures)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
