"""The tensors of a folder, in one file or in shards with an index, each read when it is asked for.

Checked as in :mod:`vla_ros.engine.flow.weights`. Of a stack with a row for each embodiment one row
can be read alone: the other 31 stay on disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from vla_ros.engine.checkpoints.files import WINDOW, refuse_broken, state_of
from vla_ros.engine.checkpoints.weights import all_finite, read_headers, weight_files
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.weights import Expected, check_shapes


class ShardWeights:
    """See :class:`~vla_ros.engine.flow.groot.encoders.RowWeights`."""

    def __init__(self, directory: Path, expected: Expected) -> None:
        files = weight_files(directory)
        for path in files:
            refuse_broken(path)
        self._states = {path: state_of(path) for path in files}
        found = read_headers(files)
        check_shapes(str(directory), {n: s.shape for n, s in found.items()}, expected)
        self._paths = {name: stored.path for name, stored in found.items()}
        self._stand_in = {n: s for n, s in expected.tied.items() if n not in found}
        self._open: dict[Path, Any] = {}
        self._read = 0

    def take(self, name: str) -> torch.Tensor:
        """The tensor in float32, all finite, in memory of its own."""
        return self._whole(name, None)

    def take_row(self, name: str, row: int) -> torch.Tensor:
        """``tensor[row]``; no other row is read."""
        return self._whole(name, row)

    def read_all(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of ``names`` that can be taken: all of them."""
        return tuple(names)

    def _whole(self, name: str, row: int | None) -> torch.Tensor:
        stored = self._stand_in.get(name, name)
        path = self._paths[stored]
        shard = self._shard(path)
        tensor = shard.get_tensor(stored) if row is None else shard.get_slice(stored)[row]
        if not tensor.is_floating_point():
            raise CheckpointError(f"{path}: {stored} is {tensor.dtype}, wanted floats")
        self._read += tensor.nbytes
        tensor = tensor.to(torch.float32, copy=True)
        if not all_finite(tensor):
            raise CheckpointError(f"{path}: {stored} has values that are not finite")
        out: torch.Tensor = tensor
        return out

    def _shard(self, path: Path) -> Any:
        """The file, mapped anew every so often: pages that were read stay resident."""
        if self._read > WINDOW:
            self._open.clear()
            self._read = 0
        if path not in self._open:
            if state_of(path) != self._states[path]:
                raise CheckpointError(f"{path} changed while it was read: load it again")
            self._open[path] = _opened(path)
        return self._open[path]


def _opened(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(str(path), framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
