"""Which rows of its position table SmolVLM reads, for grids of patches, in float32.

    env/bin/python tools/golden/flow/positions.py

Run once with transformers 5.5.4 and once with 4.57.6 (huggingface-hub 0.35.3), whose tables
differ; writes test/golden/flow/positions_<version>.npz.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

# torchvision of the package index does not fit torch's CPU build; no operator of it is used.
_library = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import transformers
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionEmbeddings

FLOW = Path(__file__).resolve().parents[3] / "test" / "golden" / "flow"
GRIDS = ((32, 32), (14, 14), (8, 8), (6, 8), (24, 32), (27, 27), (5, 8))


def rows(patches: int, side: int) -> np.ndarray:
    """int64 [patches ** 2] for a tower of side x side patches."""
    config = SimpleNamespace(hidden_size=1, image_size=2 * side, patch_size=2, num_channels=3)
    embedding = SmolVLMVisionEmbeddings(config)
    with torch.no_grad():
        embedding.patch_embedding.weight.zero_()
        embedding.patch_embedding.bias.zero_()
        embedding.position_embedding.weight.copy_(torch.arange(side**2)[:, None].float())
        pixels = torch.zeros(1, 3, 2 * patches, 2 * patches)
        out = embedding(pixels, torch.ones(1, patches, patches, dtype=torch.bool))
    return out[0, :, 0].long().numpy()


if __name__ == "__main__":
    found = {f"{patches}_of_{side}": rows(patches, side) for patches, side in GRIDS}
    name = f"positions_{transformers.__version__}.npz"
    np.savez_compressed(FLOW / name, **found)
