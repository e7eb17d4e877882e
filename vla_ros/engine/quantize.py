"""A checkpoint quantized ahead of time: read, quantized, written, read back, compared."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.base import LoadOptions, Placement
from vla_ros.engine.families.openvla import load_checkpoint, quantized
from vla_ros.engine.families.registry import family_of
from vla_ros.engine.formats import Formats
from vla_ros.engine.io.files import copy_beside, publishing
from vla_ros.engine.io.hub import MANIFEST, resolve
from vla_ros.engine.io.quantize import (
    CPU,
    Origin,
    Record,
    as_stored,
    write_origin,
)
from vla_ros.engine.io.weights import (
    INDEX,
    QUANTIZED,
    WEIGHTS,
    Expected,
    canonical,
    read_headers,
    read_tensors,
    weight_files,
)
from vla_ros.engine.options import TOKENS


@dataclass(frozen=True, slots=True)
class Quantized:
    """Bytes of the weights before, in ``dtype``, and as they were written."""

    before: int
    after: int
    dtype: str = "bfloat16"


def quantize_checkpoint(name: str, formats: Formats, target: Path, choice: Any = None) -> Quantized:
    """Quantize a checkpoint into the folder ``target``, which appears whole or not at all.
    CheckpointError in one line.

    ``choice``: of a flow policy's tokenizer and embodiment.
    """
    source = resolve(name)
    if family_of(source).group != TOKENS:
        return _quantize_flow(name, source, formats, target, choice)
    with publishing(target) as scratch:
        before = load_checkpoint(name, CPU, torch.bfloat16)
        size = sum(tensor.nbytes for tensor in before.tensors.values())
        made = quantized(before, formats)
        tensors = {**made.tensors, **as_stored(made.quantized)}
        copy_beside(source, scratch)
        _write(scratch, tensors, Origin(formats, _source_name(name, source), before.sha256))
        back = load_checkpoint(str(scratch), CPU, torch.bfloat16)
        _refuse_unlike(target, {**back.tensors, **as_stored(back.quantized)}.items(), tensors)
    return Quantized(size, sum(tensor.nbytes for tensor in tensors.values()))


def _quantize_flow(
    name: str, source: Path, formats: Formats, target: Path, choice: Any
) -> Quantized:
    family, record = family_of(source), Record()
    place = Placement(CPU, torch.bfloat16, None, formats, record)
    family.refuse_formats(source, place)
    choice = family.choices(source, choice or LoadOptions())[0]  # weights are all data sets' own
    with publishing(target) as scratch:
        policy = family.load(source, choice, place)
        sha256 = policy.sha256
        kept = dict(_kept(source, family.expected(policy.config), record.kept))
        del policy
        tensors = {**kept, **record.made}
        others = {WEIGHTS, INDEX, QUANTIZED, MANIFEST} | {p.name for p in weight_files(source)}
        for path in source.iterdir():  # files of a family's own too, no verdicts about the source
            if path.is_dir() and path.name != "precision" and not path.name.startswith("."):
                shutil.copytree(path, scratch / path.name)
            elif path.is_file() and path.name not in others:
                shutil.copyfile(path, scratch / path.name)
        names = tuple(sorted(tensors))
        _write(scratch, tensors, Origin(formats, _source_name(name, source), sha256, names))
        family.load(scratch, choice, Placement(CPU, torch.bfloat16))
        back = read_tensors(read_headers(weight_files(scratch)), tensors)
        _refuse_unlike(target, back, tensors)
    before = sum(path.stat().st_size for path in weight_files(source))
    return Quantized(before, sum(tensor.nbytes for tensor in tensors.values()), "its own types")


def _kept(source: Path, expected: Expected, names: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that stay as they were, under the names of this engine."""
    headers = read_headers(weight_files(source)).items()
    found = {canonical(name): (name, stored) for name, stored in headers}
    wanted = {n if n in found else expected.tied[n]: n for n in names}
    stored = {found[theirs][0]: found[theirs][1] for theirs in wanted}
    for name, tensor in read_tensors(stored, stored):
        yield wanted[canonical(name)], tensor.clone()


def _source_name(name: str, source: Path) -> str:
    """The source of the weights, for the reader of ``quantised.json``."""
    return name if name.startswith("shipped:") else str(source.resolve())


def _write(directory: Path, tensors: dict[str, torch.Tensor], origin: Origin) -> None:
    from safetensors.torch import save_file

    whole = {n: t.contiguous() for n, t in tensors.items()}
    save_file(whole, str(directory / WEIGHTS), {"format": "pt"})
    write_origin(directory, origin)


def _refuse_unlike(
    target: Path,
    back: Iterable[tuple[str, torch.Tensor]],
    tensors: Mapping[str, torch.Tensor],
) -> None:
    same = [
        name
        for name, tensor in back
        if torch.equal(tensor.view(torch.uint8), tensors[name].contiguous().view(torch.uint8))
    ]
    if len(same) != len(tensors):
        raise CheckpointError(f"{target} is not read back as it was written: is the disk good?")
