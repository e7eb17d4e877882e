"""The weights of a checkpoint: safetensors only, every tensor accounted for before one is read.

Headers are compared with what the model needs first, so what does not fit costs milliseconds and
is said in one line: missing, extra, of another shape or type. Tensors are then read one at a time,
each made of finite numbers, in the memory of one. (LeRobot's own loaders print a line and go on
with random weights where a name does not match.)
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open

from vla_ros.core.files import SETTINGS, TOKENIZER, open_file, read_bytes
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.files import (
    AGAIN,
    SHIPPED_FOLDER,
    WINDOW,
    header,
    names_in,
    open_tensors,
    refuse_broken,
    refusing_damaged,
    some,
    state_of,
    weight_map,
)

Shape = tuple[int, ...]
Shapes = dict[str, Shape]
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
HEADS = ("action_head", "proprio_projector")  # of OFT checkpoints, beside the index
BLOCK = 1 << 21  # bytes in float32 of what is taken at a time of a matrix
_RATE_LINE = re.compile(rb'\n *"action_rate_hz": [0-9.]+,(?=\n)')  # as it is written here
FLOATS = ("BF16", "F16", "F32", "F64")
QUANTIZED = "quantised.json"  # of a checkpoint that was quantized ahead of time
PACKED = (".int8", ".int4", ".fp8")  # what its values' names end with
_LOW_BIT = ("I8", "U8", "F8_E4M3")
#: what changes the output of a token policy besides its weights and config.json
BESIDE = ("preprocessor_config.json", "dataset_statistics.json", QUANTIZED)


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as a file's header describes it."""

    path: Path
    shape: Shape
    dtype: str


@dataclass(frozen=True, slots=True)
class Expected:
    """The tensors of a model, by the names this engine uses.

    ``must`` be there, also those that no output depends on and that stay on disk; ``spare`` may
    be there or not. ``tied`` maps a name to the one that stands in for it where it is missing.
    """

    must: Mapping[str, Shape]
    spare: Mapping[str, Shape] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)


def weight_files(directory: Path) -> list[Path]:
    """The files that hold the weights, in the order in which transformers looks for them."""
    single, index = directory / WEIGHTS, directory / INDEX
    if single.exists():
        files = [single]
    elif index.exists():
        files = [directory / name for name in sorted(set(weight_map(index).values()))]
        there = set(os.listdir(directory))  # a name may be longer than any disk takes
        lost = [f.name for f in files if f.name not in there]
        if lost:
            raise CheckpointError(f"{directory} lacks the shards {', '.join(lost)}: {AGAIN}")
    else:  # all of them, where none has the usual name; an adapter's factors are no weights
        found = sorted(directory.glob("*.safetensors"))
        files = [f for f in found if not f.name.startswith("adapter_")]
        if not files and directory.is_relative_to(SHIPPED_FOLDER):
            raise CheckpointError(
                f"the weights of shipped:{directory.name} are not in this copy of the package:"
                " run `make weights` in a clone, and install that"
            )
        if not files:
            raise CheckpointError(
                f"no .safetensors in {directory}: there is {names_in(directory)};"
                " `vla-ros convert` makes them of .pt and .bin files"
            )
        return files
    heads = [directory / f"{name}.safetensors" for name in HEADS]
    return files + [f for f in heads if f.exists()]


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


