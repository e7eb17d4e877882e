"""The safetensors files of a checkpoint directory: which they are, what their headers promise.

Headers are compared with ``config.json`` before a tensor is read, so what does not fit costs
milliseconds; tensors are then read one at a time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from vla_ros.engine.checkpoints.files import (
    AGAIN,
    WINDOW,
    names_in,
    open_tensors,
    refuse_broken,
    state_of,
    weight_map,
)
from vla_ros.engine.errors import CheckpointError

Shapes = dict[str, tuple[int, ...]]
HEADS = ("action_head", "proprio_projector")  # of OFT checkpoints, beside the index
FLOATS = ("BF16", "F16", "F32", "F64")
QUANTISED = "quantised.json"  # of a checkpoint that was quantised ahead of time
PACKED = (".int8", ".int4", ".fp8")  # what its values' names end with
_OF_FEW_BITS = ("I8", "U8", "F8_E4M3")
# change what a model says
BESIDE = ("preprocessor_config.json", "dataset_statistics.json", QUANTISED)


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as a file's header describes it."""

    path: Path
    shape: tuple[int, ...]
    dtype: str


def weight_files(directory: Path) -> list[Path]:
    """The files that hold the weights, in the order in which transformers looks for them."""
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.exists():
        files = [single]
    elif index.exists():
        files = [directory / name for name in sorted(set(weight_map(index).values()))]
        there = set(os.listdir(directory))  # a name may be longer than any disk takes
        lost = [f.name for f in files if f.name not in there]
        if lost:
            raise CheckpointError(f"{directory} lacks the shards {', '.join(lost)}: {AGAIN}")
    else:
        return _unnamed(directory)
    heads = [directory / f"{name}.safetensors" for name in HEADS]
    return files + [f for f in heads if f.exists()]


def _unnamed(directory: Path) -> list[Path]:
    """All of them, where none has the usual name; an adapter's factors are no weights."""
    files = sorted(directory.glob("*.safetensors"))
    files = [f for f in files if not f.name.startswith("adapter_")]
    if not files:
        raise CheckpointError(
            f"no .safetensors in {directory}: there is {names_in(directory)};"
            " `vla-ros convert` makes them of .pt and .bin files"
        )
    return files


def read_headers(files: Iterable[Path]) -> dict[str, Stored]:
    """Every tensor's place, shape and type; CheckpointError where a name occurs twice."""
    found: dict[str, Stored] = {}
    for path in files:
        with open_tensors(path) as shard:
            for name in shard.keys():  # noqa: SIM118 (a safetensors handle is no dict)
                part = shard.get_slice(name)
                if name in found:
                    raise CheckpointError(
                        f"{path} and {found[name].path.name} both hold {name}:"
                        " two checkpoints lie in one directory"
                    )
                found[name] = Stored(path, tuple(part.get_shape()), str(part.get_dtype()))
    return found


def check_shapes(
    where: Path, found: Mapping[str, Stored], wanted: Shapes, unused: tuple[str, ...]
) -> None:
    """Raise CheckpointError listing every missing, extra or unusable tensor of ``where``."""
    extra, wrong, kinds = [], [], []
    for name, stored in found.items():
        if name not in wanted:
            if not name.startswith(unused) and not name.endswith("rotary_emb.inv_freq"):
                extra.append(name)
        elif stored.shape != wanted[name]:
            wrong.append(f"{name} is {list(stored.shape)}, wanted {list(wanted[name])}")
        elif stored.dtype not in (_OF_FEW_BITS if name.endswith(PACKED) else FLOATS):
            kinds.append(f"{name} is {stored.dtype}")
    lists = (
        ("missing", [name for name in wanted if name not in found]),
        ("extra", extra),
        ("wrong shape", wrong),
        (f"of a type other than {', '.join(FLOATS)} (quantised?)", kinds),
    )
    said = [f"{len(names)} {title}: {_shorten(names)}" for title, names in lists if names]
    if said:
        raise CheckpointError(
            f"the tensors in {where} do not fit its config.json; {'; '.join(said)}"
        )


def _shorten(names: list[str], limit: int = 12) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def read_tensors(
    found: Mapping[str, Stored], wanted: Iterable[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The wanted tensors, one at a time, each made of finite numbers.

    They are views of the mapped file and follow it when somebody writes to it: what is to stay
    must be copied. The mapping is made anew every ``WINDOW`` bytes, since pages that were read
    stay resident with it.
    """
    by_file: dict[Path, list[str]] = {}
    for name in wanted:
        by_file.setdefault(found[name].path, []).append(name)
    for path, names in by_file.items():
        state = state_of(path)
        while names:
            read = 0
            with open_tensors(path) as shard:
                if state_of(path) != state:
                    raise CheckpointError(f"{path} changed while it was read: load it again")
                while names and read <= WINDOW:
                    name = names.pop(0)
                    tensor = shard.get_tensor(name)
                    read += tensor.nbytes
                    if not all_finite(tensor):
                        raise CheckpointError(
                            f"{path}: {name} holds NaN or infinity: its training or its copy failed"
                        )
                    yield name, tensor


def all_finite(tensor: torch.Tensor) -> bool:
    """No NaN, no infinity. Needs no memory of the tensor's size."""
    if tensor.numel() == 0:
        return True
    if tensor.dtype == torch.float8_e4m3fn:  # which has no infinity, and one NaN of either sign
        return int((tensor.view(torch.uint8) & 0x7F).max()) < 0x7F
    low, high = tensor.aminmax()
    return bool(torch.stack((low, high)).isfinite().all())


def sha256_of(directory: Path, files: Iterable[Path]) -> str:
    """SHA-256 over config.json, all weights in name order, and what else changes the output."""
    beside = [path for name in BESIDE if (path := directory / name).is_file()]
    digest = hashlib.sha256()
    for path in (directory / "config.json", *sorted(files), *beside):
        refuse_broken(path)
        with path.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()
