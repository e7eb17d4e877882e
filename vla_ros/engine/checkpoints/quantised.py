"""Quantised checkpoints: which tensors are in which format, in memory and in a directory.

A directory that was quantised ahead of time has a ``quantised.json``. Of a quantised ``X.weight``
it holds ``X.weight.int8``, ``.int4`` or ``.fp8`` and ``X.weight.scale`` in its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from vla_ros.engine.checkpoints.config import ModelConfig
from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.checkpoints.weights import QUANTISED as FILE
from vla_ros.engine.checkpoints.weights import Shapes
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.quantised.formats import STORED, Formats, parse_formats
from vla_ros.engine.quantised.matrices import (
    GROUP,
    KINDS,
    Quantised,
    kind_of,
    quantise,
)
from vla_ros.engine.quantised.matrices import from_stored as matrix_of
from vla_ros.engine.quantised.matrices import stored_shapes as shapes_of
from vla_ros.engine.quantised.ternary.matrix import Ternary

HEAD = "language_model.lm_head.weight"
_EMBEDDING = "language_model.model.embed_tokens.weight"
_LAYER = re.compile(r"language_model\.model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj\.weight")
#: of OFT's action head what is wide; its last map makes the few values of an action
_ACTIONS = re.compile(r"action_head\.model\.(fc1|mlp_resnet_blocks\.\d+\.ffn\.1)\.weight")
_VISION = re.compile(r"(vision_backbone\..*\.blocks\.\d+\.(attn|mlp)\.\w+|projector\.fc\d)\.weight")


@dataclass(frozen=True, slots=True)
class Origin:
    """What ``quantised.json`` says: the formats, of what checkpoint it was made, and of a flow
    policy the names of all its tensors."""

    formats: Formats
    source: str = ""
    source_sha256: str = ""
    tensors: tuple[str, ...] = ()


def read_origin(directory: Path) -> Origin | None:
    """None: nothing in this directory is quantised. CheckpointError: the file is no good."""
    path = directory / FILE
    if not path.is_file():
        return None
    raw = read_json(path)
    try:
        if raw.get("group") != GROUP:
            raise ValueError(f"groups of {raw.get('group')}, {GROUP} is read")
        formats = parse_formats(str(raw.get("weights", "")))
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    names = raw.get("tensors", [])
    if not isinstance(names, list):
        raise CheckpointError(f"{path}: tensors is no list of names")
    return Origin(
        formats, str(raw.get("source", "")), str(raw.get("source_sha256", "")),
        tuple(map(str, names)),
    )  # fmt: skip


def write_origin(directory: Path, origin: Origin) -> None:
    """The file that :func:`read_origin` reads."""
    content = {
        "weights": str(origin.formats),
        "group": GROUP,
        "source": origin.source,
        "source_sha256": origin.source_sha256,
        **({"tensors": list(origin.tensors)} if origin.tensors else {}),
    }
    (directory / FILE).write_text(json.dumps(content, indent=1) + "\n")


def format_of(name: str, formats: Formats, config: ModelConfig) -> str:
    """The format of a tensor, ``bf16`` for one that stays: such as OFT's head of logits, which no
    action comes from."""
    if name == HEAD:
        return STORED if config.parallel else formats.head
    if _ACTIONS.fullmatch(name):
        return formats.head
    if _LAYER.fullmatch(name):
        return formats.decoder
    return formats.vision if _VISION.fullmatch(name) else STORED


def stored_shapes(wanted: Shapes, config: ModelConfig, formats: Formats) -> Shapes:
    """What a directory holds in these formats, of what it would hold as it was."""
    out: Shapes = {}
    for name, shape in with_head(wanted, config, formats).items():
        kind = format_of(name, formats, config)
        if kind == STORED:
            out[name] = shape
            continue
        count, width = shape
        out[f"{name}.{kind}"], out[f"{name}.scale"] = shapes_of(count, width, kind)
    return out


def with_head(wanted: Shapes, config: ModelConfig, formats: Formats) -> Shapes:
    """``wanted``, and a head that is stored apart from the embedding that it is tied to."""
    return {**wanted, HEAD: wanted[_EMBEDDING]} if _has_own_head(config, formats) else wanted


def _has_own_head(config: ModelConfig, formats: Formats) -> bool:
    return config.text.tied and not config.parallel and formats.head != STORED


def quantise_tensors(
    tensors: Mapping[str, torch.Tensor], config: ModelConfig, formats: Formats
) -> tuple[dict[str, torch.Tensor], dict[str, Quantised]]:
    """Tensors of a checkpoint in bfloat16 -> those that stay, and the others, quantised."""
    given = dict(tensors)
    if _has_own_head(config, formats):
        given[HEAD] = given[_EMBEDDING]
    kept: dict[str, torch.Tensor] = {}
    made: dict[str, Quantised] = {}
    for name, tensor in given.items():
        kind = format_of(name, formats, config)
        if kind == STORED:
            kept[name] = tensor
        else:
            made[name] = quantise(tensor, kind)
    return kept, made


def as_stored(made: Mapping[str, Quantised]) -> dict[str, torch.Tensor]:
    """Tensors under the names of a directory."""
    out: dict[str, torch.Tensor] = {}
    for name, matrix in made.items():
        assert not isinstance(matrix, Ternary)  # of BitVLA, which is never written
        out[f"{name}.{kind_of(matrix)}"], out[f"{name}.scale"] = matrix.values, matrix.scale
    return out


def from_stored(
    tensors: Mapping[str, torch.Tensor], shapes: Shapes
) -> tuple[dict[str, torch.Tensor], dict[str, Quantised]]:
    """The other way round: the tensors that stayed, and the quantised ones, of these shapes."""
    kept = dict(tensors)
    made: dict[str, Quantised] = {}
    for name in tensors:
        base, _, kind = name.rpartition(".")
        if kind in KINDS:
            values, scale = kept.pop(name), kept.pop(f"{base}.scale")
            made[base] = matrix_of(kind, values, scale, shapes[base][1])
    return kept, made
