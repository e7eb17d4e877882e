"""Word embeddings that stay where they are: a row is read when a word is said.

Of BitVLA's 128 256 embeddings, 0.66 GB, an instruction needs a few dozen once; an answer, none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from vla_ros.engine.errors import CheckpointError

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}


class Rows(Protocol):
    """A table [V, C] by rows."""

    @property
    def width(self) -> int: ...

    def take(self, ids: Sequence[int]) -> torch.Tensor:
        """[n, C] on the model's device, in its dtype. CheckpointError: they cannot be had."""
        ...


class FileRows:
    """Rows of one tensor of a safetensors file, which is kept open: a folder that is moved or
    deleted meanwhile does no harm, one that is written over is noticed."""

    def __init__(self, path: Path, name: str, like: torch.Tensor) -> None:
        self._path, self._like = path, like
        self._file = path.open("rb", buffering=0)
        size = int.from_bytes(os.pread(self._file.fileno(), 8, 0), "little")
        header = json.loads(os.pread(self._file.fileno(), size, 8))[name]
        self.count, self.width = header["shape"]
        self._dtype = _DTYPES[header["dtype"]]
        self._begin = 8 + size + int(header["data_offsets"][0])
        self._written = self._state()

    def take(self, ids: Sequence[int]) -> torch.Tensor:
        if self._state() != self._written:
            raise CheckpointError(f"{self._path} was written over while it is used: load it again")
        length = self.width * self._dtype.itemsize
        rows = b"".join(
            os.pread(self._file.fileno(), length, self._begin + index * length) for index in ids
        )
        table = torch.frombuffer(bytearray(rows), dtype=self._dtype).view(len(ids), self.width)
        return table.to(self._like, copy=True)

    def _state(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns


class DrawnRows:
    """Random rows, each drawn by its number."""

    def __init__(self, width: int, seed: int, scale: float, like: torch.Tensor) -> None:
        self.width, self._seed, self._scale, self._like = width, seed, scale, like

    def take(self, ids: Sequence[int]) -> torch.Tensor:
        rows = []
        for index in ids:
            random = torch.Generator().manual_seed((self._seed << 20) + index)
            rows.append(torch.randn(self.width, generator=random) * self._scale)
        return torch.stack(rows).to(self._like)
