"""Checkpoint directories in OpenVLA's layout: safetensors only, every tensor accounted for.

No pickle and no remote code, ever: the engine reads tensors and JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from vla_ros.engine.checkpoints.bitvla.embedding import Rows
from vla_ros.engine.checkpoints.bitvla.reading import read_parts
from vla_ros.engine.checkpoints.config import ModelConfig, config_json
from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.checkpoints.hub import folder_of
from vla_ros.engine.checkpoints.parse import read_config
from vla_ros.engine.checkpoints.quantised import (
    Origin,
    from_stored,
    quantise_tensors,
    read_origin,
    stored_shapes,
    with_head,
)
from vla_ros.engine.checkpoints.shapes import (
    VQ,
    Tensors,
    check_tensors,
    expected_shapes,
    unused_names,
)
from vla_ros.engine.checkpoints.shipped import PREFIX as SHIPPED
from vla_ros.engine.checkpoints.shipped import shipped
from vla_ros.engine.checkpoints.weights import (
    PACKED,
    Shapes,
    Stored,
    check_shapes,
    read_headers,
    read_tensors,
    sha256_of,
    weight_files,
)
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.quantised.formats import Formats
from vla_ros.engine.quantised.matrices import Quantised

RANDOM = "random:"  # see random, which reads this file
STATISTICS = "dataset_statistics.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that has been read and checked. ``directory`` holds its tokenizer.

    ``quantised``: the weights that are not among ``tensors`` since they have fewer bits; ``words``:
    the word embeddings, where they are not among them either."""

    config: ModelConfig
    tensors: Tensors
    norm_stats: Mapping[str, Any]
    directory: Path
    sha256: str
    quantised: Mapping[str, Quantised] = field(default_factory=dict)
    words: Rows | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """What a directory holds, known from its JSON files and the headers of its weights."""

    directory: Path
    config: ModelConfig
    norm_stats: Mapping[str, Any]
    files: list[Path]
    stored: Mapping[str, Stored]
    wanted: Shapes
    origin: Origin | None = None

    @property
    def parameters(self) -> int:
        return sum(int(torch.Size(shape).numel()) for shape in self.wanted.values())


def resolve(name: str) -> Path:
    """The local directory of ``name``: itself, ``shipped:<name>``, or a commit on the hub.

    Raises CheckpointError when it is none of them; see :mod:`vla_ros.engine.checkpoints.hub`.
    """
    if name.startswith(SHIPPED):
        return shipped(name)
    return folder_of(name)


def read_layout(directory: Path) -> Layout:
    """Everything about a directory but its tensors. CheckpointError: it cannot be loaded."""
    config, raw = read_config(directory)
    stats = norm_stats_of(directory, raw)
    files = weight_files(directory)
    stored, wanted = read_headers(files), expected_shapes(config)
    origin = read_origin(directory)
    if origin is not None:
        wanted = stored_shapes(wanted, config, origin.formats)
    unused = tuple(name for name in unused_names(config) if f"{name}.scale" not in wanted)
    check_shapes(directory, stored, wanted, unused)
    return Layout(directory, config, stats, files, stored, wanted, origin)


