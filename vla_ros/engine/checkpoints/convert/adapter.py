"""LoRA adapters of peft, merged into the model that they were trained on: W + (alpha / r) B A.

Source: peft ``tuners/lora/layer.py`` (``get_delta_weight``), openvla ``vla-scripts/finetune.py``
(which layers: "all-linear", which by their names takes in the towers' patch convolution too, whose
B is a convolution of 1 x 1). The sum is taken in float32 and stored in the base's type.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from vla_ros.engine.checkpoints.config import ModelConfig
from vla_ros.engine.checkpoints.convert.unpickle import to_safetensors
from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.checkpoints.files import open_tensors, read_json
from vla_ros.engine.checkpoints.shapes import expected_shapes, unused_names
from vla_ros.engine.checkpoints.weights import (
    Stored,
    check_shapes,
    read_headers,
    weight_files,
)
from vla_ros.engine.errors import CheckpointError

PREFIX = "base_model.model."
PLACES = ("", "lora_adapter", "adapter")  # where a release keeps it


@dataclass(frozen=True, slots=True)
class Adapter:
    """The two factors of each weight, by the weight's name; ``scale`` = alpha / r.

    ``whole`` are weights that peft stores beside them as they are, such as a head's whose layer
    is adapted; they stand for the base's.
    """

    path: Path
    scale: float
    factors: dict[str, tuple[torch.Tensor, torch.Tensor]]
    whole: dict[str, torch.Tensor]


def adapter_in(directory: Path) -> Path | None:
    """The directory with ``adapter_config.json`` in a release, if there is one."""
    places = (directory / place for place in PLACES)
    return next((p for p in places if (p / "adapter_config.json").is_file()), None)


def read_adapter(directory: Path, scratch: Path) -> Adapter:
    """Factors and scale; CheckpointError for anything but plain LoRA on linear layers."""
    path = directory / "adapter_config.json"
    fields = Fields(read_json(path), str(path))
    fields.only("peft_type", "LORA")
    fields.only("use_dora", False)
    fields.only("bias", "none")
    fields.only("fan_in_fan_out", False)
    for name in ("rank_pattern", "alpha_pattern", "modules_to_save"):
        fields.only(name, {}, [])
    rank = fields.whole("r", 8)
    root = rank**0.5 if fields.flag("use_rslora", False) else rank
    weights = directory / "adapter_model.safetensors"
    if not weights.exists():
        pickled = directory / "adapter_model.bin"
        if not pickled.exists():
            raise CheckpointError(f"no adapter_model.safetensors in {directory}")
        weights = to_safetensors(pickled, scratch / "adapter.tmp")
    factors, whole = _factors(weights)
    (scratch / "adapter.tmp").unlink(missing_ok=True)
    return Adapter(weights, fields.number("lora_alpha", 8) / root, factors, whole)


def _factors(
    weights: Path,
) -> tuple[dict[str, tuple[torch.Tensor, torch.Tensor]], dict[str, torch.Tensor]]:
    """Pairs of factors, and the tensors that are none."""
    halves: dict[str, dict[str, torch.Tensor]] = {}
    whole: dict[str, torch.Tensor] = {}
    with open_tensors(weights) as shard:
        for full in shard.keys():  # noqa: SIM118 (a safetensors handle is no dict)
            name, tensor = full.removeprefix(PREFIX), shard.get_tensor(full)
            base, _, half = name.rpartition(".lora_")
            half = half.replace(".default", "")
            if half in ("A.weight", "B.weight"):
                halves.setdefault(base + ".weight", {})[half[0]] = tensor
            else:
                whole[name.replace(".base_layer.", ".")] = tensor
    lonely = sorted(name for name, pair in halves.items() if len(pair) != 2)
    if lonely or not halves:
        raise CheckpointError(f"{weights} has no pair of factors for {lonely or 'anything'}")
    return {name: (pair["A"], pair["B"]) for name, pair in halves.items()}, whole


def merge(base: Path, directory: Path, scratch: Path, config: ModelConfig) -> str:
    """Write the base's weights with the adapter in them, file by file."""
    adapter = read_adapter(directory, scratch)
    files = weight_files(base)
    stored = read_headers(files)
    check_shapes(base, stored, expected_shapes(config), unused_names(config))
    _check_fit(adapter, base, stored)
    for path in files:
        with open_tensors(path) as shard:
            tensors = {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118
        for name in tensors.keys() & adapter.whole.keys():
            tensors[name] = adapter.whole[name].to(tensors[name].dtype)
        for name in tensors.keys() & adapter.factors.keys():
            a, b = (factor.float() for factor in adapter.factors[name])
            change = (b.flatten(1) @ a.flatten(1)).view(tensors[name].shape)
            summed = tensors[name].float() + adapter.scale * change
            tensors[name] = summed.to(tensors[name].dtype)
        save_file(tensors, scratch / path.name)
    index = base / "model.safetensors.index.json"
    if index.is_file():
        shutil.copyfile(index, scratch / index.name)
    return f"{len(adapter.factors)} weights of {base} changed by {directory}"


def _check_fit(adapter: Adapter, base: Path, stored: Mapping[str, Stored]) -> None:
    """Raise CheckpointError where the adapter changes what the base has not."""
    said = ""
    for name, (a, b) in adapter.factors.items():
        fits = a.ndim == b.ndim >= 2 and b.shape[1:].numel() == a.shape[0]
        if not fits or name not in stored or stored[name].shape != (b.shape[0], *a.shape[1:]):
            said = said or f"changes {name} by {list(b.shape)} x {list(a.shape)}"
    for name, tensor in adapter.whole.items():
        if name not in stored or stored[name].shape != tuple(tensor.shape):
            said = said or f"holds {name} of {list(tensor.shape)}"
    if said:
        raise CheckpointError(
            f"{adapter.path} {said}, which is no weight of {base}: it was trained on another model"
        )
