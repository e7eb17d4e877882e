"""Make head.npz: NVIDIA's own action head of GR00T N1.7, small and random, on a CPU.

    git clone https://github.com/NVIDIA/Isaac-GR00T gr00t   # commit 626af89
    pip install transformers==4.57.3 diffusers==0.35.1 dm-tree torch
    PYTHONPATH=gr00t python tools/golden/groot/make_head.py [FILE]

NVIDIA's code runs as it is and with its pins, but for torch (2.13.0); left out are the parts of its
package that the model does not need.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

GOLDEN = Path(__file__).resolve().parents[3] / "test" / "golden"
sys.path[:0] = [str(GOLDEN / "groot"), str(GOLDEN / "flow")]

from authors import gr00t_n1d7
from cases import CONTEXT, CONTEXT_HEADS, EMBODIMENT, HEAD_DIM, HEAD_HEADS, HEADS, HEADS_ALL
from drawn import weight
from seeded import draw
from transformers.feature_extraction_utils import BatchFeature


def head_of(name: str, case: dict[str, Any]) -> torch.nn.Module:
    settings = {k: v for k, v in case.items() if k not in ("vl_layers", "layers")}
    config = gr00t_n1d7.Gr00tN1d7Config(**HEADS_ALL, **settings)
    config.diffusion_model_cfg = {
        **config.diffusion_model_cfg, "num_layers": case["layers"],
        "num_attention_heads": HEAD_HEADS, "attention_head_dim": HEAD_DIM,
        "output_dim": HEADS_ALL["hidden_size"],
    }  # fmt: skip
    config.vl_self_attention_cfg = {
        "positional_embeddings": None, "num_layers": case["vl_layers"],
        "num_attention_heads": CONTEXT_HEADS, "dropout": 0.2, "final_dropout": True,
        "attention_head_dim": HEADS_ALL["backbone_embedding_dim"] // CONTEXT_HEADS,
    }  # fmt: skip
    head = gr00t_n1d7.Gr00tN1d7ActionHead(config).eval()
    state = head.state_dict()
    drawn = {n: torch.from_numpy(weight(f"{name}/{n}", tuple(t.shape))) for n, t in state.items()}
    head.load_state_dict(drawn)
    return head


def run(name: str, case: dict[str, Any]) -> dict[str, np.ndarray]:
    head = head_of(name, case)
    rows = torch.from_numpy(draw(f"{name}/rows", 1, len(CONTEXT), 40))
    state = torch.from_numpy(draw(f"{name}/state", 1, 1, HEADS_ALL["max_state_dim"]))
    shape = (1, HEADS_ALL["action_horizon"], HEADS_ALL["max_action_dim"])
    noise = torch.from_numpy(draw(f"{name}/noise", *shape))
    images = torch.tensor([[c == "i" for c in CONTEXT]])
    backbone = BatchFeature(data={
        "backbone_features": rows, "image_mask": images,
        "backbone_attention_mask": torch.ones_like(images),
    })  # fmt: skip
    asked = BatchFeature(data={"state": state, "embodiment_id": torch.tensor([EMBODIMENT])})
    velocities: list[torch.Tensor] = []
    times: list[int] = []
    head.action_decoder.register_forward_hook(lambda m, i, out: velocities.append(out[0, -7:]))
    head.action_encoder.register_forward_pre_hook(lambda m, i: times.append(int(i[1][0])))
    randn = torch.randn
    torch.randn = lambda *_, **__: noise.clone()
    try:
        out = head.get_action(backbone, asked)
    finally:
        torch.randn = randn
    return {
        "context": out["backbone_features"][0].numpy(),
        "state_row": out["state_features"][0].numpy(),
        "velocities": torch.stack(velocities).detach().numpy(),
        "times": np.array(times),
        "chunk": out["action_pred"][0].numpy(),
        "tensors": np.array(sorted(head.state_dict())),
    }


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN / "groot" / "head.npz"
    arrays = {}
    for name, case in HEADS.items():
        arrays |= {f"{name}/{k}": v for k, v in run(name, case).items()}
    np.savez_compressed(target, **arrays)
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
