"""LeRobot's own policy, which makes a chunk at every line that it reads. Runs in LeRobot's
interpreter, so it imports nothing of this project.

The first line on stdin is a JSON object: ``config`` (a config.json with this project's ``shapes``),
``inputs`` (an .npz), ``weights`` (a model.safetensors, or "" for random ones), ``dtype``,
``threads``, ``device``. Every later line asks for one chunk. Each is answered by one line of JSON:
``{"version": ...}``, then ``{"cpu": {phase: s}, "wall": {phase: s}, "chunk": [[...]]}``.

LeRobot's code runs as it is; replaced are the sizes that it fixes, and its downloads from the hub.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from types import SimpleNamespace
from typing import Any


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # LeRobot prints
    asked = json.loads(sys.stdin.readline())
    import numpy as np
    import torch

    if asked["threads"]:
        torch.set_num_threads(asked["threads"])
    _torchvision_of_another_build(torch)
    policy = load(asked)
    arrays = {name: torch.from_numpy(value) for name, value in np.load(asked["inputs"]).items()}
    import lerobot

    answers.write(json.dumps({"version": lerobot.__version__}) + "\n")
    for _ in sys.stdin:
        answers.write(json.dumps(chunk(policy, arrays, asked)) + "\n")


def _torchvision_of_another_build(torch: Any) -> None:
    """torchvision of the package index does not fit torch's CPU build; nothing of it is used."""
    try:
        importlib.import_module("torchvision")
        return
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    main.library = library  # type: ignore[attr-defined]  # kept alive


def load(asked: dict[str, Any]) -> Any:
    """The policy's inner model."""
    import torch
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.factory import get_policy_class, make_policy_config

    raw, kind = asked["config"], asked["config"]["type"]
    (_small_vlm if kind == "smolvla" else _small_gemmas)(raw)
    features = {
        name: PolicyFeature(FeatureType[f["type"]], tuple(f["shape"]))
        for group in ("input_features", "output_features")
        for name, f in raw[group].items()
    }
    keys = ["chunk_size", "n_action_steps", "max_state_dim", "max_action_dim", "num_steps",
            "num_inference_steps", "tokenizer_max_length", "resize_imgs_with_padding",
            "image_resolution", "min_period", "max_period", "num_vlm_layers", "attention_mode",
            "self_attn_every_n_layers"]  # fmt: skip
    settings = {k: tuple(v) if isinstance(v := raw[k], list) else v for k in keys if k in raw}
    if kind == "smolvla":
        text, expert = (raw["shapes"][part] for part in ("text", "expert"))
        settings["expert_width_multiplier"] = expert["hidden_size"] / text["hidden_size"]
    config = make_policy_config(
        kind,
        device="cpu",
        input_features={n: f for n, f in features.items() if n != "action"},
        output_features={"action": features["action"]},
        **settings,
    )
    policy = get_policy_class(kind)(config).eval()
    if asked["weights"]:
        _fill(policy, asked["weights"])
    model = policy.model
    dtype = getattr(torch, asked["dtype"])
    if dtype is not torch.float32:  # the transformers alone, as its users do
        parts = model.vlm_with_expert if kind == "smolvla" else model.paligemma_with_expert
        if kind == "smolvla":
            parts.to(dtype)
        else:
            parts.to_bfloat16_for_selected_params(asked["dtype"])
    return model.to(asked["device"])


def _fill(policy: Any, path: str) -> None:
    """Every tensor of the file; an error where it has none for a parameter that counts."""
    from safetensors.torch import load_file

    own = policy.state_dict()
    given = {n if n in own else _older(n): tensor for n, tensor in load_file(path).items()}
    missing, unused = policy.load_state_dict(given, strict=False)
    missing = [n for n in missing if "lm_head" not in n and "embed_tokens" not in n]
    if missing or unused:
        raise SystemExit(f"other tensors than LeRobot's: {[*missing, *unused][:4]}")


def _older(name: str) -> str:
    """What transformers 5.5 calls a tensor that later ones call ``name``."""
    return name.replace(".vision_tower.", ".vision_tower.vision_model.")


