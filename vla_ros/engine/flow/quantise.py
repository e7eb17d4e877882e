"""A flow policy quantised ahead of time: loaded in its formats, written, read back, compared."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import torch

from vla_ros.engine.checkpoints.convert.publish import publishing
from vla_ros.engine.checkpoints.openvla import resolve
from vla_ros.engine.checkpoints.quantise import Done
from vla_ros.engine.checkpoints.quantised import Origin, write_origin
from vla_ros.engine.checkpoints.shipped import PREFIX as SHIPPED
from vla_ros.engine.checkpoints.weights import QUANTISED, read_headers, read_tensors, weight_files
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.accepting import refuse_formats
from vla_ros.engine.flow.families import family_of
from vla_ros.engine.flow.family import Choice, Place
from vla_ros.engine.flow.matrices import Record
from vla_ros.engine.flow.weights import Expected, canonical
from vla_ros.engine.quantised.formats import Formats

CPU = torch.device("cpu")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_VERDICTS = "precision"  # of the precision gate, which are about the other one


def quantise_flow(name: str, formats: Formats, target: Path, choice: Choice = Choice()) -> Done:
    """Write ``target``, which appears whole or not at all. CheckpointError in one line."""
    source = resolve(name)
    refuse_formats(source, formats, CPU, torch.bfloat16)
    family, record = family_of(source), Record()
    with publishing(target) as scratch:
        policy = family.load(source, choice, Place(CPU, torch.bfloat16, None, formats, record))
        sha256 = policy.sha256
        kept = dict(_kept(source, family.expected(policy.config), record.kept))
        del policy
        tensors = {**kept, **record.made}
        _copy_beside(source, scratch)
        _write(scratch, tensors)
        whose = name if name.startswith(SHIPPED) else str(source.resolve())
        write_origin(scratch, Origin(formats, whose, sha256, tuple(sorted(tensors))))
        family.load(scratch, choice, Place(CPU, torch.bfloat16))
        if not _same(scratch, tensors):
            raise CheckpointError(f"{target} is not read back as it was written: is the disk good?")
    before = sum(path.stat().st_size for path in weight_files(source))
    return Done(before, sum(tensor.nbytes for tensor in tensors.values()), "its own types")


def _kept(source: Path, expected: Expected, names: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """What stays as it was, under the names of this engine."""
    found = {canonical(name): (name, stored) for name, stored in
             read_headers(weight_files(source)).items()}  # fmt: skip
    wanted = {n if n in found else expected.tied[n]: n for n in names}
    stored = {found[theirs][0]: found[theirs][1] for theirs in wanted}
    for name, tensor in read_tensors(stored, stored):
        yield wanted[canonical(name)], tensor.clone()


def _copy_beside(source: Path, scratch: Path) -> None:
    """Everything but weights and what is about these: files of a family's own are copied too."""
    weights = {path.name for path in weight_files(source)} | {WEIGHTS, INDEX, QUANTISED}
    for path in source.iterdir():
        if path.is_dir() and path.name != _VERDICTS and not path.name.startswith("."):
            shutil.copytree(path, scratch / path.name)
        elif path.is_file() and path.name not in weights:
            shutil.copyfile(path, scratch / path.name)


def _write(directory: Path, tensors: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    whole = {n: t.contiguous() for n, t in tensors.items()}
    save_file(whole, str(directory / WEIGHTS), {"format": "pt"})


def _same(directory: Path, tensors: dict[str, torch.Tensor]) -> bool:
    found = read_headers(weight_files(directory))
    back = read_tensors(found, tensors)
    return all(torch.equal(t.view(torch.uint8), tensors[n].contiguous().view(torch.uint8))
               for n, t in back)  # fmt: skip