def read_file(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a file, as views of it."""
    with open_tensors(path) as shard:
        return {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118


def check_tensors(
    where: Path | str, found: Mapping[str, Stored], expected: Expected, unused: tuple[str, ...] = ()
) -> None:
    """Raise CheckpointError listing every missing, extra or unusable tensor of ``where``.

    ``unused``: what names begin with that such checkpoints carry and that nothing reads.
    """
    known = {**expected.must, **expected.spare}
    missing = [n for n in expected.must if n not in found and expected.tied.get(n) not in found]
    extra, wrong, kinds = [], [], []
    for name, stored in found.items():
        if name not in known:
            if not unused or not (name.startswith(unused) or name.endswith("rotary_emb.inv_freq")):
                extra.append(name)
        elif stored.shape != tuple(known[name]):
            wrong.append(f"{name} is {list(stored.shape)}, wanted {list(known[name])}")
        elif stored.dtype not in (_LOW_BIT if name.endswith(PACKED) else FLOATS):
            kinds.append(f"{name} is {stored.dtype}")
    lists = {
        "missing": missing,
        "extra": extra,
        "of the wrong shape": wrong,
        f"of a type other than {', '.join(FLOATS)} (quantized?)": kinds,
    }
    refuse_faults(where, lists)


def refuse_faults(where: Path | str, lists: Mapping[str, list[str]]) -> None:
    """Raise CheckpointError, all that is wrong with the tensors of ``where`` in one line."""
    said = [f"{len(names)} {title}: {some(names, 5)}" for title, names in lists.items() if names]
    if said:
        raise CheckpointError(
            f"the tensors in {where} do not fit its config.json; {'; '.join(said)}"
        )


class TensorReader:
    """Tensors of checked files, each when it is asked for.

    They are views of the mapped file and follow it when somebody writes to it: what is to stay
    must be copied. Pages that were read stay resident with the mapping, so it is made anew every
    ``WINDOW`` bytes (not for every tensor: a header takes 10 ms).
    """

    def __init__(self, found: Mapping[str, Stored]) -> None:
        self._found = found
        self._states = {path: state_of(path) for path in {s.path for s in found.values()}}
        self._open: dict[Path, safe_open] = {}
        self._read = 0

    def shape(self, name: str) -> Shape:
        """The tensor's shape; it is not read."""
        return self._found[name].shape

    def __call__(self, name: str, row: int | None = None) -> torch.Tensor:
        """The tensor, or one row of it: no other is read. CheckpointError: it has NaN or infinity,
        or its file changed meanwhile."""
        path = self._found[name].path
        if self._read > WINDOW:
            self._open.clear()
            self._read = 0
        with refusing_damaged(path):
            if path not in self._open:
                if state_of(path) != self._states[path]:
                    raise CheckpointError(f"{path} changed while it was read: load it again")
                self._open[path] = safe_open(str(path), framework="pt")
            shard = self._open[path]
            whole = row is None
            tensor = shard.get_tensor(name) if whole else shard.get_slice(name)[row]
        self._read += tensor.nbytes
        if not all_finite(tensor.float() if tensor.dtype == torch.float64 else tensor):
            raise CheckpointError(
                f"{path}: {name} holds NaN or infinity: its training or its copy failed"
            )
        return tensor


def read_tensors(
    found: Mapping[str, Stored], wanted: Iterable[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The wanted tensors, file by file; see :class:`TensorReader`."""
    chosen = {name: found[name] for name in wanted}
    files = list(dict.fromkeys(stored.path for stored in chosen.values()))
    read = TensorReader(chosen)
    for name in sorted(chosen, key=lambda name: files.index(chosen[name].path)):
        yield name, read(name)


def all_finite(tensor: torch.Tensor) -> bool:
    """No NaN, no infinity. Needs no memory of the tensor's size."""
    if tensor.numel() == 0:
        return True
    if tensor.dtype == torch.float8_e4m3fn:  # which has no infinity, and one NaN of either sign
        return int((tensor.view(torch.uint8) & 0x7F).max()) < 0x7F
    low, high = tensor.aminmax()
    return bool(torch.stack((low, high)).isfinite().all())


def row_blocks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Views of a tensor's rows, some at a time: in float32 they take ``BLOCK`` bytes at most, or
    are one."""
    if tensor.dim() < 2 or 4 * tensor.numel() <= BLOCK:
        yield tensor
        return
    yield from tensor.split(max(BLOCK // (4 * tensor[0].numel()), 1))


class Weights(Protocol):
    """The source of a model's tensors, each taken once."""

    def take(self, name: str) -> torch.Tensor:
        """The tensor in float32, all finite, in memory of its own."""
        ...

    def blocks(self, name: str) -> Iterator[torch.Tensor]:
        """The tensor as :meth:`take` gives it, its rows some at a time: one after another they take
        the memory of one."""
        yield from row_blocks(self.take(name))

    def shape(self, name: str) -> Shape:
        """The tensor's shape."""
        return tuple(self.take(name).shape)


class FileWeights(Weights):
    """Tensors of a file, or of a directory's shards, read one by one: memory holds no second copy
    of a model. Of a stack with a row for each embodiment one row can be read alone."""

    def __init__(self, where: Path, expected: Expected) -> None:
        """``where``: a directory, or LeRobot's file, whose names differ from version to version."""
        if not where.exists():
            present = names_in(where.parent)
            raise CheckpointError(f"no {where.name} in {where.parent}: there is {present}")
        found = read_headers(weight_files(where) if where.is_dir() else [where])
        rename = str if where.is_dir() else canonical
        self._where, self._names = where, {rename(name): name for name in found}
        if len(self._names) != len(found):
            raise CheckpointError(f"{where} has the same tensor under two names")
        old = [n for n in found if n.startswith(("normalize_", "unnormalize_"))]
        if old:
            raise CheckpointError(
                f"{where} keeps its statistics among the weights ({old[0]}), as LeRobot did before"
                f" 0.4: run `vla-ros convert {where.parent} TARGET`"
            )
        check_tensors(where, {own: found[name] for own, name in self._names.items()}, expected)
        for name, other in expected.tied.items():
            self._names.setdefault(name, self._names.get(other, other))
        self._tensor = TensorReader(found)

    def take(self, name: str) -> torch.Tensor:
        return self.take_row(name, None)

    def blocks(self, name: str) -> Iterator[torch.Tensor]:
        for block in row_blocks(self._tensor(self._names[name])):
            yield block.to(torch.float32, copy=True)

    def shape(self, name: str) -> Shape:
        return self._tensor.shape(self._names[name])

    def take_row(self, name: str, row: int | None) -> torch.Tensor:
        """``tensor[row]``, no other row is read; None: all of it."""
        return self._tensor(self._names[name], row).to(torch.float32, copy=True)

    def read_all(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names that can be taken: all of them."""
        return tuple(names)


def canonical(name: str) -> str:
    """One name for a tensor that versions of LeRobot, openpi and transformers name differently."""
    name = name.removeprefix("model.")
    name = name.replace(".vision_tower.vision_model.", ".vision_tower.")
    return re.sub(
        r"^paligemma_with_expert\.paligemma\.language_model\.model\.",
        "paligemma_with_expert.paligemma.model.language_model.",
        name,
    )


def sha256_of(directory: Path, files: Iterable[Path]) -> str:
    """SHA-256 over config.json, all weights in name order, and what else changes the output. The
    rate of the data (:mod:`~.rates`) does not: with it or without it is the same policy."""
    beside = [path for name in BESIDE if (path := directory / name).is_file()]
    return _digest((directory / "config.json", *sorted(files), *beside))


def sha256_of_folder(directory: Path) -> str:
    """SHA-256 over the names and contents of a folder's JSON and safetensors files."""
    wanted = ("*.json", "*.safetensors")
    return _digest(sorted(p for pattern in wanted for p in directory.glob(pattern)), named=True)


def _digest(paths: Sequence[Path], named: bool = False) -> str:
    digest = hashlib.sha256()
    for path in paths:
        refuse_broken(path)
        if named:
            digest.update(path.name.encode())
        if path.name == "config.json":
            digest.update(_RATE_LINE.sub(b"", read_bytes(path, SETTINGS)))
            continue
        if path.suffix != ".safetensors":
            digest.update(read_bytes(path, TOKENIZER))
            continue
        header(path)  # its size is that of its tensors: nothing without end is read
        with open_file(path) as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()
