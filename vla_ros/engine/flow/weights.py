"""``model.safetensors`` of a LeRobot folder: every tensor accounted for before any is read.

LeRobot's own loaders print a line and go on with random weights where a name does not match.
Here a tensor that is missing, unused, of another shape or not finite is an error.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from vla_ros.engine.checkpoints.files import WINDOW, refuse_broken, state_of
from vla_ros.engine.checkpoints.weights import all_finite
from vla_ros.engine.errors import CheckpointError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """The tensors of a model, by the names this engine uses.

    ``must`` be there, also those that no output depends on and that stay on disk; ``spare`` may
    be there or not. ``tied`` maps a name to the one that stands in for it where it is missing.
    """

    must: Mapping[str, Shape]
    spare: Mapping[str, Shape] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)


class Weights(Protocol):
    """Where a model takes its tensors from, each once."""

    def take(self, name: str) -> torch.Tensor:
        """The tensor in float32, all finite, in memory of its own."""
        ...


Dress = Callable[[Weights], Weights]


def as_they_are(weights: Weights) -> Weights:
    """A :data:`Dress` that does nothing."""
    return weights


class MemoryWeights:
    """Tensors that are in memory already; each is given away once."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def take(self, name: str) -> torch.Tensor:
        return self._tensors.pop(name).float()


class FileWeights:
    """Tensors of one file, read one by one, so that memory holds no second copy of a model.

    safetensors maps the file: pages that were read stay resident, and a tensor follows the file
    when somebody writes to it. So every tensor is copied, and the mapping made anew every
    ``WINDOW`` bytes (not for every tensor: the header takes 10 ms).
    """

    def __init__(self, path: Path, expected: Expected) -> None:
        if not path.is_file():
            present = ", ".join(sorted(p.name for p in path.parent.iterdir())[:20]) or "nothing"
            raise CheckpointError(f"no {path.name} in {path.parent}: there is {present}")
        refuse_broken(path)
        self._path, self._state, self._read = path, state_of(path), 0
        self._open()
        names = list(self._file.keys())
        self._names = {canonical(name): name for name in names}
        if len(self._names) != len(names):
            raise CheckpointError(f"{path} has the same tensor under two names")
        shapes = {n: tuple(self._file.get_slice(o).get_shape()) for n, o in self._names.items()}
        check_shapes(str(path), shapes, expected)
        self._stand_in = {n: s for n, s in expected.tied.items() if n not in self._names}

    def take(self, name: str) -> torch.Tensor:
        if self._read > WINDOW:
            self._open()
        stored = self._names[self._stand_in.get(name, name)]
        tensor: torch.Tensor = self._file.get_tensor(stored)
        if not tensor.is_floating_point():
            raise CheckpointError(f"{self._path}: {stored} is {tensor.dtype}, wanted floats")
        self._read += tensor.nbytes
        tensor = tensor.to(torch.float32, copy=True)
        if not all_finite(tensor):
            raise CheckpointError(f"{self._path}: {stored} has values that are not finite")
        return tensor

    def read_all(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of ``names`` that can be taken: all of them."""
        return tuple(names)

    def _open(self) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            self._file = safe_open(str(self._path), framework="pt")
            if state_of(self._path) != self._state:
                raise CheckpointError(f"{self._path} changed while it was read: load it again")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self._path} cannot be read: {error}") from error
        self._read = 0


def canonical(name: str) -> str:
    """One name for a tensor that versions of LeRobot, openpi and transformers name differently."""
    name = name.removeprefix("model.")
    name = name.replace(".vision_tower.vision_model.", ".vision_tower.")
    return re.sub(r"^paligemma_with_expert\.paligemma\.language_model\.model\.",
                  "paligemma_with_expert.paligemma.model.language_model.", name)  # fmt: skip


def check_shapes(where: str, found: Mapping[str, Shape], expected: Expected) -> None:
    """Raise CheckpointError with every missing, unused or wrongly shaped tensor, in one line."""
    must, instead = expected.must, expected.tied
    known = {**must, **expected.spare}
    old = [n for n in found if n.startswith(("normalize_", "unnormalize_"))]
    if old:
        raise CheckpointError(
            f"{where} keeps its statistics among the weights ({old[0]}), as LeRobot did before"
            " 0.4: run lerobot's migrate_policy_normalization on the folder first"
        )
    lists = (
        ("missing", [n for n in must if n not in found and instead.get(n) not in found]),
        ("unused", [n for n in found if n not in known]),
        ("of the wrong shape", [
            f"{n} {list(s)}, wanted {list(known[n])}"
            for n, s in found.items() if n in known and s != known[n]
        ]),
    )  # fmt: skip
    parts = [f"{len(names)} {what}: {_some(names)}" for what, names in lists if names]
    if parts:
        raise CheckpointError(f"{where} is not this model: " + "; ".join(parts))


def sha256_of(directory: Path) -> str:
    """SHA-256 over the folder's JSON and safetensors files, in name order."""
    digest = hashlib.sha256()
    wanted = ("*.json", "*.safetensors")
    for path in sorted(p for pattern in wanted for p in directory.glob(pattern)):
        digest.update(path.name.encode())
        with path.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest
