"""Quantised checkpoints: which tensors are in which format, in memory and in a directory.

A directory that was quantised ahead of time has a ``quantised.json``. Of a quantised ``X.weight``
it holds ``X.weight.int8`` or ``X.weight.int4`` and ``X.weight.scale`` in its place.
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
from vla_ros.engine.quantised.matrices import GROUP, Int4, Int8, Quantised, quantise
from vla_ros.engine.quantised.ternary.matrix import Ternary

HEAD = "language_model.lm_head.weight"
_EMBEDDING = "language_model.model.embed_tokens.weight"
_LAYER = re.compile(r"language_model\.model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj\.weight")
_VISION = re.compile(r"(vision_backbone\..*\.blocks\.\d+\.(attn|mlp)\.\w+|projector\.fc\d)\.weight")


@dataclass(frozen=True, slots=True)
class Origin:
    """What ``quantised.json`` says: the formats, and of what checkpoint it was made."""

    formats: Formats
    source: str = ""
    source_sha256: str = ""


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
    return Origin(formats, str(raw.get("source", "")), str(raw.get("source_sha256", "")))


def write_origin(directory: Path, origin: Origin) -> None:
    """The file that :func:`read_origin` reads."""
    content = {
        "weights": str(origin.formats),
        "group": GROUP,
        "source": origin.source,
        "source_sha256": origin.source_sha256,
    }
    (directory / FILE).write_text(json.dumps(content, indent=1) + "\n")


def format_of(name: str, formats: Formats) -> str:
    """The format of a tensor, ``bf16`` for one that stays."""
    if name == HEAD:
        return formats.head
    if _LAYER.fullmatch(name):
        return formats.decoder
    return formats.vision if _VISION.fullmatch(name) else STORED


def stored_shapes(wanted: Shapes, config: ModelConfig, formats: Formats) -> Shapes:
    """What a directory holds in these formats, of what it would hold as it was."""
    wanted = dict(wanted)
    if config.text.tied and formats.head != STORED:
        wanted[HEAD] = wanted[_EMBEDDING]
    out: Shapes = {}
    for name, shape in wanted.items():
        kind = format_of(name, formats)
        if kind == STORED:
            out[name] = shape
            continue
        count, width = shape
        out[f"{name}.{kind}"] = (count, width if kind == "int8" else width // 2)
        out[f"{name}.scale"] = (count,) if kind == "int8" else (width // GROUP, count, 2)
    return out


def quantise_tensors(
    tensors: Mapping[str, torch.Tensor], config: ModelConfig, formats: Formats
) -> tuple[dict[str, torch.Tensor], dict[str, Quantised]]:
    """Tensors of a checkpoint in bfloat16 -> those that stay, and the others, quantised.

    ValueError: a size that the kernels do not take, or a head that there is not.
    """
    if config.parallel and formats.head != STORED:
        raise ValueError("an OFT checkpoint says no tokens, so it has no head of logits: name the"
                         " part, as in decoder=int4")  # fmt: skip
    given = dict(tensors)
    if config.text.tied and formats.head != STORED:
        given[HEAD] = given[_EMBEDDING]
    kept: dict[str, torch.Tensor] = {}
    made: dict[str, Quantised] = {}
    for name, tensor in given.items():
        kind = format_of(name, formats)
        if kind == STORED:
            kept[name] = tensor
        else:
            made[name] = quantise(tensor, kind, name)
    return kept, made


def as_stored(made: Mapping[str, Quantised]) -> dict[str, torch.Tensor]:
    """Tensors under the names of a directory."""
    out: dict[str, torch.Tensor] = {}
    for name, matrix in made.items():
        assert not isinstance(matrix, Ternary)  # of BitVLA, which is never written
        kind = "int8" if isinstance(matrix, Int8) else "int4"
        out[f"{name}.{kind}"], out[f"{name}.scale"] = matrix.values, matrix.scale
    return out


def from_stored(
    tensors: Mapping[str, torch.Tensor],
) -> tuple[dict[str, torch.Tensor], dict[str, Quantised]]:
    """The other way round: the tensors that stayed, and the quantised ones."""
    kept = dict(tensors)
    made: dict[str, Quantised] = {}
    for name in tensors:
        base, _, kind = name.rpartition(".")
        if kind in ("int8", "int4"):
            values, scale = kept.pop(name), kept.pop(f"{base}.scale")
            made[base] = Int8(values, scale) if kind == "int8" else Int4(values, scale)
    return kept, made
