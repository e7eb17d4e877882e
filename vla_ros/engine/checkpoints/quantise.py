"""A checkpoint quantised ahead of time: read, quantised, written, read back, compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from vla_ros.engine.checkpoints.convert.copying import copy_beside
from vla_ros.engine.checkpoints.convert.publish import publishing
from vla_ros.engine.checkpoints.openvla import (
    Checkpoint,
    load_checkpoint,
    quantised,
    resolve,
)
from vla_ros.engine.checkpoints.quantised import Origin, as_stored, write_origin
from vla_ros.engine.checkpoints.shipped import PREFIX as SHIPPED
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.quantised.formats import Formats

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Done:
    """Bytes of the weights before, in ``dtype``, and as they were written."""

    before: int
    after: int
    dtype: str = "bfloat16"


def quantise_checkpoint(name: str, formats: Formats, target: Path) -> Done:
    """Write ``target``, which appears whole or not at all. CheckpointError in one line."""
    source = resolve(name)
    with publishing(target) as scratch:
        before = load_checkpoint(name, CPU, torch.bfloat16)
        size = _size(before)
        made = quantised(before, formats)
        _write(scratch, source, made)
        whose = name if name.startswith(SHIPPED) else str(source.resolve())
        write_origin(scratch, Origin(formats, whose, before.sha256))
        back = load_checkpoint(str(scratch), CPU, torch.bfloat16)
        if not _same(made, back):
            raise CheckpointError(f"{target} is not read back as it was written: is the disk good?")
    return Done(size, _size(back))


def tensors_of(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """All of them under the names of a directory."""
    return {**checkpoint.tensors, **as_stored(checkpoint.quantised)}


def _write(directory: Path, source: Path, checkpoint: Checkpoint) -> None:
    from safetensors.torch import save_file

    copy_beside(source, directory)
    tensors = {n: t.contiguous() for n, t in tensors_of(checkpoint).items()}
    save_file(tensors, str(directory / "model.safetensors"), {"format": "pt"})


def _same(one: Checkpoint, other: Checkpoint) -> bool:
    mine, theirs = tensors_of(one), tensors_of(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)


def _size(checkpoint: Checkpoint) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(checkpoint).values())
