"""A folder of a flow policy whose weights were quantised ahead of time, read back.

Its ``model.safetensors`` holds each matrix of a quantised part as this engine multiplies it (``X``
in ``X.int8``, ``X.int4`` or ``X.fp8``, ``X.scale``, and ``X.bias`` where it has one), and the other
tensors as they were. ``quantised.json`` lists them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from vla_ros.engine.checkpoints.files import WINDOW, refuse_broken, state_of
from vla_ros.engine.checkpoints.quantised import Origin, read_origin
from vla_ros.engine.checkpoints.weights import Stored, all_finite, read_headers, weight_files
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.matrices import Made, Make, Take, plain
from vla_ros.engine.flow.weights import Expected, Shape
from vla_ros.engine.quantised.formats import STORED
from vla_ros.engine.quantised.matrices import KINDS, from_stored, stored_shapes

_MADE = (*KINDS, "scale", "bias")


class StoredWeights:
    """Weights of such a folder, see :class:`~vla_ros.engine.flow.matrices.Maker`. All names and the
    shapes of what was kept are checked here, a matrix' when it is read."""

    def __init__(self, directory: Path, expected: Expected, origin: Origin) -> None:
        (self._path,) = weight_files(directory)
        refuse_broken(self._path)
        self._state = state_of(self._path)
        self._formats, self._expected = origin.formats, expected
        self._found = read_headers([self._path])
        self._kept = _check(directory, self._found, expected, origin)
        self._open: Any = None
        self._read = 0

    def take(self, name: str) -> torch.Tensor:
        """See Weights."""
        return self._tensor(name).to(torch.float32, copy=True)

    def take_row(self, name: str, row: int) -> torch.Tensor:
        """See RowWeights."""
        return self._tensor(name, row).to(torch.float32, copy=True)

    def read_all(self, names: Iterable[str]) -> tuple[str, ...]:
        """Read every matrix once; returns those of ``names`` that can be taken."""
        for name in self._found:
            if name not in self._kept:
                self._tensor(name)
        return tuple(name for name in names if name in self._kept)

    def made(self, name: str, part: str, like: torch.Tensor, make: Make, take: Take) -> Made:
        """See Maker."""
        kind = getattr(self._formats, part)
        if kind == STORED:
            return plain(like, make, take)
        weight, bias = make(self._shaped)
        shapes = stored_shapes(weight.shape[0], weight.shape[1], kind)
        values, scale = (
            self._of_shape(f"{name}.{what}", shape).to(like.device)
            for what, shape in zip((kind, "scale"), shapes, strict=True)
        )
        few = from_stored(kind, values, scale, weight.shape[1])
        if bias is None:
            return few.ready(), None
        return few.ready(), self._of_shape(f"{name}.bias", tuple(bias.shape)).to(like)

    def _shaped(self, name: str) -> torch.Tensor:
        """No tensor, but its shape: so a matrix is put together in its shape alone."""
        return torch.empty(self._expected.must[name], device="meta")

    def _of_shape(self, name: str, shape: Shape) -> torch.Tensor:
        tensor = self._tensor(name)
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"{self._path}: {name} is {list(tensor.shape)}, wanted {list(shape)}"
            )
        return tensor.clone()

    def _tensor(self, name: str, row: int | None = None) -> torch.Tensor:
        if name not in self._found:
            raise CheckpointError(f"{self._path} lacks {name}: quantise the checkpoint again")
        if self._open is None or self._read > WINDOW:  # pages that were read stay resident
            self._open, self._read = self._opened(), 0
        whole = row is None
        tensor: torch.Tensor = (
            self._open.get_tensor(name) if whole else self._open.get_slice(name)[row]
        )
        self._read += tensor.nbytes
        if not all_finite(tensor):
            raise CheckpointError(f"{self._path}: {name} has values that are not finite")
        return tensor

    def _opened(self) -> Any:
        from safetensors import SafetensorError, safe_open

        if state_of(self._path) != self._state:
            raise CheckpointError(f"{self._path} changed while it was read: load it again")
        try:
            return safe_open(str(self._path), framework="pt")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self._path} cannot be read: {error}") from error


def stored_weights(directory: Path, expected: Expected) -> StoredWeights | None:
    """None: nothing in this folder is quantised. CheckpointError: it is, and is no good."""
    origin = read_origin(directory)
    return None if origin is None else StoredWeights(directory, expected, origin)


def _check(
    directory: Path, found: dict[str, Stored], expected: Expected, origin: Origin
) -> set[str]:
    """The names of what was kept as it was. CheckpointError, all that is wrong in one line."""
    kept = {name for name in found if name.rpartition(".")[2] not in _MADE or name in expected.must}
    listed = set(origin.tensors)
    lists = (
        ("missing", [n for n in origin.tensors if n not in found]),
        ("unused", [n for n in found if n not in listed or n in kept - set(expected.must)]),
        ("of the wrong shape", [
            f"{n} {list(found[n].shape)}, wanted {list(expected.must[n])}"
            for n in found if n in expected.must and found[n].shape != tuple(expected.must[n])
        ]),
    )  # fmt: skip
    said = [f"{len(names)} {what}: {', '.join(names[:3])}" for what, names in lists if names]
    if said:
        raise CheckpointError(f"{directory} is not this model: {'; '.join(said)}")
    return kept