def _small_vlm(raw: dict[str, Any]) -> None:
    from lerobot.policies.smolvla import smolvlm_with_expert
    from transformers import SmolVLMConfig

    vision, text = raw["shapes"]["vision"], raw["shapes"]["text"]
    vlm = SmolVLMConfig(
        scale_factor=raw["shapes"]["shuffle"],
        vision_config={
            "hidden_size": vision["width"], "intermediate_size": vision["mlp"],
            "num_hidden_layers": vision["depth"], "num_attention_heads": vision["heads"],
            "image_size": vision["image_size"], "patch_size": vision["patch"],
        },
        text_config={
            "model_type": "llama", "vocab_size": text["vocab_size"],
            "hidden_size": text["hidden_size"], "intermediate_size": text["intermediate_size"],
            "num_hidden_layers": text["layers"], "head_dim": text["head_dim"],
            "num_attention_heads": text["heads"], "num_key_value_heads": text["kv_heads"],
            "rms_norm_eps": text["rms_eps"],
        },
    )  # fmt: skip
    tokenizer = SimpleNamespace(fake_image_token_id=2, global_image_token_id=3)
    smolvlm_with_expert.AutoConfig = SimpleNamespace(from_pretrained=lambda *_, **__: vlm)
    smolvlm_with_expert.AutoProcessor = SimpleNamespace(
        from_pretrained=lambda *_, **__: SimpleNamespace(tokenizer=tokenizer)
    )
    multiplier = smolvlm_with_expert.get_intermediate_size
    wanted = raw["shapes"]["expert"]
    smolvlm_with_expert.get_intermediate_size = lambda hidden, *a, **k: (
        wanted["intermediate_size"]
        if hidden == wanted["hidden_size"]
        else multiplier(hidden, *a, **k)
    )


def _small_gemmas(raw: dict[str, Any]) -> None:
    from lerobot.policies.pi0 import modeling_pi0
    from lerobot.policies.pi05 import modeling_pi05

    module = modeling_pi0 if raw["type"] == "pi0" else modeling_pi05
    vision, text, expert = (raw["shapes"][part] for part in ("vision", "text", "expert"))
    sizes = {"gemma_2b": text, "gemma_300m": expert}

    def gemma(variant: str) -> Any:
        s = sizes[variant]
        return module.GemmaConfig(
            s["hidden_size"], s["layers"], s["intermediate_size"], s["heads"], s["kv_heads"],
            s["head_dim"],
        )  # fmt: skip

    paligemma = module.PaliGemmaForConditionalGenerationWithPiGemma
    causal = module.PiGemmaForCausalLM

    def sized_paligemma(config: Any) -> Any:
        config.text_config.vocab_size = config.image_token_index = text["vocab_size"]
        tower = config.vision_config
        tower.hidden_size, tower.num_hidden_layers = vision["width"], vision["depth"]
        tower.num_attention_heads, tower.intermediate_size = vision["heads"], vision["mlp"]
        tower.patch_size, tower.projection_dim = vision["patch"], text["hidden_size"]
        return paligemma(config=config)

    def sized_expert(config: Any) -> Any:
        config.vocab_size = expert["vocab_size"]
        return causal(config=config)

    module.get_gemma_config = gemma
    module.PaliGemmaForConditionalGenerationWithPiGemma = sized_paligemma
    module.PiGemmaForCausalLM = sized_expert


def chunk(model: Any, arrays: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """One chunk: ``sample_actions`` with the clock around its parts."""
    import torch

    device, kind = asked["device"], asked["config"]["type"]
    pixels = [view[None].to(device) for view in arrays["pixels"]]
    masks = [torch.ones(1, dtype=torch.bool, device=device) for _ in pixels]
    ids = arrays["ids"][None].to(device)
    state = arrays["state"][None].to(device)
    mask = torch.ones_like(ids, dtype=torch.bool)
    own = (state,) if kind != "pi05" else ()
    cpu: dict[str, float] = {}
    wall: dict[str, float] = {}

    def now() -> tuple[float, float]:
        if device != "cpu":
            torch.cuda.synchronize()
        return time.process_time(), time.perf_counter()

    def timed(phase: str, call: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            begun = now()
            out = call(*args, **kwargs)
            ended = now()
            cpu[phase] = cpu.get(phase, 0.0) + ended[0] - begun[0]
            wall[phase] = wall.get(phase, 0.0) + ended[1] - begun[1]
            return out

        return run

    model.embed_prefix = timed("vision", type(model).embed_prefix.__get__(model))
    model.denoise_step = timed("decode", type(model).denoise_step.__get__(model))
    with torch.no_grad():
        out = timed("whole", model.sample_actions)(
            pixels, masks, ids, mask, *own, noise=arrays["noise"][None].to(device)
        )
    for spent in (cpu, wall):
        whole = spent.pop("whole")
        spent["prefill"] = whole - sum(spent.values())
    return {"cpu": cpu, "wall": wall, "chunk": out[0].float().cpu().tolist()}


if __name__ == "__main__":
    main()
