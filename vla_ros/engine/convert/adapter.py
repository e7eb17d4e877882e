"""LoRA adapters of peft, merged into the model that they were trained on: W + (alpha / r) B A.

Source: peft ``tuners/lora/layer.py`` (``get_delta_weight``), openvla ``vla-scripts/finetune.py``
(which layers: "all-linear", which by their names takes in the towers' patch convolution too, whose
B is a convolution of 1 x 1). The sum is taken in float32 and stored in the base's type.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from vla_ros.engine.convert.pickles import read_pickle
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.openvla import expected_shapes, unused_names
from vla_ros.engine.io.checkpoint import Tensors, read_config
from vla_ros.engine.io.config import ModelConfig
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.files import copy_beside, read_json, write_json
from vla_ros.engine.io.weights import (
    INDEX,
    Expected,
    check_tensors,
    read_file,
    read_headers,
    weight_files,
)

PREFIX = "base_model.model."
PLACES = ("", "lora_adapter", "adapter")  # where a release keeps it


def adapter_in(directory: Path) -> Path | None:
    """The directory with ``adapter_config.json`` in a release, if there is one."""
    places = (directory / place for place in PLACES)
    return next((p for p in places if (p / "adapter_config.json").is_file()), None)


def convert_adapter(source: Path, scratch: Path, base: Path | None) -> str:
    """An adapter, merged into ``base``; its own statistics win over the base's."""
    directory = adapter_in(source)
    assert directory is not None  # the caller saw it
    base = needed_base(source, directory, base)
    config, raw = read_config(base)
    summary = merge(base, directory, scratch, config)
    copy_beside(base, scratch)
    for place in (directory, source):
        copy_beside(place, scratch)
    write_json(scratch / "config.json", raw)
    return summary


def needed_base(source: Path, directory: Path, base: Path | None) -> Path:
    """``base``; CheckpointError where none is given, with the name that the adapter says."""
    if base is None:
        said = read_json(directory / "adapter_config.json").get("base_model_name_or_path")
        known = f" ({said})" if isinstance(said, str) and said else ""
        raise CheckpointError(
            f"{source} is a LoRA adapter: give --base, the directory of its base model{known}"
        )
    return base


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
    check_tensors(
        source, read_headers(files), Expected(expected_shapes(config)), unused_names(config)
    )
    for path in files:
        shutil.copyfile(path, scratch / path.name)
    if (source / INDEX).is_file():
        shutil.copyfile(source / INDEX, scratch / INDEX)


def read_adapter(directory: Path) -> tuple[Path, Tensors, float]:
    """Its file, tensors and scale, alpha / r; CheckpointError for anything but plain LoRA on linear
    layers."""
    path = directory / "adapter_config.json"
    fields = Fields(read_json(path), str(path))
    fields.only("peft_type", "LORA")
    fields.only("use_dora", False)
    fields.only("bias", "none")
    fields.only("fan_in_fan_out", False)
    for name in ("rank_pattern", "alpha_pattern"):
        fields.only(name, {}, [])
    rank = fields.whole("r", 8)
    root = rank**0.5 if fields.flag("use_rslora", False) else rank
    scale = fields.number("lora_alpha", 8) / root
    weights, pickled = (directory / f"adapter_model.{end}" for end in ("safetensors", "bin"))
    if not (weights.exists() or pickled.exists()):
        raise CheckpointError(f"no adapter_model.safetensors in {directory}")
    given = read_file(weights) if weights.exists() else read_pickle(pickled)
    for module in fields.items("modules_to_save"):
        if not any(f".{module}." in f".{name}" and ".lora_" not in name for name in given):
            raise fields.wrong("modules_to_save", "modules that the adapter's file holds")
    return weights if weights.exists() else pickled, given, scale


def _factors(path: Path, tensors: Tensors) -> tuple[dict[str, dict[str, torch.Tensor]], Tensors]:
    """The factors A and B of each weight, by the weight's name; and whole weights that peft stores
    beside them as they are, such as a head's whose layer is adapted: they stand for the base's."""
    halves: dict[str, dict[str, torch.Tensor]] = {}
    whole: Tensors = {}
    for full, tensor in tensors.items():
        name = full.removeprefix(PREFIX)
        base, _, half = name.rpartition(".lora_")
        half = half.replace(".default", "")
        if half in ("A.weight", "B.weight"):
            halves.setdefault(base + ".weight", {})[half[0]] = tensor
        else:
            whole[name.replace(".base_layer.", ".")] = tensor
    lonely = sorted(name for name, pair in halves.items() if len(pair) != 2)
    if lonely or not halves:
        raise CheckpointError(f"{path} has no pair of factors for {lonely or 'anything'}")
    return halves, whole


def merge(base: Path, directory: Path, scratch: Path, config: ModelConfig) -> str:
    """Write the base's weights with the adapter in them, file by file."""
    path, given, scale = read_adapter(directory)
    files = weight_files(base)
    stored = read_headers(files)
    check_tensors(base, stored, Expected(expected_shapes(config)), unused_names(config))
    factors, whole = _factors(path, given)
    _refuse_other(path, factors, whole, {n: s.shape for n, s in stored.items()}, base)
    for file in files:
        save_file(_added(read_file(file), factors, whole, scale), scratch / file.name)
    if (base / INDEX).is_file():
        shutil.copyfile(base / INDEX, scratch / INDEX)
    return f"{len(factors)} weights of {base} changed by {directory}"


def merged_tensors(
    path: Path, given: Tensors, scale: float, tensors: Tensors, base: Path
) -> tuple[Tensors, int]:
    """``tensors`` of ``base`` with an adapter's in them, and how many of them it changed."""
    factors, whole = _factors(path, given)
    _refuse_other(path, factors, whole, {n: tuple(t.shape) for n, t in tensors.items()}, base)
    return _added(tensors, factors, whole, scale), len(factors) + len(whole)


def _refuse_other(
    path: Path,
    factors: dict[str, dict[str, torch.Tensor]],
    whole: Tensors,
    shapes: dict[str, tuple[int, ...]],
    base: Path,
) -> None:
    """Raise CheckpointError where an adapter changes what ``base`` does not have."""
    said = [
        f"changes {name} by {list(pair['B'].shape)} x {list(pair['A'].shape)}"
        for name, pair in factors.items()
        if name not in shapes or shapes[name] != _shape_of(pair["A"], pair["B"])
    ]
    said += [
        f"holds {name} of {list(tensor.shape)}"
        for name, tensor in whole.items()
        if shapes.get(name) != tuple(tensor.shape)
    ]
    if said:
        raise CheckpointError(
            f"{path} {said[0]}, which is no weight of {base}: it was trained on another model"
        )


def _added(
    tensors: Tensors,
    factors: dict[str, dict[str, torch.Tensor]],
    whole: Tensors,
    scale: float,
) -> Tensors:
    for name, own in tensors.items():
        if name in whole:
            tensors[name] = whole[name].to(own.dtype)
        if name in factors:
            a, b = (factors[name][half].float().flatten(1) for half in "AB")
            summed = tensors[name].float() + scale * (b @ a).view(own.shape)
            tensors[name] = summed.to(own.dtype)
    return tensors


def _shape_of(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...] | None:
    """The shape of what two factors change; None where they do not go together."""
    fits = a.ndim == b.ndim >= 2 and b.shape[1:].numel() == a.shape[0]
    return (b.shape[0], *a.shape[1:]) if fits else None