def load_checkpoint(name: str, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """Read a directory or hub id; tensors land on ``device`` as ``dtype``, checked.

    CheckpointError names the file, what is wrong with it and what to do.
    """
    layout = read_layout(resolve(name))
    if layout.config.text.ternary:
        return _load_bitvla(layout, device, dtype)
    shapes = layout.wanted
    own: tuple[str, ...] = PACKED  # of a type of their own
    if layout.origin is not None:
        formats = layout.origin.formats
        refuse_unless_fast(device, dtype, f"{layout.directory} has {formats}")
        shapes = with_head(expected_shapes(layout.config), layout.config, formats)
        own = (*PACKED, ".scale")
    read = {
        name: tensor.to(torch.float32, copy=True)
        if name.startswith(VQ)
        else tensor.to(device, tensor.dtype if name.endswith(own) else dtype, copy=True)
        for name, tensor in read_tensors(layout.stored, layout.wanted)
    }
    digest = sha256_of(layout.directory, layout.files)
    tensors, quantised = from_stored(read, shapes)
    return Checkpoint(
        layout.config, tensors, layout.norm_stats, layout.directory, digest, quantised
    )


def _load_bitvla(layout: Layout, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    like = torch.empty(0, device=device, dtype=dtype)
    parts, words = read_parts(layout.config, layout.stored, layout.wanted, like)
    return Checkpoint(
        layout.config, parts.tensors, layout.norm_stats, layout.directory,
        sha256_of(layout.directory, layout.files), parts.ternary, words,
    )  # fmt: skip


def quantised(checkpoint: Checkpoint, formats: Formats) -> Checkpoint:
    """The same with weights in other formats; ValueError where they cannot be.

    To the bit what a directory that was quantised ahead of time is read back as.
    """
    if checkpoint.config.text.ternary:
        raise CheckpointError(TERNARY)
    if checkpoint.quantised:
        raise CheckpointError(already(checkpoint.directory))
    like = next(t for n, t in checkpoint.tensors.items() if not n.startswith(VQ))
    refuse_unless_fast(like.device, like.dtype, f"weights {formats}")
    kept, made = quantise_tensors(checkpoint.tensors, checkpoint.config, formats)
    return replace(checkpoint, tensors=kept, quantised=made)


def refuse_formats(name: str, formats: Formats, device: torch.device, dtype: torch.dtype) -> None:
    """CheckpointError in one line where weights cannot be in these formats; reads no weights."""
    if name.startswith(RANDOM):
        ternary = "bitvla" in name
    else:
        layout = read_layout(resolve(name))
        ternary = layout.config.text.ternary
        if layout.origin is not None:
            raise CheckpointError(already(layout.directory))
    if ternary:
        raise CheckpointError(TERNARY)
    refuse_unless_fast(device, dtype, f"weights {formats}")


TERNARY = (
    "BitVLA's weights are -1, 0 or 1 times a scale and take two bits as they are: leave out weights"
)


def already(directory: Path) -> str:
    """What is said of a directory that was quantised ahead of time."""
    return (
        f"{directory} is quantised already: leave out weights, or name the checkpoint that it was"
        " made of"
    )


def refuse_unless_fast(device: torch.device, dtype: torch.dtype, what: str) -> None:
    """CheckpointError where torch has no products of few bits, or slow ones."""
    if device.type not in ("cpu", "cuda"):
        raise CheckpointError(f"{what}: these run on a CPU or on CUDA, not on {device.type}")
    if dtype != torch.bfloat16:
        raise CheckpointError(
            f"{what}: torch multiplies them fast with bfloat16 only: give dtype bfloat16"
        )


def inspect_checkpoint(name: str) -> Layout:
    """All that loading would find wrong, in the memory of one tensor at a time.

    The tokenizer is tried too, and every data set's statistics. Raises CheckpointError as
    :func:`load_checkpoint` does.
    """
    from vla_ros.engine.tokens import PromptTokenizer, read_normaliser

    layout = read_layout(resolve(name))
    for key in layout.norm_stats:
        where, minmax = str(layout.directory), layout.config.minmax
        read_normaliser(layout.norm_stats, key, minmax=minmax, source=where)
    PromptTokenizer(layout.directory, layout.config)("pick up the red cube")
    for _ in read_tensors(layout.stored, layout.wanted):
        pass
    return layout


def norm_stats_of(directory: Path, raw: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's action statistics by data set; ``raw`` is its config.json.

    Fine-tuned ones bring a ``dataset_statistics.json``, which overrides the other.
    """
    path = directory / STATISTICS
    if path.exists():
        found, where = read_json(path), str(path)
    else:
        found, where = raw.get("norm_stats") or {}, f"norm_stats in {directory / 'config.json'}"
    if not isinstance(found, dict) or not all(isinstance(v, dict) for v in found.values()):
        raise CheckpointError(f"{where}: wanted an object with an object for each data set")
    if not found:
        raise CheckpointError(
            f"{directory} has no action statistics: neither norm_stats in its config.json nor"
            f" a {STATISTICS}; copy the one of its training run there"
        )
    return found


def fingerprint(directory: Path) -> str:
    """The ``sha256`` that :func:`load_checkpoint` will give, without loading."""
    return sha256_of(directory, weight_files(directory))


def save_checkpoint(
    directory: Path,
    config: ModelConfig,
    tensors: Tensors,
    norm_stats: Mapping[str, Any],
    write_tokenizer: Callable[[Path], None],
) -> None:
    """Write a checkpoint directory that :func:`load_checkpoint` reads back."""
    from safetensors.torch import save_file

    check_tensors(directory, tensors, config)
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config_json(config, norm_stats), indent=1)
    (directory / "config.json").write_text(text + "\n")
    write_tokenizer(directory / "tokenizer.json")
    contiguous = {n: t.detach().contiguous() for n, t in tensors.items()}
    save_file(contiguous, str(directory / "model.safetensors"))
