"""BitVLA with drawn weights: a folder in the authors' layout, or a whole model in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from vla_ros.engine.checkpoints.bitvla.config import TEXT, TOWER, bitvla_json
from vla_ros.engine.checkpoints.bitvla.embedding import DrawnRows
from vla_ros.engine.checkpoints.bitvla.names import EMBEDDING, PROJECTOR
from vla_ros.engine.checkpoints.bitvla.reading import Parts, gather
from vla_ros.engine.checkpoints.config import ModelConfig, TextConfig, TowerConfig
from vla_ros.engine.checkpoints.weights import HEADS, Shapes

STATE = 8  # LIBERO's: place, rotation vector, two fingers
WORDS = 704  # what the small tokenizer has at most
_LOUD = 0.05  # of embeddings; norms come before everything that reads them
_SMALL = ModelConfig(
    TextConfig("bitnet", vocab_size=WORDS, hidden_size=256, intermediate_size=704, layers=4,
               heads=4, kv_heads=2, head_dim=64, rope_theta=5e5, rms_eps=1e-5, tied=True),
    (TowerConfig(192, 7, 3, 768, image_size=128, patch=16, activation="gelu_tanh", ternary=True),),
    WORDS, prompt_style="bitvla", images=2, chunk=8, parallel=True, proprio_dim=STATE, stop_token=1,
)  # fmt: skip
PRESETS = {
    "bitvla-small": _SMALL,
    # the published sizes, under the small tokenizer
    "bitvla": ModelConfig(
        TEXT, (TOWER,), TEXT.vocab_size, prompt_style="bitvla", images=2, chunk=8, parallel=True,
        proprio_dim=STATE, stop_token=1,
    ),
}  # fmt: skip


def statistics(config: ModelConfig) -> dict[str, Any]:
    """Bounds of LIBERO's controller units, and of a state around its own."""
    dim = config.action_dim
    action = {"q01": [-1.0] * (dim - 1) + [0.0], "q99": [1.0] * dim, "mask": [True] * dim}
    state = {"q01": [-2.0] * config.proprio_dim, "q99": [2.0] * config.proprio_dim}
    return {"random": {"action": action, "proprio": state}}


def drawn(shapes: Shapes, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors by the authors' names, float32, each drawn when it is asked for."""
    random = torch.Generator().manual_seed(seed)
    for name, shape in shapes.items():
        tensor = torch.empty(shape)
        if len(shape) == 1 and name.endswith("weight"):  # of a norm
            tensor.fill_(1.0)
        elif len(shape) == 1:
            tensor.normal_(0.0, 0.02, generator=random)
        else:
            fan_in = int(torch.Size(shape[1:]).numel())
            tensor.normal_(0.0, _gain(name) * fan_in**-0.5, generator=random)
            if name == EMBEDDING:
                tensor *= _LOUD * fan_in**0.5
        yield name, tensor


def _gain(name: str) -> float:
    """Frames that differ must say different things, and values stay within [-1, 1]."""
    if name == "action_head.model.fc2.weight":
        return 0.2
    return 4.0 if name.startswith(PROJECTOR) else 1.0


def write_folder(
    directory: Path,
    config: ModelConfig,
    shapes: Shapes,
    seed: int,
    write_tokenizer: Callable[[Path], None],
) -> None:
    """What `vla-ros convert` makes of a release of the authors, with drawn weights."""
    from safetensors.torch import save_file

    (tower,) = config.towers
    side = tower.image_size
    content = {
        "config.json": bitvla_json(config),
        "dataset_statistics.json": statistics(config),
        "preprocessor_config.json": {
            "image_processor_type": "SiglipImageProcessor",
            "image_mean": list(tower.mean),
            "image_std": list(tower.std),
            "resample": 3,
            "size": {"height": side, "width": side},
        },
    }
    for name, value in content.items():
        (directory / name).write_text(json.dumps(value, indent=1) + "\n")
    write_tokenizer(directory / "tokenizer.json")
    files: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in drawn(shapes, seed):
        whose = next((head for head in HEADS if name.startswith(head + ".")), "model")
        files.setdefault(whose, {})[name] = tensor
    for whose, tensors in files.items():
        save_file(tensors, str(directory / f"{whose}.safetensors"))


def draw_parts(
    config: ModelConfig, shapes: Shapes, seed: int, like: torch.Tensor
) -> tuple[Parts, DrawnRows, str]:
    """A whole model, drawn and packed tensor by tensor; its embeddings; in place of a hash."""
    inside = {name: shape for name, shape in shapes.items() if name != EMBEDDING}
    parts = gather(config, drawn(inside, seed), like)
    digest = hashlib.sha256(f"random {config!r} {seed} {like.dtype}".encode()).hexdigest()
    return parts, DrawnRows(config.text.hidden_size, seed, _LOUD, like), digest
