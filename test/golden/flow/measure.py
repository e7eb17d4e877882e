"""Time SmolVLA at its published size (450 M, two views, 10 steps) on a CPU, by phase.

    PYTHONPATH=. .venv/bin/python test/golden/flow/measure.py ours float32 [REPEATS [PRESET]]
    env/bin/python test/golden/flow/measure.py lerobot float32 [REPEATS]

Random weights. LeRobot's interpreter is that of requirements.txt. Prints one line of JSON: the
median milliseconds of processor time (which other programs on the machine disturb least; with one
thread it is the time a quiet machine takes) of vision, prefix, one solver step and a whole chunk,
and the peak of memory.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

VIEWS, WORDS, STEPS = 2, 12, 10


def median_ms(function: Callable[[], Any], repeat: int) -> float:
    function()
    times = []
    for _ in range(repeat):
        began = time.process_time()
        function()
        times.append((time.process_time() - began) * 1e3)
    return round(statistics.median(times), 1)


def report(name: str, dtype: str, repeat: int, phases: dict[str, Callable[[], Any]]) -> None:
    out = {n: median_ms(f, 3 * repeat if n == "step" else repeat) for n, f in phases.items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"who": name, "dtype": dtype, "threads": torch.get_num_threads(), **out,
                      "peak_MB": round(peak)}))  # fmt: skip


def ours(dtype: str, repeat: int, preset: str = "smolvla") -> None:
    from vla_ros.engine.flow.random import load_random_flow

    policy = load_random_flow(f"random:{preset}", 0, torch.device("cpu"), getattr(torch, dtype))
    model, config = policy.model, policy.config
    pixels = torch.rand(VIEWS, 3, config.image_size, config.image_size) * 2 - 1
    ids, state = torch.arange(WORDS), torch.zeros(config.state_width)
    noise = torch.randn(config.horizon, config.action_width)
    features = model.see(pixels)
    prefix = [model.prefill(features, ids, state)]

    def prefill() -> None:
        prefix[0] = model.prefill(features, ids, state)

    def chunk() -> None:
        prefix[0] = model.prefill(model.see(pixels), ids, state)
        model.integrate(prefix[0], None, noise)

    report(f"ours, {preset}", dtype, repeat, {
        "vision": lambda: model.see(pixels),
        "prefix": prefill,
        "step": lambda: model.velocity(prefix[0], noise, 3, begin=False),
        "steps": lambda: model.integrate(prefix[0], None, noise),
        "chunk": chunk,
    })  # fmt: skip


def lerobot(dtype: str, repeat: int, _: str = "smolvla") -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.smolvla import smolvlm_with_expert
    from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
    from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
    from transformers import SmolVLMConfig

    vlm = SmolVLMConfig(
        scale_factor=4,
        vision_config={"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
                       "num_attention_heads": 12, "image_size": 512, "patch_size": 16},
        text_config={"model_type": "llama", "vocab_size": 49280, "hidden_size": 960,
                     "intermediate_size": 2560, "num_hidden_layers": 32, "head_dim": 64,
                     "num_attention_heads": 15, "num_key_value_heads": 5, "rms_norm_eps": 1e-5},
    )  # fmt: skip
    words = SimpleNamespace(fake_image_token_id=1, global_image_token_id=2)
    smolvlm_with_expert.AutoConfig = SimpleNamespace(from_pretrained=lambda *_: vlm)
    smolvlm_with_expert.AutoProcessor = SimpleNamespace(
        from_pretrained=lambda *_: SimpleNamespace(tokenizer=words)
    )
    images = {f"observation.images.{n}": PolicyFeature(FeatureType.VISUAL, (3, 512, 512))
              for n in "ab"}  # fmt: skip
    config = SmolVLAConfig(
        input_features={**images, "observation.state": PolicyFeature(FeatureType.STATE, (9,))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (7,))}, device="cpu",
    )  # fmt: skip
    model = SmolVLAPolicy(config).eval().model
    if dtype != "float32":  # the transformers alone, as its users do
        model.vlm_with_expert.to(getattr(torch, dtype))
    pixels = [torch.rand(1, 3, 512, 512) * 2 - 1 for _ in range(VIEWS)]
    masks = [torch.ones(1, dtype=torch.bool) for _ in pixels]
    tokens, state = torch.arange(WORDS)[None], torch.zeros(1, 32)
    present, noise = torch.ones(1, WORDS, dtype=torch.bool), torch.randn(1, 50, 32)
    kept: dict[str, Any] = {}
    inner = model.denoise_step
    cast = getattr(torch, dtype)

    def step(**arguments: Any) -> torch.Tensor:
        kept.update(arguments)
        return inner(**arguments)

    def embedded() -> Any:
        return model.embed_prefix(pixels, masks, tokens, present, state=state)

    def prefill(made: Any) -> Any:
        from lerobot.policies.common.vla_utils import make_att_2d_masks

        x, pad, att = made
        return model.vlm_with_expert.forward(
            attention_mask=make_att_2d_masks(pad, att), position_ids=torch.cumsum(pad, 1) - 1,
            past_key_values=None, inputs_embeds=[x.to(cast), None], use_cache=True,
        )  # fmt: skip

    model.denoise_step = step
    with torch.no_grad():
        run = lambda: model.sample_actions(pixels, masks, tokens, present, state, noise=noise)  # noqa: E731
        run()
        made = embedded()
        report("lerobot", dtype, repeat, {
            "vision": embedded,
            "prefix": lambda: prefill(made),
            "step": lambda: inner(**kept),
            "chunk": run,
        })  # fmt: skip


if __name__ == "__main__":
    torch.manual_seed(0)
    words = dict(enumerate(sys.argv[1:]))
    run_it = {"ours": ours, "lerobot": lerobot}[words[0]]
    run_it(words.get(1, "float32"), int(words.get(2, "3")), words.get(3, "smolvla"))
