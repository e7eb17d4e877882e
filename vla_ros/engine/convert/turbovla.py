"""Checkpoints of TurboVLA's authors: one ``.pth`` with ``model_config`` and all weights, the
encoders' too, and statistics in a JSON file beside it or above.

Source: H-EmbodVis/TurboVLA 2d42436 ``turbovla/training/trainer.py`` (what is saved) and
``evaluation/policy.py`` (which of it is run, and under which names).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from vla_ros.engine.convert.pickles import read_content
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.files import read_json, write_json
from vla_ros.engine.io.weights import WEIGHTS, FileWeights

#: which of a file's weights are run, the first that is there
STATES = ("ema_model_state_dict", "model_state_dict", "model", "state_dict")
HEAD = 64  # width of a head in every DINOv3 and BERT that they start from
EYES, WORDS = "vision_encoder.backbone.", "text_encoder.bert."
STATISTICS = ("dataset_statistics.json", "*stats*.json")


def pth_in(source: Path) -> Path | None:
    """The one ``.pth`` of a folder that has no config.json and no safetensors."""
    if (source / "config.json").exists() or list(source.glob("*.safetensors")):
        return None
    found = sorted(source.glob("*.pth"))
    return found[0] if len(found) == 1 else None


def convert_turbovla(source: Path, scratch: Path, path: Path, tokenizer: Path | None) -> str:
    """Write what the engine reads of ``path`` in ``source``. CheckpointError."""
    content = read_content(path)
    raw = content.get("model_config") if isinstance(content, Mapping) else None
    name = next((n for n in STATES if isinstance(content, Mapping) and n in content), "")
    if not isinstance(raw, Mapping) or raw.get("name") != "TurboVLA" or not name:
        raise CheckpointError(
            f"{path} has no model_config of TurboVLA beside its weights: nothing else that is saved"
            " so is converted"
        )
    tensors = {
        key.removeprefix("module."): t.contiguous().clone() for key, t in content[name].items()
    }
    if any(key.startswith(f"{EYES}model.") for key in tensors):
        raise CheckpointError(
            f"{path} was made with transformers 5, where the authors' code takes what DINOv3 has"
            " before its final norm: this engine takes what is behind it, as with the 4.56 and 4.57"
            " that they ask for"
        )
    stats = _statistics(source)
    save_file(tensors, str(scratch / WEIGHTS))
    write_json(scratch / "config.json", {**raw, "shapes": _shapes(tensors, path)})
    write_json(scratch / STATISTICS[0], read_json(stats))
    words = tokenizer or source / "tokenizer.json"
    if words.is_dir():
        words = words / "tokenizer.json"
    if words.is_file():
        shutil.copyfile(words, scratch / "tokenizer.json")
    _read_back(scratch)
    return f"{name} of {path.name}, statistics of {stats.name}"


def _statistics(source: Path) -> Path:
    for folder in (source, *source.resolve().parents[:2]):
        for pattern in STATISTICS:
            if found := sorted(folder.glob(pattern)):
                return found[0]
    raise CheckpointError(
        f"no statistics (libero_all4_stats.json) in {source} or above it: copy the authors' there"
    )


def _shapes(tensors: Mapping[str, torch.Tensor], path: Path) -> dict[str, Any]:
    """Sizes of the two encoders, which no configuration here says."""

    def size(name: str, axis: int) -> int:
        if name not in tensors:
            raise CheckpointError(f"{path} has no {name}")
        return int(tensors[name].shape[axis])

    def layers(base: str) -> int:
        return len(
            {key.removeprefix(base).split(".")[0] for key in tensors if key.startswith(base)}
        )

    wide_vision, words = size(f"{EYES}norm.weight", 0), f"{WORDS}embeddings."
    wide = size(f"{words}LayerNorm.weight", 0)
    return {
        "vision": {
            "width": wide_vision,
            "depth": layers(f"{EYES}layer."),
            "heads": wide_vision // HEAD,
            "mlp": size(f"{EYES}layer.0.mlp.up_proj.weight", 0),
            "patch": size(f"{EYES}embeddings.patch_embeddings.weight", -1),
            "registers": size(f"{EYES}embeddings.register_tokens", 1),
        },
        "text": {
            "vocab": size(f"{words}word_embeddings.weight", 0),
            "width": wide,
            "layers": layers(f"{WORDS}encoder.layer."),
            "heads": wide // HEAD,
            "mlp": size(f"{WORDS}encoder.layer.0.intermediate.dense.weight", 0),
            "positions": size(f"{words}position_embeddings.weight", 0),
        },
    }


def _read_back(scratch: Path) -> None:
    """Everything of it but the tokenizer, which may come later."""
    from vla_ros.engine.families.base import LoadOptions
    from vla_ros.engine.families.turbovla import TurboVLAFamily, data_sets_in, read_scalers

    family = TurboVLAFamily()
    config = family.config(scratch, LoadOptions())
    weights = FileWeights(scratch / WEIGHTS, family.expected(config))
    for name in weights.read_all(family.expected(config).must):
        weights.take(name)
    read_scalers(scratch, config, next(iter(data_sets_in(scratch))))
