"""Make the golden files: LeRobot's own pi0, pi0.5 and SmolVLA, small and random, on a CPU.

    vla-ros lerobot setup --dir env
    env/bin/python tools/golden/flow/make.py [FOLDER]

For every case of cases.py a folder in FOLDER (here): what LeRobot saves (config.json, processors
and their statistics), ``tensors.json`` (the names and shapes in its model.safetensors; the values
are drawn by seeded.py) and ``golden.npz`` (what it makes of one observation). LeRobot's code runs
as it is; replaced are the sizes that it fixes, and its downloads from the hub.

The packages of vla_ros/policies/lerobot/requirements.txt make these files to the bit, as
torch 2.13.0 and numpy 2.4.6 did at first.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:  # that of the package index beside torch's CPU build; no operator is used
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

FLOW = Path(__file__).resolve().parents[3] / "test" / "golden" / "flow"
sys.path.insert(0, str(FLOW))

from cases import CASES, PI_SHAPES, VLM, Case
from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors
from lerobot.policies.pi0 import modeling_pi0
from lerobot.policies.pi05 import modeling_pi05
from lerobot.policies.rtc.configuration_rtc import RTCConfig
from lerobot.policies.smolvla import smolvlm_with_expert
from lerobot.processor import tokenizer_processor
from safetensors import safe_open
from seeded import draw, image, weight
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, SmolVLMConfig

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")


def write_tokenizer(folder: Path) -> None:
    """Every byte is a token; <bos> opens every prompt."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate((*SPECIAL, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 1)]
    )
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def tokenizer() -> PreTrainedTokenizerFast:
    path = str(FLOW / "tokenizer" / "tokenizer.json")
    return PreTrainedTokenizerFast(tokenizer_file=path, pad_token="<pad>", bos_token="<bos>")


def stay_offline_and_small() -> None:
    """LeRobot's sizes and hub names, replaced."""
    tokenizer_processor.AutoTokenizer = SimpleNamespace(
        from_pretrained=lambda *_, **__: tokenizer()
    )
    vlm = SmolVLMConfig(**json.loads(json.dumps(VLM)))
    smolvlm_with_expert.AutoConfig = SimpleNamespace(from_pretrained=lambda *_, **__: vlm)
    words = SimpleNamespace(fake_image_token_id=2, global_image_token_id=3)
    smolvlm_with_expert.AutoProcessor = SimpleNamespace(
        from_pretrained=lambda *_, **__: SimpleNamespace(tokenizer=words)
    )
    for module in (modeling_pi0, modeling_pi05):
        _shrink(module)


def _shrink(module: Any) -> None:
    text, expert, vision = (PI_SHAPES[n] for n in ("text", "expert", "vision"))
    sizes = {"gemma_2b": text, "gemma_300m": expert}

    def gemma(variant: str) -> Any:
        s = sizes[variant]
        return module.GemmaConfig(
            s["hidden_size"], s["layers"], s["intermediate_size"], s["heads"], s["kv_heads"],
            s["head_dim"],
        )  # fmt: skip

    paligemma, causal = (
        module.PaliGemmaForConditionalGenerationWithPiGemma,
        module.PiGemmaForCausalLM,
    )

    def small_paligemma(config: Any) -> Any:
        config.text_config.vocab_size = text["vocab_size"]
        config.image_token_index = text["vocab_size"]
        eyes = config.vision_config
        eyes.hidden_size, eyes.num_hidden_layers = vision["width"], vision["depth"]
        eyes.num_attention_heads, eyes.intermediate_size = vision["heads"], vision["mlp"]
        eyes.patch_size, eyes.projection_dim = vision["patch"], text["hidden_size"]
        return paligemma(config=config)

    def small_expert(config: Any) -> Any:
        config.vocab_size = expert["vocab_size"]
        return causal(config=config)

    module.get_gemma_config = gemma
    module.PaliGemmaForConditionalGenerationWithPiGemma = small_paligemma
    module.PiGemmaForCausalLM = small_expert


def statistics(name: str, case: Case) -> dict[str, dict[str, torch.Tensor]]:
    out = {}
    for key, size in (("observation.state", case.state), ("action", case.action)):
        spread = np.abs(draw(f"{name}/{key}/spread", size)) + 0.3
        middle = 0.5 * draw(f"{name}/{key}/middle", size)
        values = {
            "mean": middle, "std": spread, "min": middle - 2 * spread, "max": middle + 2 * spread,
            "q01": middle - 1.5 * spread, "q99": middle + 1.6 * spread,
            "q10": middle - spread, "q90": middle + 1.1 * spread,
        }  # fmt: skip
        if size > 3:  # a value that never moved
            values["max"][2] = values["min"][2]
        out[key] = {n: torch.from_numpy(v.astype(np.float32)) for n, v in values.items()}
    return out


def policy_config(case: Case) -> Any:
    features = {
        f"observation.images.{camera}": PolicyFeature(FeatureType.VISUAL, (3, 48, 64))
        for camera in case.cameras
    }
    features["observation.state"] = PolicyFeature(FeatureType.STATE, (case.state,))
    state, action = (NormalizationMode(mode) for mode in case.modes)
    return make_policy_config(
        case.kind,
        device="cpu",
        input_features=features,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (case.action,))},
        normalization_mapping={
            "VISUAL": NormalizationMode.IDENTITY, "STATE": state, "ACTION": action,
        },
        **case.config,
    )  # fmt: skip


