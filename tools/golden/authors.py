"""What lets the authors' own classes run here: small towers, coarse weights, no data loaders.

Nothing of theirs is changed but sizes. ``prismatic`` is imported piece by piece, because its
``__init__`` would import the training code and TensorFlow.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

#: torchvision's wheel on PyPI is built for CUDA; beside a CPU build of torch its C++ operators do
#: not load, and its import stops at these two, which nothing here calls.
_OPERATORS = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

SIDE, PATCH = 56, 14  # 16 patches in place of 256
TOWERS = {
    "vit_large_patch14_reg4_dinov2.lvd142m": {"embed_dim": 32, "depth": 3, "num_heads": 2},
    "vit_so400m_patch14_siglip_224": {"embed_dim": 32, "depth": 5, "num_heads": 4},
}
MLP = 64
ACTIONS = 256


def packages(root: Path, *names: str) -> None:
    """Make these packages of a clone importable without running their ``__init__``."""
    for name in names:
        module = types.ModuleType(name)
        module.__path__ = [str(root / name.replace(".", "/"))]
        sys.modules[name] = module


def small_towers() -> None:
    """timm's own constructors, at a size that can be kept in a repository."""
    import timm

    create = timm.create_model

    def small(name: str, **options: Any) -> Any:
        options |= {"pretrained": False, "img_size": SIDE, "mlp_ratio": MLP / 32}
        return create(name, **options, **TOWERS[name])

    timm.create_model = small


def tower_config(fused: bool) -> dict[str, Any]:
    """The one key of our own in config.json: the sizes that timm's names stand for here."""
    common = {"mlp": MLP, "image_size": SIDE, "patch": PATCH}
    dino = {"width": 32, "depth": 3, "heads": 2, **common, "class_token": True, "registers": 4,
            "layer_scale": True}  # fmt: skip
    siglip = {"width": 32, "depth": 5, "heads": 4, **common}
    return {"towers": [dino, siglip] if fused else [siglip]}


def coarse(shape: tuple[int, ...], scale: float, rng: np.random.Generator) -> torch.Tensor:
    """One of 15 values each, so that a whole model compresses to half a byte a weight."""
    return torch.from_numpy(rng.integers(-7, 8, shape) * (scale / 4)).float()


def randomize(model: torch.nn.Module, seed: int) -> None:
    """Weights under which picture, words and state all move the answer."""
    rng = np.random.default_rng(seed)
    for name, parameter in sorted(model.named_parameters()):
        shape = tuple(parameter.shape)
        if name.endswith(("gamma", "scale_factor")):
            value = 0.5 + coarse(shape, 0.2, rng)
        elif parameter.ndim == 1:
            value = coarse(shape, 0.05, rng) + float("norm" in name and name.endswith("weight"))
        else:
            fan_in = int(np.prod(shape[1:]))
            gain = 2.0 if ".q_proj." in name or ".k_proj." in name else 1.0
            gain = 3.0 if "projector" in name else gain
            value = coarse(shape, gain * fan_in**-0.5, rng)
        parameter.data.copy_(value)


def speak_actions(language_model: Any, last: int, words: int, actions: int = ACTIONS) -> None:
    """Zero the rows of tokens that nobody says, and let the head prefer actions below ``last``."""
    embedding = language_model.get_input_embeddings().weight.data
    head = language_model.get_output_embeddings().weight.data
    tied = head.data_ptr() == embedding.data_ptr()
    kept = torch.zeros(len(embedding), dtype=torch.bool)
    kept[:words] = kept[last - actions : last] = True
    if len(embedding) > 29871:
        kept[29871] = True
    embedding[~kept] = 0
    spoken = torch.zeros(len(head), dtype=torch.bool)
    spoken[last - actions : last] = True
    if tied:
        embedding[: last - actions] *= 1 / 16
    else:
        head[~spoken] = 0
        head *= 4


def statistics(dim: int, state: int, name: str, *, gripper: bool = True) -> dict[str, Any]:
    """Bounds of a data set, uneven enough that a mix-up would be seen."""
    rng = np.random.default_rng([dim, state])

    def bounds(count: int) -> dict[str, Any]:
        low = np.round(-rng.uniform(0.2, 2.0, count), 3)
        high = np.round(rng.uniform(0.3, 3.0, count), 3)
        return {"q01": low.tolist(), "q99": high.tolist(), "min": (low - 0.25).tolist(),
                "max": (high + 0.5).tolist()}  # fmt: skip

    action = bounds(dim)
    if gripper:
        action["mask"] = [True] * (dim - 1) + [False]
    parts = {"action": action}
    if state:
        parts["proprio"] = bounds(state)
    return {name: parts}


def llama_tokenizer(fixtures: Path) -> Any:
    """A small SentencePiece model of transformers' own tests, as Llama's fast tokenizer."""
    from transformers import LlamaTokenizerFast

    path = fixtures / "test_sentencepiece_with_bytefallback.model"
    return LlamaTokenizerFast(vocab_file=str(path), padding_side="right", model_max_length=2048)


def save(directory: Path, **arrays: Any) -> None:
    np.savez(directory / "expected.npz", **arrays)
