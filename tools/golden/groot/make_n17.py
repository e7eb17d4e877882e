"""Make n17.npz: NVIDIA's own GR00T N1.7, small and random, from pixels to a chunk, on a CPU.

    PYTHONPATH=gr00t python tools/golden/groot/make_n17.py [FOLDER]

See make_head.py for what has to be installed. Its vision-language model is transformers 4.57.3's,
as NVIDIA pins it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

GOLDEN = Path(__file__).resolve().parents[3] / "test" / "golden"
sys.path[:0] = [str(GOLDEN / "groot"), str(GOLDEN / "flow")]

from authors import gr00t_n1d7, qwen3_backbone
from cases import (
    CONTEXT_HEADS,
    EMBODIMENT,
    HEAD_DIM,
    HEAD_HEADS,
    HEADS_ALL,
    LAYERS,
    PROMPT,
    QWEN,
    SIDE,
    VIEWS,
)
from drawn import weight
from seeded import draw, image
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor


def model(scratch: str) -> torch.nn.Module:
    Qwen3VLForConditionalGeneration(Qwen3VLConfig(**QWEN)).save_pretrained(scratch)
    gr00t_n1d7.get_backbone_cls = lambda config: qwen3_backbone.Qwen3Backbone
    config = gr00t_n1d7.Gr00tN1d7Config(
        **HEADS_ALL, model_name=scratch, select_layer=LAYERS, use_flash_attention=False,
        load_bf16=False, use_alternate_vl_dit=True,
    )  # fmt: skip
    config.diffusion_model_cfg = {
        **config.diffusion_model_cfg, "num_layers": 6, "num_attention_heads": HEAD_HEADS,
        "attention_head_dim": HEAD_DIM, "output_dim": HEADS_ALL["hidden_size"],
    }  # fmt: skip
    config.vl_self_attention_cfg = {
        "positional_embeddings": None, "num_layers": 2, "num_attention_heads": CONTEXT_HEADS,
        "attention_head_dim": 40 // CONTEXT_HEADS, "dropout": 0.2, "final_dropout": True,
    }  # fmt: skip
    made = gr00t_n1d7.Gr00tN1d7(config, transformers_loading_kwargs={}).eval()
    state = made.state_dict()
    drawn = {n: torch.from_numpy(weight(n, tuple(t.shape))) for n, t in state.items()}
    drawn["backbone.model.lm_head.weight"] = drawn[
        "backbone.model.model.language_model.embed_tokens.weight"
    ]
    made.load_state_dict(drawn)
    return made


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN / "groot"
    with tempfile.TemporaryDirectory() as scratch:
        made = model(scratch)
    eyes = Qwen2VLImageProcessor(
        patch_size=16, merge_size=2, temporal_patch_size=2, min_pixels=1024, max_pixels=1 << 20,
        image_mean=[0.5] * 3, image_std=[0.5] * 3,
    )  # fmt: skip
    seen = eyes([image(f"n17/{view}", SIDE, SIDE) for view in VIEWS], return_tensors="pt")
    ids = torch.tensor([PROMPT])
    noise = torch.from_numpy(draw("n17/noise", 1, 7, HEADS_ALL["max_action_dim"]))
    inputs = {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), **seen,
        "state": torch.from_numpy(draw("n17/state", 1, 1, HEADS_ALL["max_state_dim"])),
        "embodiment_id": torch.tensor([EMBODIMENT]),
    }  # fmt: skip
    kept: dict[str, list[torch.Tensor]] = {"velocities": [], "visual": [], "hidden": []}
    qwen = made.backbone.model.model
    made.action_head.action_decoder.register_forward_hook(
        lambda m, i, out: kept["velocities"].append(out[0, -7:])
    )
    qwen.visual.register_forward_hook(
        lambda m, i, out: kept["visual"].append(torch.cat((out[0], *out[1]), -1))
    )
    made.backbone.register_forward_hook(
        lambda m, i, out: kept["hidden"].append(out["backbone_features"][0])
    )
    randn = torch.randn
    torch.randn = lambda *_, **__: noise.clone()
    try:
        with torch.no_grad():
            out = made.get_action(inputs)
    finally:
        torch.randn = randn
    positions = qwen.get_rope_index(ids, seen["image_grid_thw"])[0][:, 0]
    arrays = {
        "pixels": seen["pixel_values"].numpy(),
        "positions": positions.numpy(),
        "visual": kept["visual"][0].numpy(),
        "hidden": kept["hidden"][0].numpy(),
        "context": out["backbone_features"][0].numpy(),
        "velocities": torch.stack(kept["velocities"]).numpy(),
        "chunk": out["action_pred"][0].numpy(),
    }
    np.savez_compressed(target / "n17.npz", **arrays)
    (target / "n17.json").write_text(
        json.dumps({n: list(t.shape) for n, t in sorted(made.state_dict().items())})
    )
    for name in ("n17.npz", "n17.json"):
        print(f"{name}: {(target / name).stat().st_size} bytes")


if __name__ == "__main__":
    main()
