"""The weights and small files that a conversion takes over as they are."""

from __future__ import annotations

import shutil
from pathlib import Path

from vla_ros.engine.checkpoints.config import ModelConfig
from vla_ros.engine.checkpoints.convert.adapter import adapter_in, merge
from vla_ros.engine.checkpoints.shapes import expected_shapes, unused_names
from vla_ros.engine.checkpoints.weights import check_shapes, read_headers, weight_files
from vla_ros.engine.errors import CheckpointError

#: What a checkpoint has beside its weights that says how it is run.
BESIDE = (
    "config.json",
    "dataset_statistics.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "README.md",
    "LICENSE",
)
INDEX = "model.safetensors.index.json"


def refuse_baseless(source: Path, base: Path | None) -> None:
    """Raise CheckpointError where only an adapter is there and nothing to merge it into."""
    if base is None and adapter_in(source) and not list(source.glob("model*.safetensors")):
        raise CheckpointError(
            f"{source} holds a LoRA adapter and no weights of its own: give --base, the directory"
            " of the model it was trained on (openvla/openvla-7b)"
        )


def base_of(source: Path, base: Path | None, scratch: Path, config: ModelConfig) -> None:
    """The weights of a release: its own, or those of ``base`` with its adapter merged in."""
    if base is not None:
        adapter = adapter_in(source)
        if adapter is None:
            raise CheckpointError(f"--base is given, but {source} has no LoRA adapter to merge")
        merge(base, adapter, scratch, config)
        copy_beside(base, scratch)
        return
    files = weight_files(source)
    check_shapes(source, read_headers(files), expected_shapes(config), unused_names(config))
    for path in files:
        shutil.copyfile(path, scratch / path.name)
    if (source / INDEX).is_file():
        shutil.copyfile(source / INDEX, scratch / INDEX)


def copy_beside(source: Path, scratch: Path) -> None:
    """The small files, over those that are there."""
    for name in BESIDE:
        if (source / name).is_file():
            shutil.copyfile(source / name, scratch / name)