def observation(name: str, case: Case) -> dict[str, Any]:
    batch: dict[str, Any] = {"task": case.task}
    for camera, size in case.cameras.items():
        if size is not None:
            pixels = torch.from_numpy(image(f"{name}/{camera}", *size)).permute(2, 0, 1)
            batch[f"observation.images.{camera}"] = pixels.float() / 255.0
    batch["observation.state"] = torch.from_numpy(draw(f"{name}/state", case.state))
    return batch


def draw_weights(policy: Any, gemma: bool) -> dict[int, str]:
    """Fill in all parameters; their names by the place of their memory."""
    names = {}
    with torch.no_grad():
        for name, tensor in policy.named_parameters():
            tensor.copy_(torch.from_numpy(weight(name, tuple(tensor.shape), gemma).copy()))
            names[tensor.data_ptr()] = name
    return names


def run(folder: Path, name: str, case: Case) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = policy_config(case)
    policy = get_policy_class(case.kind)(config).eval()
    drawn = draw_weights(policy, case.kind != "smolvla")
    save(folder, name, case, policy, config, drawn)
    before, after = make_pre_post_processors(
        config,
        pretrained_path=str(folder),
        preprocessor_overrides={"device_processor": {"device": "cpu"}},
    )
    batch = before(observation(name, case))
    noise = torch.from_numpy(draw(f"{name}/noise", 1, config.chunk_size, config.max_action_dim))
    golden = {"tokens": batch["observation.language.tokens"][0]}
    golden["token_mask"] = batch["observation.language.attention_mask"][0]
    golden["state"] = batch["observation.state"][0]
    prepare = policy.prepare_images if case.kind == "smolvla" else policy._preprocess_images
    images, masks = prepare(dict(batch))
    golden["pixels"] = torch.cat([i for i, m in zip(images, masks, strict=True) if bool(m)])
    golden |= chunk(policy, batch, noise, {})
    golden["actions"] = after(golden["chunk"][None])[0]
    golden |= {f"guided_{n}": v for n, v in guided(name, policy, batch, noise).items()}
    arrays = {n: v.detach().numpy() for n, v in golden.items()}
    np.savez_compressed(folder / "golden.npz", **arrays)


def chunk(policy: Any, batch: dict[str, Any], noise: torch.Tensor, extra: Any) -> dict[str, Any]:
    """The chunk in model space, and x and v of every step."""
    steps: list[tuple[torch.Tensor, torch.Tensor]] = []
    inner = policy.model.denoise_step

    def record(**arguments: Any) -> torch.Tensor:
        velocity = inner(**arguments)
        steps.append((arguments["x_t"][0].clone(), velocity[0].clone()))
        return velocity

    policy.model.denoise_step = record
    policy.model.sample_noise = lambda *_: noise
    out = policy.predict_action_chunk(dict(batch), **extra)[0]
    policy.model.denoise_step = inner
    x, v = (torch.stack(part) for part in zip(*steps, strict=True))
    return {"x": x, "v": v, "chunk": out}


def guided(name: str, policy: Any, batch: dict[str, Any], noise: torch.Tensor) -> dict[str, Any]:
    """The same with real-time chunking: 5 actions left over, 2 of them due before the chunk."""
    policy.config.rtc_config = RTCConfig(execution_horizon=7, max_guidance_weight=6.0)
    policy.init_rtc_processor()
    left = torch.from_numpy(draw(f"{name}/left", policy.config.chunk_size, noise.shape[2]))
    extra = {"inference_delay": 2, "prev_chunk_left_over": left, "execution_horizon": 7}
    weights = policy.rtc_processor.get_prefix_weights(2, 7, policy.config.chunk_size)
    return {"chunk": chunk(policy, batch, noise, extra)["chunk"], "weights": weights}


def save(folder: Path, name: str, case: Case, policy: Any, config: Any, drawn: Any) -> None:
    before, after = make_pre_post_processors(config, dataset_stats=statistics(name, case))
    before.save_pretrained(str(folder))
    after.save_pretrained(str(folder))
    with tempfile.TemporaryDirectory() as scratch:
        policy.save_pretrained(scratch)
        shutil.copy(f"{scratch}/config.json", folder)
        with safe_open(f"{scratch}/model.safetensors", "pt") as file:
            state = policy.state_dict()
            tensors = [
                [n, drawn[state[n].data_ptr()], file.get_slice(n).get_shape()]
                for n in sorted(file.keys())
            ]
    (folder / "tensors.json").write_text("[\n" + ",\n".join(map(json.dumps, tensors)) + "\n]\n")
    if case.kind == "smolvla":
        (folder / "tiny-vlm").mkdir()
        (folder / "tiny-vlm" / "config.json").write_text(json.dumps(VLM, indent=1) + "\n")


def main() -> None:
    torch.set_num_threads(1)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FLOW
    if target == FLOW:
        write_tokenizer(FLOW / "tokenizer")
    stay_offline_and_small()
    for name, case in CASES.items():
        run(target / name, name, case)


if __name__ == "__main__":
    main()
